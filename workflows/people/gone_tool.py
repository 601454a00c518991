"""Whether the tool of a call that waits for approval is gone: no deploy waits for people."""

from __future__ import annotations

from temporalio import workflow

HAS_TOOL = "mulligan_has_tool"
"""The function of the worker (`workflow.extern_functions`) that says whether an agent has a tool: `Registry.has_tool`."""


def gone_tool_warning(agent: str, tool: str) -> str | None:
    """A sentence for whoever decides on the call; None: the worker has the tool, or cannot know.

    It depends on the worker that answers: only queries may use it.
    """
    has_tool = workflow.extern_functions().get(HAS_TOOL)
    if has_tool is None or has_tool(agent, tool) is not False:
        return None
    return (
        f"The tool `{tool}` is gone: the agent `{agent}` does not have it any more on the worker that was asked. If the "
        "call is approved, it does not run, and the model is told so."
    )
