"""The input of a run: accepted spellings, and errors."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import zstandard
from temporalio.client import WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from mulligan import InvalidRunInputError, error_of
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows.conversation.continue_as_new import encode_state
from tests.support.lab import DONE, Lab, call

BAD: list[tuple[Any, str]] = [
    ({"agent": "shopp", "prompt": "x"}, 'Did you mean "shop"?'),
    (b"\x00\xff", "input is not JSON"),
]
"""More of them, without a server: tests/unit/test_refused_inputs.py."""


@pytest.mark.parametrize(("given", "says"), BAD, ids=["unknown", "unreadable"])
async def test_invalid_input_fails_the_run_at_once_with_one_sentence(lab: Lab, given: Any, says: str) -> None:
    """The error says what to change, and is not retryable."""
    handle = await lab.client.start_workflow(
        "AgentWorkflow", given, id=f"bad-{uuid.uuid4().hex[:8]}", task_queue="agents"
    )
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert isinstance(raised.value.cause, ApplicationError)
    assert raised.value.cause.non_retryable
    assert raised.value.cause.type == "InvalidRunInputError"
    error = error_of(raised.value)
    assert isinstance(error, InvalidRunInputError)
    assert says in error.message
    assert (await handle.query("progress"))["status"] == "failed"


async def test_a_run_started_without_input_fails_with_a_sentence(lab: Lab) -> None:
    """`temporal workflow start` without --input."""
    handle = await lab.client.start_workflow("AgentWorkflow", id=f"bad-{uuid.uuid4().hex[:8]}", task_queue="agents")
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert "without an input" in str(error_of(raised.value))


async def test_camel_case_fields_are_read_and_metadata_is_on_the_root_span(lab: Lab) -> None:
    """Instructions may be a function of the input."""
    ran = await lab.run([call("now"), DONE], agent="asked", maxSteps=1, metadata={"who": "Ada"})
    assert ran.result["status"] == "max_steps"
    assert ran.requests[0].json["messages"][0] == {"role": "system", "content": "You serve Ada."}
    [root] = ran.spans_of("invoke_agent asked")
    assert root.attributes["mulligan.metadata.who"] == "Ada"


async def test_progress_messages_and_steps_can_be_queried_by_pages_after_the_end(lab: Lab) -> None:
    """`progress`, `messages` and `steps` answer after the end, by pages."""
    ran = await lab.run([call("now"), call("now"), DONE])
    progress = await ran.handle.query("progress")
    assert progress == {
        "status": "completed",
        "waiting_for": None,
        "step": 3,
        "max_steps": 6,
        "usage": ran.result["usage"],
        "tool_calls": 2,
        "recovered_failures": 0,
        "running": [],
    }
    messages = await ran.handle.query("messages")
    assert [message["role"] for message in messages["messages"]] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert (messages["next"], messages["total"]) == (None, 6)
    assert messages["messages"][2]["error"] is None
    page = await ran.handle.query("messages", args=[1, 2])
    assert (page["messages"], page["next"], page["total"]) == (messages["messages"][1:3], 3, 6)
    steps = await ran.handle.query("steps", args=[1, 1])
    assert (steps["steps"][0]["step"], steps["next"], steps["total"]) == (2, 2, 3)


async def test_a_start_with_two_inputs_fails_the_run_once(lab: Lab) -> None:
    handle = await lab.client.start_workflow(
        "AgentWorkflow", args=[{"agent": "shop", "prompt": "x"}, b"more"], id=f"two-{uuid.uuid4().hex[:8]}",
        task_queue="agents",
    )  # fmt: skip
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert "was started with 2 arguments" in str(error_of(raised.value))


@pytest.fixture
def late(lab: Lab) -> Lab:
    """A task queue that nobody serves before the test does."""
    return replace(lab, task_queue=f"late-{uuid.uuid4().hex[:6]}")


@pytest.mark.parametrize(
    "forged",
    [
        encode_state({"agent": "shop", "conversation": {}}),
        encode_state({"agent": "shop", "conversation": {"messages": [], "digest": ""}, "turn": None}),
        None,
    ],
    ids=["incomplete", "almost whole", "100 MB"],
)
async def test_no_run_of_a_retry_takes_a_client_s_bytes_for_a_carried_state(late: Lab, forged: bytes | None) -> None:
    """The first run times out, as nobody serves its queue; the second one has the bytes of the client, too."""
    forged = forged or zstandard.compress(b'{"agent":"' + b"a" * 100_000_000 + b'"}')
    handle = await late.client.start_workflow(
        "AgentWorkflow", forged, id=f"retry-{uuid.uuid4().hex[:8]}", task_queue=late.task_queue,
        run_timeout=timedelta(seconds=4), retry_policy=RetryPolicy(maximum_attempts=100),
    )  # fmt: skip
    while (await handle.describe()).run_id == handle.first_execution_run_id:
        await asyncio.sleep(0.1)
    async with running_worker(late.client, load(["tests.support.shop_agents"]), late.telemetry, late.task_queue):
        with pytest.raises(WorkflowFailureError) as raised:
            await handle.result()
    assert isinstance(error_of(raised.value), InvalidRunInputError)
    history = await handle.fetch_history()
    assert not any(event.HasField("workflow_task_failed_event_attributes") for event in history.events)


async def test_no_run_of_a_cron_schedule_takes_a_client_s_bytes_for_a_carried_state(lab: Lab) -> None:
    forged = encode_state({"agent": "shop", "conversation": {}})
    name = f"cron-{uuid.uuid4().hex[:8]}"
    handle = await lab.client.start_workflow(
        "AgentWorkflow", forged, id=name, task_queue="agents", cron_schedule="@every 1s"
    )
    ended: list[str] = []
    while len(ended) < 2:
        await asyncio.sleep(0.5)
        runs = [each async for each in lab.client.list_workflows(f'WorkflowId = "{name}"')]
        ended = [each.run_id for each in runs if each.close_time is not None]
    await handle.terminate()
    for run_id in ended:
        history = await lab.client.get_workflow_handle(name, run_id=run_id).fetch_history()
        assert "InvalidRunInputError" in str(history.events[-1])
        assert not any(event.HasField("workflow_task_failed_event_attributes") for event in history.events)
