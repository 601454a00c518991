"""Data too large for Temporal, from a model, a tool, a fixer or a run's input: the run goes on, or fails with a sentence.

Temporal refuses a payload of more than 2 MB, a message of more than 4 MB, more than 2,000 open activities, and terminates a
run whose history is over 50 MB. Without bounds, runs with 3,000 calls, local results or large metadata made no progress, 50
large results terminated the run, and large values of fixers, long names and long failures failed it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.client import WorkflowHandle

from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab
from tests.support.large_payload_agent import MEGABYTE, noise
from tests.support.openai_turn import Failure, Turn
from tests.support.temporal import connect_to

GIVEN_AGAIN = (
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
)
"""Results arrived during a workflow task, too large for the server to buffer: the task is started again with them."""
NEARLY_ALL = 1_390_000
"""The maximum length of one result, in characters."""


@pytest.fixture(scope="module")
async def at(lab: Lab, temporal: DevServer) -> AsyncIterator[Lab]:
    client = await connect_to(temporal)
    queue = f"sizes-{uuid.uuid4().hex[:6]}"
    async with running_worker(client, load(["tests.support.large_payload_agent"]), lab.telemetry, queue):
        yield Lab(client, lab.model, lab.otlp, lab.telemetry, queue)


def calls(count: int, name: str, arguments: Callable[[int], str]) -> Turn:
    return Turn(calls=[(name, arguments(n), f"c{n}") for n in range(count)])


def sized(n: int) -> str:
    return json.dumps({"size": NEARLY_ALL, "seed": n})


def text_of(text: str) -> Callable[[int], str]:
    return lambda n: json.dumps({"text": f"{text}{n}"})


GOES_ON: dict[str, tuple[Turn, dict[str, Any], int]] = {
    # the first turn of the model, the run's input, the number of recovered failures
    "arguments of 20 calls": (calls(20, "take", text_of(noise(24_000))), {}, 0),
    "arguments that double as JSON": (calls(20, "take", text_of('"' * 11_000)), {}, 20),
    "3,000 calls": (calls(3_000, "take", text_of("x")), {}, 1),
    "20 results": (calls(20, "give_noise", sized), {}, 0),
    "5 local results": (calls(5, "give_noise_here", sized), {}, 0),
    "a long failure": (calls(1, "shout", lambda _: f'{{"size": {NEARLY_ALL}}}'), {}, 1),
    "a fixer's arguments": (calls(1, "take", lambda _: '{"much": 1}'), {}, 1),
    "fixers' arguments together": (calls(4, "take", lambda n: json.dumps({"some": n})), {}, 4),
    "repairs of 100 calls": (calls(100, "take", lambda n: json.dumps({"text": "y" * 4_800 + str(n)})[:-1]), {}, 0),
    "a name": (calls(1, "x" * 3 * MEGABYTE, lambda _: "{}"), {}, 1),
    "100 names": (calls(100, "x" * 30_000, lambda n: json.dumps({"n": n})), {}, 100),
    "100 mistakes": (calls(100, "take", lambda n: json.dumps({f"{m}" * 90: n for m in range(30)})), {}, 100),
    "a text": (Turn(text=noise(999_000)), {}, 0),
    "a text beside a call": (Turn(text=noise(3 * MEGABYTE), calls=[("take", text_of("x")(1), "c")]), {}, 0),
    "metadata": (calls(6, "take", text_of("x")), {"metadata": {"k": noise(900_000)}}, 0),
    "a prompt": (calls(1, "take", text_of("x")), {"prompt": noise(2_096_000)}, 0),
    "the longest message": (calls(1, "take", text_of("x")), {"prompt": noise(2_096_400)}, 0),
}


@pytest.mark.parametrize("row", GOES_ON)
async def test_a_run_goes_on_after_data_too_large_for_temporal(at: Lab, row: str) -> None:
    turn, given, failures = GOES_ON[row]
    ran = await at.run([turn, DONE], agent="large", **given)
    assert ran.result["status"] == "completed"
    failed = [call["result"]["error"] for call in ran.calls if call["result"]["error"]]
    assert ran.result["recovered_failures"] == failures, failed[:10]
    assert len({call["id"] for call in ran.calls}) == len(ran.calls)
    assert await failed_tasks(ran.handle) == []
    # A step may add this much, so that one more fits into a history that is nearly full.
    size = (await ran.handle.describe()).raw_description.workflow_execution_info.history_size_bytes
    assert size < 10 * MEGABYTE


@pytest.mark.parametrize(("size", "status"), [(650_000, "completed"), (3 * MEGABYTE, "truncated")])
async def test_a_long_text_is_the_output_whole_or_is_said_to_be_cut(at: Lab, size: int, status: str) -> None:
    """In the result, in the conversation, and for the turn after it."""
    text = noise(size)
    ran = await at.run([Turn(text=text)], agent="large")
    assert ran.result["status"] == status
    messages = await ran.handle.query("messages", args=[1, 1])  # a large message is a page of its own
    assert messages["messages"][-1]["text"] == ran.result["output"]
    assert (ran.result["output"] == text) == (status == "completed")
    assert ran.result["output"].startswith(text[: min(size, 800_000)])


FAILS: dict[str, tuple[Turn, dict[str, Any], str, str]] = {
    # the turn of the model, the run's input, the type of the error and a part of its message
    "a long failure": (
        calls(1, "shout", lambda _: f'{{"size": {NEARLY_ALL}}}'),
        {"agent": "strict_large"},
        "ToolExecutionError",
        "more characters",
    ),
    "an endpoint's refusal": (
        Turn(failure=Failure(400, body={"error": {"message": noise(3 * MEGABYTE), "type": "invalid_request_error"}})),
        {"agent": "large"},
        "ModelRequestError",
        "(400)",
    ),
    "instructions": (DONE, {"agent": "wordy"}, "InvalidRunInputError", "take 3,000,0"),
    "the agent's name": (DONE, {"agent": "x" * 1_900_000}, "InvalidRunInputError", "at most 1000 characters"),
    "the model's name": (
        DONE,
        {"model": f"openai:{'x' * 1_900_000}"},
        "InvalidRunInputError",
        "at most 1000 characters",
    ),
    "a field": (DONE, {"y" * 1_900_000: 1}, "InvalidRunInputError", "is not a known field"),
    "a traceparent": (DONE, {"traceparent": "0" * 1_900_000}, "InvalidRunInputError", "must be a W3C traceparent"),
}


@pytest.mark.parametrize("row", FAILS)
async def test_a_run_that_cannot_carry_its_data_fails_with_a_sentence(at: Lab, row: str) -> None:
    turn, given, kind, says = FAILS[row]
    ran = await at.run([turn], **{"agent": "large", **given})
    assert type(ran.error).__name__ == kind
    assert says in ran.error.message  # type: ignore[union-attr]
    assert len(ran.error.message) < 40_000  # type: ignore[union-attr]
    assert await failed_tasks(ran.handle) == []


async def test_an_output_that_a_repair_made_too_long_is_returned_to_the_model(at: Lab) -> None:
    """The next answer is the output."""
    good = Turn(calls=[("Letter", '{"text": "Dear Ada"}', None)])
    ran = await at.run([calls(1, "Letter", lambda _: "{}"), good], agent="writer")
    assert (ran.result["status"], ran.result["output"]) == ("completed", {"text": "Dear Ada"})
    assert ran.calls[0]["result"]["error"]["kind"] == "invalid_output"


async def failed_tasks(handle: WorkflowHandle[Any, Any]) -> list[str]:
    """The failures of workflow tasks, which Temporal retries without end."""
    return [
        event.workflow_task_failed_event_attributes.failure.message
        async for event in handle.fetch_history_events()
        if event.HasField("workflow_task_failed_event_attributes")
        and event.workflow_task_failed_event_attributes.cause not in GIVEN_AGAIN
    ]
