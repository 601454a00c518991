"""Ask a tool's policy what a call needs before it may run with certain arguments. Nothing else does.

It is asked with the arguments of the model, and again with those that a person has edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from mulligan.activities.tool_running.thread_bounds import TookTooLong, TooManyThreads
from mulligan.activities.tool_running.tool_runtime import ToolRuntime
from mulligan.errors import truncated
from mulligan.features.tool_option import is_role
from mulligan.schema.error_text import error_text, type_name
from mulligan.tool import Tool, ToolContext

LONGEST_REASON = 1_000
"""Characters of the reason why a policy denies a call: as many as a person's reason has."""


@dataclass(frozen=True)
class ApprovalNeed:
    """What a call needs before it may run.

    `approval`: a person's. `role`: that this person must have; None: everybody may who sees the run. `denied`: why it must
    not run, whoever approves; None: it may.
    """

    approval: bool = False
    role: str | None = None
    denied: str | None = None


async def approval_need(
    tool: Tool, runtime: ToolRuntime, arguments: JsonValue, context: ToolContext, limit: float
) -> ApprovalNeed:
    """What a call with these valid arguments needs. A policy that fails, or exceeds `limit` seconds, denies."""
    if not callable(tool.traits.policy):
        return _need(tool.traits.policy)
    try:
        need: ApprovalNeed = await runtime.ask(tool.traits.policy, (arguments, context), limit=limit, read=_need)
    except TooManyThreads as error:
        return _denied(f"{error}")
    except TookTooLong as error:
        return _denied(f"did not answer within {error.limit:g} s")
    except Exception as error:  # noqa: BLE001 - a check that protects must not let calls pass when it fails
        return _denied(f"failed: {type_name(error)}: {error_text(error)}")
    return need


def _need(needed: Any) -> ApprovalNeed:
    """What a value means that is declared, or that a function has returned."""
    if needed is True or needed is False:
        return ApprovalNeed(approval=needed)
    if isinstance(needed, str) and is_role(role := str.__str__(needed)):
        return ApprovalNeed(approval=True, role=role)
    what = "a text that is no role" if isinstance(needed, str) else f"an object of the type {type_name(needed)}"
    return _denied(f"returned {what}; it must return True, False or the name of a role")


def _denied(how: str) -> ApprovalNeed:
    return ApprovalNeed(denied=truncated(f"its policy {how}")[:LONGEST_REASON])
