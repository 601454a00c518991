"""The fields of OpenAI's requests: those that are refused as the agent decides them, and those that both APIs have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mulligan.serve.problems import Problem

OWN = "the agent has its own"
RESPONSE_FIELDS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "instructions": (f"{OWN} instructions; send what this request is about as `input`", ()),
    "tools": (f"{OWN} tools, and runs them itself", ()),
    "tool_choice": (f"{OWN} tools, and decides about them", ("auto",)),
    "max_output_tokens": (f"{OWN} limits", ()),
    "max_tool_calls": (f"{OWN} limits", ()),
    "text.format": (f"{OWN} output type", ({"type": "text"},)),
    "top_logprobs": ("a run has no log probabilities", (0,)),
    "prompt": (f"{OWN} instructions; send `input`", ()),
    "conversation": ("conversations are continued with `previous_response_id`", ()),
    "context_management": ("the agent compacts its conversation itself", ()),
}
"""Fields that are refused, each with the reason, and the values that ask for nothing. Other unknown fields are accepted."""
CHAT_FIELDS: Mapping[str, tuple[str, tuple[Any, ...]]] = {
    "tools": (f"{OWN} tools, and runs them itself", ()),
    "functions": (f"{OWN} tools, and runs them itself", ()),
    "tool_choice": (f"{OWN} tools, and decides about them", ("auto",)),
    "function_call": (f"{OWN} tools, and decides about them", ("auto",)),
    "response_format": (f"{OWN} output type", ({"type": "text"},)),
    "n": ("a request starts one run", (1,)),
    "max_tokens": (f"{OWN} limits", ()),
    "max_completion_tokens": (f"{OWN} limits", ()),
    "stop": ("the agent decides when it has finished", ()),
    "logprobs": ("a run has no log probabilities", (False,)),
    "top_logprobs": ("a run has no log probabilities", (0,)),
    "logit_bias": ("a run has no log probabilities", ()),
    "modalities": ("an agent answers with text", (["text"],)),
    "audio": ("an agent answers with text", ()),
    "web_search_options": (f"{OWN} tools", ()),
}
_NOTHING: tuple[Any, ...] = (None, [], {}, "")


def invalid(param: str, sentence: str) -> Problem:
    """A field is invalid. The sentence begins with its name: it is the error's `param`."""
    return Problem(400, "invalid_value", f'"{param}" {sentence}')


def json_object(body: Any) -> dict[str, Any]:
    """The JSON of a body, which must be an object."""
    if not isinstance(body, dict):
        raise Problem(400, "invalid_json", 'The body must be one JSON object, such as {"model": …}.')
    return body


def refuse_fields(body: Mapping[str, Any], fields: Mapping[str, tuple[str, tuple[Any, ...]]]) -> None:
    """Refuse a request that asks for what the agent decides.

    Raises:
        Problem: a field has another value than those that ask for nothing.
    """
    for name, (reason, harmless) in fields.items():
        value: Any = body
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if any(value == each and type(value) is type(each) for each in (*_NOTHING, *harmless)):
            continue
        raise invalid(name, f"is refused: {reason}. Leave it out.")


def read_model(body: Mapping[str, Any]) -> str:
    """The name of the agent."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise invalid("model", "must be the name of an agent; GET /v1/models lists them.")
    return model


def read_metadata(body: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of a request, which becomes the run's."""
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise invalid("metadata", "must be an object whose values are texts.")
    return metadata


def flag(body: Mapping[str, Any], name: str) -> bool:
    """A field that is true or false; false where it is missing."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(name, f"is {json.dumps(value)[:80]}; it must be true or false.")
    return bool(value)
