"""What a provider does itself: its calls and citations in steps, events and on spans; paused answers; refusals; kills."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from mulligan.devserver import DevServer
from tests.support.lab import Lab
from tests.support.openai_turn import Failure, Turn
from tests.support.worker_process import worker_process
from tests.unit.test_paused_answers import CITED, FOUND, USE, message, text

PAUSED = message(text("I look."), USE, stop="pause_turn")
CONTINUED = message(FOUND, text("Otters swim.", citations=[CITED]))
HOSTED = [{"id": "srv_1", "name": "web_search", "arguments": '{"query": "otters"}', "status": "completed"}]


def body(answer: dict[str, Any]) -> Turn:
    return Turn(failure=Failure(status=200, body=answer))


def is_continued(request: dict[str, Any]) -> bool:
    return bool(request["messages"][-1]["role"] == "assistant")


async def test_a_paused_answer_is_one_step_with_its_hosted_calls_and_citations(lab: Lab) -> None:
    ran = await lab.run(lambda request, nth: body(CONTINUED if is_continued(request) else PAUSED), api="anthropic")
    assert (ran.result["output"], ran.result["steps"]) == ("I look.\n\nOtters swim.", 1)
    assert len(ran.requests) == 2
    assert ran.result["usage"]["input_tokens"] == 20
    [step] = ran.steps
    cited = {"url": "https://a", "title": "Otters", "text": "Otters swim.", "start": 9, "end": 21}
    assert (step["hosted_calls"], step["citations"]) == (HOSTED, [cited])
    events = (await ran.handle.query("events", args=[0, 100]))["events"]
    [answered] = [event for event in events if event["type"] == "answered"]
    assert (answered["hosted_calls"], answered["citations"]) == (HOSTED, [cited])
    [chat] = [span for span in ran.spans if span.name.startswith("chat ")]
    assert list(chat.attributes["mulligan.hosted_calls"]) == ["web_search completed"]


async def test_a_worker_that_is_killed_while_an_answer_is_paused_leaves_one_step(lab: Lab, temporal: DevServer) -> None:
    queue = f"paused-{uuid.uuid4().hex[:6]}"
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
    killed, released = asyncio.Event(), asyncio.Event()

    def script(request: dict[str, Any], nth: int) -> Turn:
        if not is_continued(request):
            return body(PAUSED)
        if not killed.is_set():
            killed.set()
            return Turn(failure=Failure(status=500, wait=released))
        return body(CONTINUED)

    handle = await at.start(script, api="anthropic")
    async with worker_process("tests.support.shop_agents", queue, temporal) as first:
        await killed.wait()
        first.kill()
        assert await first.wait() == -9
    released.set()
    async with worker_process("tests.support.shop_agents", queue, temporal):
        ran = await at.look(handle)
    assert (ran.result["output"], ran.result["steps"]) == ("I look.\n\nOtters swim.", 1)
    assert [is_continued(request.json) for request in ran.requests] == [False, True, False, True]
    assert ran.steps[0]["hosted_calls"] == HOSTED


async def test_the_reason_of_a_refusal_is_the_reason_of_the_result(lab: Lab) -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "No."}
    ran = await lab.run(lambda request, nth: body(message(stop="refusal", stop_details=details)), api="anthropic")
    assert (ran.result["status"], ran.result["output"], ran.result["reason"]) == ("refused", "No.", "cyber")


async def test_an_answer_without_text_or_call_is_called_empty(lab: Lab) -> None:
    """Also one in which the provider has searched: the model is asked to answer, and has the results of its search."""

    def script(request: dict[str, Any], nth: int) -> Turn:
        return body(message(USE, FOUND)) if nth == 0 else Turn(text="Otters swim.")

    ran = await lab.run(script, api="anthropic")
    assert ran.result["output"] == "Otters swim."
    assert ran.steps[0]["error"]["kind"] == "missing_output"
    assert ran.rejected == ["Your answer has no text and no call. Call a tool, or give your final answer."]
    assert ran.requests[1].json["messages"][1]["content"] == [USE, FOUND]
