"""What a run waits for, as its workflow says it in the query `progress`; and the queries of workflows of a user's own."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime
from typing import Any

import pytest
from temporalio.client import WorkflowQueryFailedError

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.people_agents import wake

REFUND = '{"order": 7, "amount": {"euros": 12.5}}'


async def waits_for(handle: Any, kind: str, *args: Any) -> dict[str, Any]:
    """`waiting_for`, as soon as it is of a kind."""
    while True:
        waiting: dict[str, Any] | None = (await handle.query("progress", args=args))["waiting_for"]
        if waiting is not None and waiting["kind"] == kind:
            return waiting
        await asyncio.sleep(0.02)


async def test_an_open_model_call_is_what_a_run_waits_for(lab: Lab) -> None:
    gate = asyncio.Event()
    handle = await lab.start([Turn(text="done", wait=gate)])
    waiting = await waits_for(handle, "model")
    assert waiting["detail"].startswith(f"waiting for `openai-chat:{handle.id}` (step 1) since ")
    assert datetime.fromisoformat(waiting["since"]).tzinfo is not None
    gate.set()
    await handle.result()
    assert (await handle.query("progress"))["waiting_for"] is None


async def test_a_person_is_named_with_the_command_to_type(lab: Lab) -> None:
    questions = [("refund", REFUND, "c3"), ("ask_person", '{"question": "Which?"}', "c4")]
    handle = await lab.start([Turn(calls=questions), DONE], agent="desk")
    waiting = await waits_for(handle, "person")
    clock = waiting["since"][11:16]
    assert waiting["detail"] == (
        f"waiting for approval of `refund` since {clock} UTC: mulligan approve {handle.id} c3 "
        f"(and 1 more: mulligan pending {handle.id})"
    )
    await handle.execute_update("decide", {"call_id": "c3", "decision": "deny"})
    waiting = await waits_for(handle, "person")
    assert waiting["detail"].startswith("waiting for an answer to `ask_person` since ")
    assert waiting["detail"].endswith(f': mulligan answer {handle.id} c4 "…"')
    await handle.execute_update("answer", {"call_id": "c4", "text": "This."})
    await handle.result()


async def test_tools_that_run_come_before_a_person_who_is_asked(lab: Lab) -> None:
    calls = [("refund", REFUND, "r"), ("nap", '{"seconds": 60}', "n")]
    handle = await lab.start([Turn(calls=calls), DONE], agent="desk")
    waiting = await waits_for(handle, "tool")
    assert waiting["detail"] == f"running `nap` since {waiting['since'][11:16]} UTC"
    await wake()
    await waits_for(handle, "person")
    await handle.execute_update("decide", {"call_id": "r", "decision": "deny"})
    await handle.result()


async def test_a_workflow_of_ones_own_answers_the_queries_for_each_of_its_agents(lab: Lab) -> None:
    models = [f"two-{uuid.uuid4().hex[:6]}" for _ in range(2)]
    for model in models:
        lab.model.script(model, [call("refund", REFUND, "same"), DONE])
    run_id = f"two-{uuid.uuid4().hex[:6]}"
    named = [f"openai-chat:{model}" for model in models]
    handle: Any = await lab.client.start_workflow("TwoDesks", named, id=run_id, task_queue="agents")
    for key in ("0", "1"):
        waiting = await waits_for(handle, "person", key)
        suffix = " --conversation 1" if key == "1" else ""
        assert waiting["detail"].endswith(f": mulligan approve {run_id} same{suffix}")
        assert [each.get("conversation", "0") for each in await handle.query("pending", args=[key])] == [key]
    progress = await handle.query("progress")
    desks = [{"conversation": key, "agent": "desk", "status": "waiting"} for key in ("0", "1")]
    assert (progress["status"], progress["conversations"]) == ("waiting", desks)
    with pytest.raises(WorkflowQueryFailedError, match=r"There is no conversation '7'.*0 \(desk\), 1 \(desk\)"):
        await handle.query("steps", args=[0, 10, "7"])
    for key in ("0", "1"):
        await handle.execute_update("decide", {"call_id": "same", "decision": "deny", "conversation": key})
    await handle.result()
    for key, prompt in (("0", "Left."), ("1", "Right.")):
        assert (await handle.query("messages", args=[0, 10, key]))["messages"][0]["text"] == prompt
        assert (await handle.query("steps", args=[0, 10, key]))["total"] == 2
        events = (await handle.query("events", args=[0, 100, key]))["events"]
        assert (events[0]["type"], events[-1]["type"]) == ("run_started", "run_ended")
    assert (await handle.query("steps"))["total"] == 2
    assert (await handle.query("progress"))["waiting_for"] is None


async def test_the_refund_desk_example_answers_the_queries(lab: Lab) -> None:
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["examples.refund_desk"]), lab.telemetry, queue):
        handle: Any = await lab.client.start_workflow("RefundDesk", "Order 7 broke.", id=queue, task_queue=queue)
        await handle.result()
        progress = await handle.query("progress")
        assert [each["agent"] for each in progress["conversations"]] == ["reader", "clerk"]
        assert (await handle.query("steps", args=[0, 10, "1"]))["total"] == 2
        assert (await handle.query("messages"))["messages"][0]["text"] == "Order 7 broke."
