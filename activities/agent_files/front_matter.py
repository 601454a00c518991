"""The front matter of an agent's file: what may stand there, as a JSON schema that is published, and the check by it.

All of it are names and numbers: who may edit a prompt cannot start a process, choose an address, or send a header or a key.
"""

from __future__ import annotations

import difflib
import inspect
import json
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, create_model

from mulligan.agent import ClientInstructions
from mulligan.endpoint_model import Model
from mulligan.features import OWN
from mulligan.features.agent_feature import AgentFeature
from mulligan.schema.cut_text import beginning
from mulligan.schema.fault_text import required_form
from mulligan.schema.yaml_fields import FieldPath, FileFault, Place
from mulligan.tool import Tool

Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[list[Name], Field(max_length=200)]
MOST_SECONDS = 315_360_000.0
"""Ten years: with more, times could no longer be computed."""
Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[Number, Field(ge=0, le=MOST_SECONDS)]
Count = Annotated[int, Field(ge=1)]
_NOT_IN_FILES = (Model, Tool, timedelta)
"""Types of options that code alone can give: a file has the other types that an option takes."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Reasoning(_Strict):
    """OpenAI's `reasoning`: how much a model reasons before it answers, and whether it says a summary of that."""

    effort: str | None = None
    summary: str | None = None


class ModelSettings(_Strict):
    """Settings of the model calls: those of a provider's that name no place and identify nobody."""

    temperature: Number | None = None
    top_p: Number | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    max_output_tokens: Count | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    reasoning: Reasoning | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    tool_choice: Literal["auto", "required", "none"] | None = None
    stream: bool | None = None


def _options(kind: type[AgentFeature]) -> Any:
    """The options of a feature, as a file may set them."""
    hints = typing.get_type_hints(kind)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[name] = (_in_file(hints[name]), default)
    return create_model(kind.__name__, __base__=_Strict, __doc__=(kind.__doc__ or "").partition("\n")[0], **fields)


def _in_file(hint: Any) -> Any:
    """The type of an option without what code alone can give. Numbers that may have fractions are seconds."""
    if hint is float:
        return Seconds
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return Union[tuple(_in_file(each) for each in arguments if each not in _NOT_IN_FILES)]  # noqa: UP007
    return list[_in_file(arguments[0])] if origin is Sequence else hint  # type: ignore[misc]


FEATURES_IN_FILES: Mapping[str, type[AgentFeature]] = {
    kind.__name__: kind for each in OWN if (kind := each.agent) is not None and kind.in_files
}
"""The features whose options a file may set, by the names of their classes."""
FeatureOptions = create_model(
    "FeatureOptions",
    __base__=_Strict,
    __doc__="Features with their options, by name.",
    **{name: (_options(kind) | None, None) for name, kind in sorted(FEATURES_IN_FILES.items())},  # type: ignore[call-overload]
)
_TAGS = ("name", "several", "options")
_FormOf = Discriminator(lambda value: _TAGS[0 if isinstance(value, str) else 1 if isinstance(value, list) else 2])
_Options = Annotated[FeatureOptions, Tag("options")]
_Feature = Annotated[Annotated[Name, Tag("name")] | _Options, _FormOf]


class FrontMatter(_Strict):
    """An agent of Mulligan, in the front matter of a Markdown file. The instructions follow it."""

    # Here only: pydantic searches all loaded modules for each class that has this, a third of a second for all of them.
    model_config = ConfigDict(use_attribute_docstrings=True)

    model: Annotated[
        Annotated[Name, Tag("name")] | Annotated[list[Name], Field(min_length=1, max_length=20), Tag("several")],
        _FormOf,
    ]
    """`provider:NAME`, or `provider@endpoint:NAME` with an endpoint that the operator declares; or a list of them: the next
    one is called where one refuses a request or is unavailable."""
    tools: Names = []
    """Names of tools that loaded modules declare."""
    mcp: Names = []
    """Names of MCP servers that loaded modules declare."""
    handoffs: Names = []
    """Names of agents that the model may hand the conversation to."""
    features: Annotated[
        Annotated[list[_Feature], Field(max_length=50), Tag("several")] | _Options,
        _FormOf,
    ] = []
    """Names of features, each with or without options: Mulligan's own, or those that loaded modules declare."""
    max_steps: Count | None = None
    max_repeats: Count | None = None
    max_total_tokens: Count | None = None
    max_depth: Annotated[int, Field(ge=0)] | None = None
    max_sub_runs: Annotated[int, Field(ge=0)] | None = None
    max_handoffs: Annotated[int, Field(ge=0)] | None = None
    max_cost: Annotated[Number, Field(gt=0)] | None = None
    """USD."""
    client_instructions: ClientInstructions | None = None
    parallel_tool_calls: bool | None = None
    model_timeout: Annotated[Seconds, Field(gt=0)] | None = None
    model_patience: Seconds | None = None
    """Seconds."""
    model_attempts: Count | None = None
    model_settings: ModelSettings | None = None

    def options(self) -> dict[str, Any]:
        """The file's settings as keyword options of `Agent`, without the tools, servers and features that it names."""
        named = {"tools", "mcp", "features"}
        return self.model_dump(exclude=named, exclude_none=True, exclude_unset=True)

    @property
    def other_features(self) -> list[str]:
        """The names of features that are not Mulligan's."""
        return [each for each in self.features if isinstance(each, str) and each not in FEATURES_IN_FILES]

    def features_of_mulligan(self) -> list[AgentFeature]:
        """The features of Mulligan that it names.

        Raises:
            TypeError: an option that a feature needs is missing.
        """
        chosen: list[AgentFeature] = []
        for each in self.features if isinstance(self.features, list) else [self.features]:
            if isinstance(each, str):
                chosen += [FEATURES_IN_FILES[each]()] if each in FEATURES_IN_FILES else []
                continue
            for name in filter(each.model_fields_set.__contains__, FEATURES_IN_FILES):  # the same order everywhere
                options = getattr(each, name)
                chosen.append(FEATURES_IN_FILES[name](**(options.model_dump(exclude_unset=True) if options else {})))
        return chosen


@cache
def front_matter_schema() -> dict[str, Any]:
    """The JSON schema of the front matter."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **FrontMatter.model_json_schema()}


def parse_front_matter(fields: Mapping[str, Any], places: Mapping[FieldPath, Place]) -> FrontMatter:
    """Check the fields of a front matter. `places`: where each of them stands.

    Raises:
        FileFault: one is wrong.
    """
    try:
        return FrontMatter.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False)
    fault = max(faults, key=lambda each: len(_path(each["loc"], places)))
    path = _path(fault["loc"], places)
    raise FileFault(places[path].line, _sentence(fault, path)) from None


def _path(loc: Sequence[str | int], places: Mapping[FieldPath, Place]) -> FieldPath:
    """The part of a place in pydantic's words that the file has: pydantic names the alternatives of a type as well."""
    path: FieldPath = ()
    for each in loc:
        if (*path, each) in places:
            path = (*path, each)
    return path


def _sentence(fault: Any, path: FieldPath) -> str:
    loc = (*path, fault["loc"][-1]) if fault["type"] == "missing" else path
    where = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in loc).removeprefix(".")
    if fault["type"] == "missing":
        return f'"{where}" is missing; it is required'
    if fault["type"] == "extra_forbidden":
        known = _known_fields(loc[:-1])
        near = difflib.get_close_matches(str(loc[-1])[:100], known, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"known are {', '.join(known)}" if known else "leave it out"
        return f'"{beginning(where, 100)}" is not a field of an agent\'s file; {hint}'
    given = fault["input"]
    # What is no plain value may have a key in it, and the text goes to logs.
    said = f" {beginning(json.dumps(given), 60)}" if isinstance(given, bool | int | float | str) else ""
    return (
        f'"{where}" is{said or " a list or a mapping" if given is not None else " empty"}, but {required_form(fault)}'
    )


def _known_fields(loc: Sequence[str | int]) -> list[str]:
    if not loc:
        return list(FrontMatter.model_fields)
    if loc[0] == "model_settings":
        return list((Reasoning if "reasoning" in loc else ModelSettings).model_fields)
    kind = FEATURES_IN_FILES.get(str(loc[-1]))
    return list(FeatureOptions.model_fields) if kind is None else list(inspect.signature(kind).parameters)
