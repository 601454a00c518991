"""The fields of OpenAI's requests: those that are read, ignored and refused, and those that both APIs have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from mulligan.serve.caller_rights import FIELDS
from mulligan.serve.ignored_fields import IgnoredFields
from mulligan.serve.problems import Problem
from mulligan.serve.shown_json import shown_json

SERVER_LABEL = "mulligan"
"""The `server_label` of the run's tool calls: they ran on the server, as those of an MCP server do at OpenAI."""
Refused = Mapping[str, tuple[str, tuple[Any, ...]]]
RESPONSE_FIELDS = frozenset(FIELDS["responses"])
"""Fields of a response that are read. Others are ignored and named, unless they are refused."""
CHAT_FIELDS = frozenset(FIELDS["chat/completions"])
"""Fields of a chat completion that are read."""
RESPONSE_REFUSED: Refused = {
    "top_logprobs": ("a run has no log probabilities", (0,)),
    "prompt": ("the agent has its own instructions; send `input`", ()),
}
"""Fields that ask for more than an agent can do, each with the reason, and the values that do not."""
CHAT_REFUSED: Refused = {
    "n": ("a request starts one run", (1,)),
    "logprobs": ("a run has no log probabilities", (False,)),
    "top_logprobs": ("a run has no log probabilities", (0,)),
    "modalities": ("an agent answers with text", (["text"],)),
    "audio": ("an agent answers with text", ()),
}
_OBJECTS = frozenset({"text", "stream_options"})
"""Fields with fields of their own, which are named each by itself."""
_FORMATS = ("text.format", "response_format")
_NOTHING: tuple[Any, ...] = (None, [], {}, "")


def invalid(param: str, sentence: str) -> Problem:
    """A field is invalid. The sentence begins with its name: it is the error's `param`."""
    return Problem(400, "invalid_value", f'"{param}" {sentence}')


def json_object(body: Any) -> dict[str, Any]:
    """The JSON of a body, which must be an object."""
    if not isinstance(body, dict):
        raise Problem(
            400, "invalid_json", f'The body is {shown_json(body)}; it must be one JSON object, such as {{"model": …}}.'
        )
    return body


def read_ignored(body: Mapping[str, Any], read: Collection[str], refused: Refused) -> IgnoredFields:
    """The fields of a request that an agent decides about by itself, or that nobody knows.

    Raises:
        Problem: a field asks for more than an agent can do.
    """
    fields = dict(body)
    for name in _OBJECTS & fields.keys():
        if isinstance(fields[name], Mapping):
            fields |= {f"{name}.{each}": value for each, value in fields.pop(name).items()}
    if "tools" in fields and _names_own_tools(fields["tools"]):
        del fields["tools"]
    ignored = {name: value for name, value in fields.items() if name not in read and not _is_one_of(value, _NOTHING)}
    for name, (reason, harmless) in refused.items():
        if name in ignored and not _is_one_of(ignored[name], harmless):
            raise invalid(name, f"is refused: {reason}. Leave it out.")
    format_name = next((name for name in _FORMATS if name in ignored), "")
    return IgnoredFields(tuple(ignored), format_name, ignored.get(format_name))


def _names_own_tools(tools: Any) -> bool:
    """Whether the tools are the agent's own, which clients declare so that they may decide on their approvals."""
    own = {"type": "mcp", "server_label": SERVER_LABEL}.items()
    return isinstance(tools, list) and all(isinstance(each, Mapping) and own <= each.items() for each in tools)


def _is_one_of(value: Any, values: Iterable[Any]) -> bool:
    return any(type(value) is type(each) and value == each for each in values)


def read_model(body: Mapping[str, Any]) -> str:
    """The name of the agent."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise invalid("model", f"is {shown_json(model)}; it must be the name of an agent: GET /v1/models lists them.")
    return model


def read_metadata(body: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a request, which becomes the run's."""
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise invalid("metadata", f"is {shown_json(metadata)}; it must be an object whose values are texts.")
    return metadata


def flag(body: Mapping[str, Any], name: str) -> bool:
    """A field that is true or false; false where it is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"is {shown_json(value)}; it must be true or false.")
    return bool(value)


def read_text(body: Mapping[str, Any], name: str) -> str:
    """A field that is a text; "" where it is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid(name, f"is {shown_json(value)}; it must be a text.")
    return value or ""


def read_conversation(body: Mapping[str, Any]) -> str:
    """The id of the conversation that a request continues; "": it names none."""
    given = body.get("conversation")
    given = given.get("id") if isinstance(given, Mapping) else given
    if given is not None and not isinstance(given, str):
        raise invalid("conversation", f'is {shown_json(given)}; it must be the id of a conversation, or {{"id": …}}.')
    return given or ""
