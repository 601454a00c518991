"""What a client asks for and an agent decides by itself: it is accepted, has no effect, and is named in the response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mulligan.serve.caller import Caller
from mulligan.serve.problems import Problem
from mulligan.serve.served_request import IGNORED, ServedRequest

INSTRUCTIONS = "instructions"
_NO_PART_OF_A_SCHEMA = frozenset({"title", "description", "$schema", "strict"})
MOST_DEPTH = 50


@dataclass(frozen=True)
class IgnoredFields:
    """The fields of a request that an agent does not read, and the output format among them, which it may have itself."""

    names: tuple[str, ...] = ()
    format_name: str = ""
    """The name of the field with the output format; "": there is none."""
    output_format: Any = None
    """The format, as OpenAI's Chat Completions or Responses have it."""

    def accept(
        self, caller: Caller, agent: Mapping[str, Any], given: Mapping[str, Any], *, strict: bool
    ) -> dict[str, Any]:
        """`given`, the metadata and `client_instructions` of a run, as the agent takes them of a caller.

        What is ignored is named in the metadata, of a customer in theirs, and in the header of the response that is being
        made. `agent`: as `mulligan agents --json` prints it; where only its name is known, the worker decides about the
        instructions.

        Raises:
            Problem: the agent refuses instructions of clients; or something would be ignored, and `strict` forbids it.
        """
        policy = agent.get("client_instructions", "context") or ("ignore" if caller.is_customer else "context")
        instructions = given.get("client_instructions")
        if instructions and policy == "refuse":
            raise Problem(
                400,
                "instructions_refused",
                f'"{INSTRUCTIONS}" are refused, also as system and developer messages: the agent '
                f'"{agent.get("name")}" has its own instructions. Leave them out.',
            )
        names = [name for name in self.names if name != self.format_name or not _is_output(self.output_format, agent)]
        taken = dict(given)
        if instructions and policy == "ignore":
            names.append(INSTRUCTIONS)
            del taken["client_instructions"]  # a continuation keeps those of the run, and whose they are
        elif instructions:
            taken["instructions_by_customer"] = caller.is_customer
        if not names:
            return taken
        named = ServedRequest.current().ignore(names, strict=strict)
        own = "client_metadata" if caller.is_customer else "metadata"
        return {**taken, own: {**(given.get(own) or {}), IGNORED: named}}


def _is_output(output_format: Any, agent: Mapping[str, Any]) -> bool:
    """Whether an agent answers in a format by itself."""
    outputs = agent.get("output") or []
    match output_format:
        case {"type": "text"}:
            return not outputs
        case {"type": "json_object"}:
            return bool(outputs)
        case {"type": "json_schema", "json_schema": {"schema": schema}} | {"type": "json_schema", "schema": schema}:
            return any(_compared(schema, 0) == _compared(each.get("schema"), 0) for each in outputs)
    return False


def _compared(schema: Any, depth: int) -> Any:
    """A schema without what does not change which values it accepts, for OpenAI's strict mode."""
    if depth > MOST_DEPTH:
        return None
    if isinstance(schema, Mapping):
        rest = {name: _compared(value, depth + 1) for name, value in schema.items() if name not in _NO_PART_OF_A_SCHEMA}
        if rest.get("additionalProperties") is False:
            del rest["additionalProperties"]
        return rest
    return [_compared(each, depth + 1) for each in schema] if isinstance(schema, list) else schema
