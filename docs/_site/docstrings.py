"""The descriptions of what users import, read from the source: rendered for the reference, and checked.

`problems()` of an entry finds: a public class, function, method, field or parameter without a description; a description
of a parameter that does not exist; a type of Mulligan in a signature that is not part of the reference.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
FIELD_LISTS = {
    griffe.DocstringSectionKind.parameters: "param",
    griffe.DocstringSectionKind.other_parameters: "param",
    griffe.DocstringSectionKind.raises: "raises",
    griffe.DocstringSectionKind.returns: "returns",
    griffe.DocstringSectionKind.yields: "yields",
}
SHORT_NAMES = {
    "WellFormedText": "str",
    "Key": "str",
    "Short": "str",
    "Handle": "WorkflowHandle",
    "Parts": "list[Part]",
    "Prompt": "str | list[Part]",
    "TextPart": "Text",
}
"""Names that the source gives to a type of Python or Temporal, and what the reference shows instead."""


@cache
def package() -> griffe.Module:
    """Mulligan's source, parsed once."""
    loaded = griffe.load("mulligan", search_paths=[str(ROOT)], docstring_parser="google", resolve_aliases=True)
    assert isinstance(loaded, griffe.Module)
    return loaded


def module_of(name: str) -> griffe.Module:
    """One of Mulligan's modules, by its dotted name."""
    module = package() if name == "mulligan" else package()[name.removeprefix("mulligan.")]
    assert isinstance(module, griffe.Module | griffe.Alias)
    return module  # type: ignore[return-value]


def find_entry(module: str, line: str) -> "Entry | None":
    """The object that a line of a `public-api` block names: `Name`, or `Name: method, method`. None if there is none."""
    name, colon, methods = line.partition(":")
    found = module_of(module).members.get(name)
    if found is None:
        return None
    target = found.final_target if isinstance(found, griffe.Alias) else found
    selected = {method.strip() for method in methods.split(",")} if colon else None
    return Entry(target, name, _public_members(target, selected))


@dataclass(frozen=True)
class Entry:
    """An object of the reference, with those of its members that are part of it."""

    target: griffe.Object
    name: str
    members: list[griffe.Object]

    def problems(self) -> Iterator[str]:
        """What is missing or wrong in the descriptions of the object and its members."""
        if self.target.docstring is None:
            yield "no docstring"
            return
        yield from _foreign_types(self.target)
        if isinstance(self.target, griffe.Function):
            yield from _problems_of_parameters(self.target, self.target.docstring.value)
        if not isinstance(self.target, griffe.Class):
            return
        described = self._descriptions()
        for member in self.members:
            yield from _foreign_types(member)
            if isinstance(member, griffe.Function):
                if not member.docstring:
                    yield f"`{member.name}` has no docstring"
                else:
                    faults = _problems_of_parameters(member, member.docstring.value)
                    yield from (f"`{member.name}`: {fault}" for fault in faults)
            elif not (member.docstring or member.name in described or _is_constant(member) or self._names(member.name)):
                yield f"the field `{member.name}` is not described"
        known = {parameter.name for parameter in self.target.parameters} | set(self.target.all_members)
        for unknown in sorted(described.keys() - known):
            yield f"describes `{unknown}`, which it does not have"

    def rendered(self) -> list[str]:
        """The object as a directive of Sphinx's Python domain, with a list of its fields; its methods are inside of it."""
        kind, head = _head(self.target, self.name)
        body = [*_described(self.target)]
        fields = [member for member in self.members if isinstance(member, griffe.Attribute)]
        described = self._descriptions()
        body += [
            _field(field, described.get(field.name, "")) for field in fields if not _is_parameter(self.target, field)
        ]
        for method in (member for member in self.members if isinstance(member, griffe.Function)):
            kind_of_method, head_of_method = _head(method, method.name)
            body += [f"\n:::::{{{kind_of_method}}} {head_of_method}", *_options(method), *_described(method), ":::::"]
        return [f"::::::{{{kind}}} {head}", *_options(self.target), *body, "::::::"]

    def _descriptions(self) -> dict[str, str]:
        sections = self.target.docstring.parsed if self.target.docstring else []
        kinds = (griffe.DocstringSectionKind.attributes, griffe.DocstringSectionKind.parameters)
        return {
            entry.name.strip("*"): _one_line(entry.description)
            for section in sections
            if section.kind in kinds
            for entry in section.value
        }

    def _names(self, field: str) -> bool:
        """Whether the docstring's text names a field."""
        return self.target.docstring is not None and f"`{field}`" in self.target.docstring.value


def _public_members(target: griffe.Object, methods: set[str] | None) -> list[griffe.Object]:
    """The fields and methods of a class, and those that it inherits from a private one. Without `methods`: all of them."""
    if not isinstance(target, griffe.Class):
        return []
    parents = [parent for parent in target.mro() if parent.name.startswith("_")]
    members = {name: member for each in [*reversed(parents), target] for name, member in each.members.items()}
    documented = {name for parent in target.mro() for name, member in parent.members.items() if member.docstring}
    return [
        member
        for name, member in members.items()
        if not name.startswith("_")
        and name != "model_config"
        and not (isinstance(member, griffe.Attribute) and "init=False" in str(member.value))
        and (
            methods is None or name in methods
            if isinstance(member, griffe.Function) or "property" in member.labels
            else isinstance(member, griffe.Attribute) and (member.docstring or name not in documented)
        )
    ]


def _problems_of_parameters(function: griffe.Function, docstring: str) -> Iterator[str]:
    described = {
        entry.name.strip("*")
        for section in (function.docstring.parsed if function.docstring else [])
        if section.kind is griffe.DocstringSectionKind.parameters
        for entry in section.value
    }
    names = {parameter.name for parameter in function.parameters} - {"self", "cls", "ctx"}
    yield from (
        f"the parameter `{name}` is not described" for name in sorted(names - described) if f"`{name}`" not in docstring
    )
    yield from (
        f"describes a parameter `{name}`, which it does not have" for name in sorted(described - names - {"ctx"})
    )


def _foreign_types(target: griffe.Object) -> Iterator[str]:
    """Types of Mulligan in a signature that the reference does not have."""
    annotations: list[object] = []
    if isinstance(target, griffe.Function):
        annotations = [target.returns, *(parameter.annotation for parameter in target.parameters)]
    elif isinstance(target, griffe.Attribute):
        annotations = [target.annotation]
    for annotation in annotations:
        for part in annotation.iterate(flat=True) if isinstance(annotation, griffe.Expr) else ():
            if (
                isinstance(part, griffe.ExprName)
                and part.canonical_path.startswith("mulligan.")
                and not _is_type_variable(part.canonical_path)
                and part.name not in names_in_reference() | SHORT_NAMES.keys()
            ):
                yield f"`{target.name}` names the type {part.canonical_path}, which is not in the reference"


def _is_type_variable(path: str) -> bool:
    found = package()[path.removeprefix("mulligan.")]
    return isinstance(found, griffe.Attribute) and re.match(r"TypeVar|ParamSpec", str(found.value)) is not None


@cache
def reference_lines() -> list[tuple[str, str]]:
    """The lines of all `public-api` blocks, each with its module."""
    pages = (page.read_text() for page in sorted((ROOT / "docs/reference").glob("*.md")))
    blocks = [
        block for page in pages for block in re.findall(r"^:::\{public-api\} (\S+)\n(.*?)^:::", page, re.M | re.S)
    ]
    return [(module, line.strip()) for module, lines in blocks for line in lines.splitlines() if line.strip()]


def names_in_reference() -> frozenset[str]:
    """The names that the pages of the reference list."""
    return frozenset(line.partition(":")[0] for _, line in reference_lines())


def _is_constant(member: griffe.Object) -> bool:
    """Whether a field can have one value only, as `role` of a message."""
    return (
        isinstance(member, griffe.Attribute) and re.fullmatch(r"Literal\[[^,]+\]", str(member.annotation)) is not None
    )


def _is_parameter(target: griffe.Object, field: griffe.Attribute) -> bool:
    """Whether the description of a class's parameters has the field already."""
    return any(
        section.kind is griffe.DocstringSectionKind.parameters
        and any(entry.name == field.name for entry in section.value)
        for section in (target.docstring.parsed if target.docstring else [])
    )


def _field(field: griffe.Attribute, description: str) -> str:
    text = description or (_one_line(field.docstring.value) if field.docstring else "")
    value = "" if field.value is None or len(str(field.value)) > 60 else f" = {field.value}"
    declared = f"{field.name}: {_type(field.annotation)}{value}" if field.annotation else field.name
    return f"- `{declared}`" + (f"\n  {text}" if text else "")


def _options(target: griffe.Object) -> list[str]:
    options = [":async:"] if isinstance(target, griffe.Function) and "async" in target.labels else []
    if isinstance(target, griffe.Attribute) and target.annotation:
        options.append(f":type: {_type(target.annotation)}")
    return options


def _head(target: griffe.Object, name: str) -> tuple[str, str]:
    if isinstance(target, griffe.Function):
        is_method = target.parent is not None and target.parent.is_class
        returns = f" -> {_type(target.returns)}" if target.returns else ""
        return ("py:method" if is_method else "py:function"), f"{name}{_signature(target.parameters)}{returns}"
    if isinstance(target, griffe.Class):
        is_model = any(str(parent).endswith("BaseModel") for each in [target, *target.mro()] for parent in each.bases)
        signature = "" if is_model or not len(target.parameters) else _signature(target.parameters)
        return ("py:exception" if name.endswith("Error") else "py:class"), f"{name}{signature}"
    return "py:data", name


def _signature(parameters: griffe.Parameters) -> str:
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    written: list[str] = []
    for parameter in parameters:
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not any(text.startswith("*") for text in written):
            written.append("*")
        star = stars.get(parameter.kind, "")
        default = f" = {parameter.default}" if parameter.default is not None and not star else ""
        written.append(
            f"{star}{parameter.name}{f': {_type(parameter.annotation)}' if parameter.annotation else ''}{default}"
        )
    return f"({', '.join(written)})"


def _described(target: griffe.Object) -> Iterator[str]:
    """A docstring as Markdown, with field lists for the sections that Sphinx has such lists for."""
    for section in target.docstring.parsed if target.docstring else []:
        if section.kind is griffe.DocstringSectionKind.text:
            yield f"\n{section.value}\n"
        elif section.kind in FIELD_LISTS:
            yield "\n" + "\n".join(_fields(FIELD_LISTS[section.kind], section)) + "\n"
        elif section.kind is not griffe.DocstringSectionKind.attributes:
            yield f"\n**{section.title or section.kind.value.title()}**\n\n{section.value}\n"


def _fields(field: str, section: griffe.DocstringSection) -> Iterator[str]:
    for entry in section.value:
        subject = {"param": getattr(entry, "name", ""), "raises": str(entry.annotation)}.get(field, "")
        yield f":{field} {subject}".rstrip() + f": {_one_line(entry.description)}"


def _type(annotation: object) -> str:
    return re.sub(r"\b\w+\b", lambda name: SHORT_NAMES.get(name[0], name[0]), str(annotation))


def _one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text)
