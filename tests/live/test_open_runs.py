"""An open run: its queries, and its cancellation."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Turn

TWO = Turn(calls=[("wait_for_file", "{}", None), ("now", "{}", None)])


async def test_an_open_run_shows_running_calls_and_the_results_of_settled_ones(lab: Lab, tmp_path: Path) -> None:
    """A call that has ended shows its result although another one still runs."""
    handle = await lab.start([TWO, DONE], metadata={"file": str(tmp_path / "go")})
    while True:
        progress = await handle.query("progress")
        if progress["running"] == ["wait_for_file"]:
            break
        await asyncio.sleep(0.05)
    assert (progress["status"], progress["step"], progress["max_steps"]) == ("running", 1, 6)
    steps = (await handle.query("steps"))["steps"]
    assert [call["result"] and call["result"]["text"] for call in steps[0]["tool_calls"]] == [None, "noon"]
    roots = [span for span in lab.otlp.spans() if span.attributes.get("temporal.workflow_id") == handle.id]
    lab.telemetry.flush()
    roots = [span for span in lab.otlp.spans() if span.attributes.get("temporal.workflow_id") == handle.id]
    assert len(roots) == 1  # the root is there while the run is open
    (tmp_path / "go").touch()
    ran = await lab.look(handle)
    assert [call["result"]["text"] for call in ran.calls] == ["it is there", "noon"]


async def test_cancelling_a_run_stops_its_tool_and_closes_its_spans(lab: Lab, tmp_path: Path) -> None:
    """At once; the run ends as cancelled."""
    handle = await lab.start([TWO, DONE], metadata={"file": str(tmp_path / "never")})
    while (await handle.query("progress"))["running"] != ["wait_for_file"]:
        await asyncio.sleep(0.05)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert isinstance(raised.value.cause, CancelledError)
    assert (await handle.query("progress"))["status"] == "cancelled"
    lab.telemetry.flush()
    [root] = [span for span in lab.otlp.spans() if span.attributes.get("temporal.workflow_id") == handle.id]
    spans = await lab.otlp.spans_arrived(5, trace_id=root.trace_id)
    [finish] = [span for span in spans if span.name == "agent.finish"]
    assert (finish.status, finish.attributes["mulligan.status"]) == ("UNSET", "cancelled")
    [stopped] = [span for span in spans if span.attributes.get("error.type") == "cancelled"]
    assert stopped.attributes["mulligan.recovered"] is False
