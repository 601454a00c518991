"""The benchmark's tools as functions with parameters, as rivals' users write them, and their retry policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from temporalio import activity
from temporalio.common import RetryPolicy

from tests.chaos.rivals.effects import PAY
from tests.exam.asked_database import call_tool, facts

READS = RetryPolicy()
"""Temporal's, without a limit: a read may always be repeated."""
_TYPES: dict[str, Any] = {"string": str, "integer": int, "number": float, "boolean": bool}


def typed_tools() -> dict[Callable[..., Any], RetryPolicy]:
    """A function for each tool of the domain, with its retry policy. Its parameters are texts, numbers, and lists of them, so
    that rivals play the domains whose tools take no more."""
    return {_function(tool): PAY if tool["writes"] else READS for tool in facts()["tools"]}


def _function(tool: dict[str, Any]) -> Callable[..., Any]:
    required = tool["schema"].get("required", [])
    fields = {name: _type(each) for name, each in tool["schema"]["properties"].items()}
    names = sorted(fields, key=lambda name: name not in required)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(
            name, kind, default=inspect.Parameter.empty if name in required else None, annotation=fields[name]
        )
        for name in names
    ]
    signature = inspect.Signature(parameters, return_annotation=str)

    async def function(*args: Any, **kwargs: Any) -> str:
        info, bound = activity.info(), signature.bind(*args, **kwargs)
        text, _ = await call_tool(
            tool["name"],
            dict(bound.arguments),
            run=info.workflow_id or "",
            call=f"{info.workflow_run_id}/{info.activity_id}",
            attempt=info.attempt,
        )
        return text

    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {**fields, "return": str}
    function.__name__ = function.__qualname__ = tool["name"]
    function.__doc__ = tool["description"]
    return function


def _type(schema: dict[str, Any]) -> Any:
    if schema.get("type") == "array":
        return list[_type(schema["items"])]  # type: ignore[misc]
    return _TYPES[schema["type"]]
