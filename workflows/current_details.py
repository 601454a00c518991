"""The current details of a run: what Temporal's UI shows of its agents while it is open, and after its end.

They are made when somebody asks, from what the query `progress` answers, so they add nothing to the history.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from temporalio import workflow
from temporalio.api.sdk.v1 import WorkflowMetadata

from mulligan.values import Progress
from mulligan.wire.ui_summary import one_line
from mulligan.workflows import limits
from mulligan.workflows.agent_progress import agent_progress, task_in_one_line
from mulligan.workflows.people.person_wait import FIRST_AGENT_KEY
from mulligan.workflows.running_agent import RunningAgent

METADATA_QUERY = "__temporal_workflow_metadata"
"""The query that Temporal's UI sends for the current details. The SDK answers it."""
_MOST_AGENTS = 10
_MOST_PENDING = 5
_TEXT_CHARS = 300


def show_details(details: Callable[[], str]) -> None:
    """Add details to the workflow's answer to Temporal's UI. Those that a user's workflow has set itself are kept."""
    answer_of_sdk = workflow.get_query_handler(METADATA_QUERY)
    if answer_of_sdk is None:
        return

    def metadata() -> WorkflowMetadata:
        answer: WorkflowMetadata = answer_of_sdk()
        answer.current_details = answer.current_details or details()
        return answer

    workflow.set_query_handler(METADATA_QUERY, metadata)


def current_details(agents: Mapping[str, RunningAgent], pending: Sequence[Mapping[str, Any]]) -> str:
    """Markdown about the agents that have begun, the newest first.

    Texts of models and users are in code blocks, where nothing is a link or an image.

    Args:
        agents: the workflow's agents, by their keys.
        pending: the answer of the query `pending`.
    """
    begun = [(key, agent) for key, agent in [*agents.items()][::-1] if agent.has_begun]
    parts = [
        _agent_details(agent, [each for each in pending if each.get("conversation", FIRST_AGENT_KEY) == key])
        for key, agent in begun[:_MOST_AGENTS]
    ]
    if len(begun) > _MOST_AGENTS:
        more = len(begun) - _MOST_AGENTS
        parts.append(f"{more} more agent{'s' * (more != 1)}")
    return "\n\n---\n\n".join(parts)


def _agent_details(agent: RunningAgent, pending: Sequence[Mapping[str, Any]]) -> str:
    progress, task = agent_progress(agent), task_in_one_line(agent)
    parts = [f"**Agent** {_code(agent.name)} · step {progress.step} of {progress.max_steps} · {progress.status}"]
    if progress.waiting_for is not None:
        lines = [
            progress.waiting_for.detail,
            *(f"{each['call_id']}: {each['text']}" for each in pending[:_MOST_PENDING]),
        ]
        parts.append("```\n" + "\n".join(_plain(line) for line in lines) + "\n```")
    if task:
        parts.append(f"**Task** {_code(task)}")
    parts.append(_numbers(progress))
    return "\n\n".join(parts)


def _numbers(progress: Progress) -> str:
    usage = progress.usage
    parts = [
        f"{usage.input_tokens:,} input and {usage.output_tokens:,} output tokens",
        f"{progress.tool_calls:,} tool call{'s' * (progress.tool_calls != 1)}",
        f"{progress.recovered_failures:,} recovered failure{'s' * (progress.recovered_failures != 1)}",
    ]
    if progress.cost is not None:
        parts.insert(1, f"{progress.cost:.4f} USD")
    return "**Usage** " + " · ".join(parts)


def _code(text: str) -> str:
    """A text as inline code."""
    return f"`{_plain(text).replace('`', chr(39))}`"


def _plain(text: str) -> str:
    """A text in one line, with nothing that ends a code block."""
    return one_line(text[: limits.DECISION_TEXT_CHARS + _TEXT_CHARS])[:_TEXT_CHARS].replace("```", "'''")
