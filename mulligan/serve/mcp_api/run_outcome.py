"""The result of a run as the result of a tool's call."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types

from mulligan.serve.runs import RunInfo

RUN_META = "mulligan.run"
"""The key of `_meta` with the run's id, status and usage."""


def is_ended(info: RunInfo) -> bool:
    """Whether a run has ended, in whatever way."""
    return info.ended is not None


def outcome_of(info: RunInfo) -> types.CallToolResult:
    """The answer of an ended run. If it did not complete, the answer is an error that a model can read."""
    result = info.result if isinstance(info.result, dict) else {}
    output = result.get("output")
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    if result.get("status") == "completed":
        structured = output if isinstance(output, dict) else None
        return types.CallToolResult(content=[_text(text)], structured_content=structured, _meta=_meta(info))
    why = f": {info.error['kind']}: {info.error['message']}" if info.error else "."
    says = f"The run {info.id} did not complete; its status is {info.status!r}{why}"
    said = f"\nIts output so far: {text}" if output else ""
    return types.CallToolResult(content=[_text(says + said)], is_error=True, _meta=_meta(info))


def unfinished(info: RunInfo, text: str, *, has_schema: bool = False) -> types.CallToolResult:
    """What a call returns while its run goes on.

    `has_schema`: the tool has an output schema. Only an error may then come without that output.
    """
    return types.CallToolResult(content=[_text(text)], is_error=has_schema, _meta=_meta(info))


def failure(text: str) -> types.CallToolResult:
    """A call that a model can correct."""
    return types.CallToolResult(content=[_text(text)], is_error=True)


def _text(text: str) -> types.TextContent:
    return types.TextContent(text=text)


def _meta(info: RunInfo) -> dict[str, Any]:
    result = info.result if isinstance(info.result, dict) else {}
    run = {"id": info.id, "status": info.status, "usage": result.get("usage")}
    return {RUN_META: {name: value for name, value in run.items() if value is not None}}
