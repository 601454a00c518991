"""Failures of the model endpoint: which are retried, which are not, and the error of a run that gives up."""

from __future__ import annotations

import asyncio

import pytest

from mulligan import ModelRequestError, ModelUnavailableError
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn


@pytest.mark.parametrize(
    "failures",
    [
        [Failure(status=429, headers={"Retry-After": "0.1"})],
        [Failure(status=503, headers={"retry-after-ms": "50"}), Failure(status=408, headers={"retry-after-ms": "50"})],
        [Failure(status=200, body="<html>busy</html>")],
        [Failure(drop="in_body")],
    ],
    ids=["limited", "down, then slow", "html", "dropped"],
)
async def test_a_temporary_model_failure_is_retried_with_a_span_for_each_attempt(
    lab: Lab, failures: list[Failure]
) -> None:
    """Temporal retries the activity; the workflow does not notice."""
    ran = await lab.run([call("now"), Turn(text="done", fail_first=failures)])
    assert ran.result["output"] == "done"
    assert ran.result["steps"] == 2
    chats = [span for span in ran.spans if span.name.startswith("chat ") and span.attributes["mulligan.step"] == 2]
    assert [span.status for span in chats] == ["ERROR"] * len(failures) + ["UNSET"]
    assert [span.attributes["mulligan.attempt"] for span in chats] == list(range(1, len(failures) + 2))
    assert {span.kind for span in chats} == {"CLIENT"}


async def test_a_permanent_4xx_fails_the_run_once_with_the_message_of_the_provider(lab: Lab) -> None:
    """It is not retried."""
    body = {"error": {"message": "no such model", "type": "invalid_request_error", "param": None, "code": None}}
    ran = await lab.run([Turn(failure=Failure(status=404, body=body, headers={"x-request-id": "req_7"}))])
    assert isinstance(ran.error, ModelRequestError)
    assert (ran.error.status, ran.error.request_id) == (404, "req_7")
    assert "no such model" in ran.error.message
    assert len(ran.requests) == 1
    [finish] = ran.spans_of("agent.finish")
    assert (finish.status, finish.attributes["error.type"]) == ("ERROR", "ModelRequestError")


async def test_a_model_that_stays_down_beyond_model_patience_fails_the_run(lab: Lab) -> None:
    """`model_patience` is 3 s for this agent. The error is `ModelUnavailableError`."""
    ran = await lab.run([Turn(failure=Failure(status=500, headers={"Retry-After": "1"}))])
    assert isinstance(ran.error, ModelUnavailableError)
    assert "500" in ran.error.message
    assert len(ran.requests) > 1
    at_once = await lab.run([Turn(failure=Failure(status=500, headers={"Retry-After": "60"}))])
    assert isinstance(at_once.error, ModelUnavailableError)
    assert "was unavailable: 1 attempt in 0 s; the last: " in at_once.error.message


async def test_a_429_holds_back_the_other_calls_to_that_model_but_not_to_other_models(lab: Lab) -> None:
    """The other calls of the worker to that model are not sent, and end with a retryable error."""
    limits = [Turn(failure=Failure(status=429, headers={"Retry-After": "50"}))]
    first = await lab.start(limits, agent="strict")
    model = f"openai-chat:{first.id}"
    await lab.model.wait_for_requests(1, first.id)
    others = [await lab.start([], agent="strict", model=model) for _ in range(5)]
    told: list[str] = []
    while told != ["ModelLimited"] * 5:
        await asyncio.sleep(0.05)
        described = [(await other.describe()).raw_description.pending_activities for other in others]
        told = [each.last_failure.application_failure_info.type for run in described for each in run]
    assert len(lab.model.requests_of(first.id)) == 1
    assert (await lab.run([call("now"), DONE], agent="strict")).result["status"] == "completed"
    for handle in [first, *others]:
        await handle.terminate()


async def test_reasoning_items_are_sent_back_to_the_responses_api_with_store_false(lab: Lab) -> None:
    """Only the fields that are allowed in the input are sent."""
    from tests.support.openai_turn import Reasoning

    ran = await lab.run(
        [Turn(reasoning=[Reasoning()], calls=[("now", "{}", None)]), Turn(reasoning=[Reasoning()], text="done")],
        api="openai",
    )
    items = ran.requests[1].json["input"]
    assert [item["type"] if "type" in item else item["role"] for item in items][-3:] == [
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert ran.requests[1].json["store"] is False
    assert ran.result["usage"]["input_tokens"] == 20
    assert DONE.text == ran.result["output"]
