"""The memo with which a run is started: lists show it, and filter by it, before a worker has begun the run.

Temporal keeps it beside the history, and a payload codec encrypts it as it does the run's input.
"""

from __future__ import annotations

from typing import Any

from mulligan.wire.run_priority import TENANT_MEMO, run_priority
from mulligan.wire.start_input import ORIGIN_MEMO, StartInput
from mulligan.wire.ui_summary import run_summary, task_of

PROMPT_MEMO, USER_MEMO = "mulligan_prompt", "mulligan_user"
"""The keys of the first line of the run's task, of at most 100 characters, and of its user."""


def start_memo(run_input: StartInput) -> dict[str, Any]:
    """The memo of a run, by its input. What the run has none of is left out."""
    origin = run_input.carried.origin
    memo = {
        "agent": run_input.agent,
        TENANT_MEMO: run_input.tenant,
        USER_MEMO: run_input.user,
        PROMPT_MEMO: task_of(run_input),
        **({ORIGIN_MEMO[origin.kind]: origin.identity} if origin else {}),
    }
    return {name: value for name, value in memo.items() if value}


def start_options(run_input: StartInput, **memo: Any) -> dict[str, Any]:
    """What Temporal is told of a run beside its input: its memo, with more entries, its priority and its summary."""
    summary = run_summary(run_input.agent, task_of(run_input))
    return {
        "memo": {**start_memo(run_input), **memo},
        "priority": run_priority(run_input),
        "static_summary": summary,
    }
