"""The descriptions of what users import, read from the source: rendered as Markdown for the reference, and checked.

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
LIST_TITLES = {
    griffe.DocstringSectionKind.parameters: "Parameters",
    griffe.DocstringSectionKind.other_parameters: "Parameters",
    griffe.DocstringSectionKind.raises: "Raises",
    griffe.DocstringSectionKind.returns: "Returns",
    griffe.DocstringSectionKind.yields: "Yields",
}
SIGNATURE_WIDTH = 110
SHORT_NAMES = {
    "WellFormedText": "str",
    "Key": "str",
    "Short": "str",
    "Handle": "WorkflowHandle",
    "Parts": "list[Part]",
    "GivenParts": "list[Part]",
    "Prompt": "str | list[Part]",
    "TextPart": "Text",
    "FeatureParts": "FeatureParts",
}
"""Names that the source gives to a type of Python or Temporal, and what the reference shows instead. docs/features.md has
`FeatureParts`."""


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
    while found is not None:  # a name that its package imports from a module of that name: the module hides it
        target = found.final_target if isinstance(found, griffe.Alias) else found
        if not isinstance(target, griffe.Module):
            break
        found = target.members.get(name)
    if found is None:
        return None
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

    def rendered(self) -> str:
        """The object as a section of a page: its head, its text, its parameters and fields, then its methods."""
        parts = [f"### {self.name}", _head(self.target, self.name), *_described(self.target)]
        if isinstance(self.target, griffe.Class):
            fields = list(self._fields())
            internal = [field for field in fields if INTERNAL.search(field)]
            for title, listed in (("Fields:", fields), ("Mulligan sets these, not you:", internal)):
                own = [field for field in listed if (field in internal) == (listed is internal)]
                parts += [title, "\n".join(own)] if own else []
        for method in (member for member in self.members if isinstance(member, griffe.Function)):
            parts += [f"#### {self.name}.{method.name}", _head(method, method.name), *_described(method)]
        return "\n\n".join(part for part in parts if part)

    def types(self) -> set[str]:
        """The names in the signatures and fields that may be names of the reference."""
        annotations: list[object] = []
        for target in [self.target, *self.members]:
            annotations += _annotations(target)
        if isinstance(self.target, griffe.Class):
            annotations += [parameter.annotation for parameter in self.target.parameters]
        text = " ".join(_type(each) for each in annotations if each)
        return set(re.findall(r"\w+", re.sub(r"'[^']*'", "", text))) - {self.name}

    def _fields(self) -> Iterator[str]:
        """The parameters of the constructor that are no fields, then the fields."""
        described = self._descriptions()
        fields = [member for member in self.members if isinstance(member, griffe.Attribute)]
        names = {field.name for field in fields} | {"self"}
        for parameter in self.target.parameters if isinstance(self.target, griffe.Class) else ():
            if parameter.name not in names and parameter.name in described:
                yield _listed(_parameter(parameter), described[parameter.name])
        for field in fields:
            own = _one_line(field.docstring.value) if field.docstring else ""
            yield _listed(_declared(field), described.get(field.name) or own)

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


def _annotations(target: griffe.Object) -> list[object]:
    """The types in a function's signature, or of a field."""
    if isinstance(target, griffe.Function):
        return [target.returns, *(parameter.annotation for parameter in target.parameters)]
    return [target.annotation] if isinstance(target, griffe.Attribute) else []


def _foreign_types(target: griffe.Object) -> Iterator[str]:
    """Types of Mulligan in a signature that the reference does not have."""
    for annotation in _annotations(target):
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


PUBLIC_API = re.compile(r"^<!-- public-api (\S+)\n(.*?)^-->\n", re.MULTILINE | re.DOTALL)
"""A comment of a page, with a name of the module per line, or `Name: method, method` for a part of its methods."""


@cache
def reference_lines() -> list[tuple[str, str]]:
    """The lines of all `public-api` comments, each with its module."""
    pages = (page.read_text() for page in sorted((ROOT / "docs/reference").glob("*.md")))
    return [
        (module, line)
        for page in pages
        for module, lines in PUBLIC_API.findall(page)
        for line in lines.split("\n")
        if line
    ]


def names_in_reference() -> frozenset[str]:
    """The names that the pages of the reference list."""
    return frozenset(line.partition(":")[0] for _, line in reference_lines())


def _is_constant(member: griffe.Object) -> bool:
    """Whether a field can have one value only, as `role` of a message."""
    return (
        isinstance(member, griffe.Attribute) and re.fullmatch(r"Literal\[[^,]+\]", str(member.annotation)) is not None
    )


INTERNAL = re.compile(r"\\\n  Set (by|for) ")
"""Of the text of a field: its docstring says that Mulligan sets it."""


def _listed(declared: str, description: str) -> str:
    return f"- `{declared}`" + (f"\\\n  {description}" if description else "")


def _declared(field: griffe.Attribute) -> str:
    value = "" if field.value is None or len(str(field.value)) > 60 else f" = {field.value}"
    return f"{field.name}: {_type(field.annotation)}{value}" if field.annotation else field.name


def _head(target: griffe.Object, name: str) -> str:
    """The first lines of a declaration, as code. A class has no signature: its parameters are listed with its fields."""
    if isinstance(target, griffe.Function):
        prefix = "async def" if "async" in target.labels else "def"
        returns = f" -> {_type(target.returns)}" if target.returns else ""
        code = f"{prefix} {name}{_signature(target.parameters, f'{prefix} {name}{returns}')}{returns}"
    elif isinstance(target, griffe.Class):
        bases = ", ".join(str(base) for base in target.bases if not str(base).startswith("_"))
        code = f"class {name}({bases})" if bases else f"class {name}"
    elif isinstance(target, griffe.Attribute):
        code = _declared(target) if target.annotation else f"{name} = {target.value}"
    else:
        code = name
    return f"```py\n{code}\n```"


def _signature(parameters: griffe.Parameters, rest: str) -> str:
    """The parameters in parentheses: in one line with the `rest` of the head, or each in its own."""
    written: list[str] = []
    for parameter in parameters:
        if parameter.name in {"self", "cls"}:
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not any(text.startswith("*") for text in written):
            written.append("*")
        written.append(_parameter(parameter))
    in_one_line = f"({', '.join(written)})"
    if len(rest + in_one_line) <= SIGNATURE_WIDTH:
        return in_one_line
    return "(\n" + "".join(f"    {text},\n" for text in written) + ")"


def _parameter(parameter: griffe.Parameter) -> str:
    stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}
    star = stars.get(parameter.kind, "")  # type: ignore[arg-type]
    default = f" = {parameter.default}" if parameter.default is not None and not star else ""
    return f"{star}{parameter.name}{f': {_type(parameter.annotation)}' if parameter.annotation else ''}{default}"


def _described(target: griffe.Object) -> Iterator[str]:
    """A docstring as Markdown: its text, and lists of parameters, results and exceptions."""
    is_class = isinstance(target, griffe.Class)
    for section in target.docstring.parsed if target.docstring else []:
        if section.kind is griffe.DocstringSectionKind.text:
            yield section.value
        elif section.kind is griffe.DocstringSectionKind.attributes or (
            is_class and section.kind is griffe.DocstringSectionKind.parameters
        ):
            continue
        elif section.kind in LIST_TITLES:
            yield f"{LIST_TITLES[section.kind]}:"
            yield "\n".join(_items(section))
        else:
            yield f"**{section.title or section.kind.value.title()}**\n\n{section.value}"


def _items(section: griffe.DocstringSection) -> Iterator[str]:
    for entry in section.value:
        is_result = section.kind in (griffe.DocstringSectionKind.returns, griffe.DocstringSectionKind.yields)
        subject = (
            str(entry.annotation) if section.kind is griffe.DocstringSectionKind.raises else getattr(entry, "name", "")
        )
        yield f"- {_one_line(entry.description)}" if is_result else f"- `{subject}`: {_one_line(entry.description)}"


def _type(annotation: object) -> str:
    return re.sub(r"\b\w+\b", lambda name: SHORT_NAMES.get(name[0], name[0]), str(annotation))


def _one_line(text: str) -> str:
    return re.sub(r"\s*\n\s*", " ", text)
