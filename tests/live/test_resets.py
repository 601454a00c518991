"""After `temporal workflow reset`, or with a reused id, cached data of the earlier run is never sent to a model."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowHandle

from mulligan.activities import heartbeat
from mulligan.activities.models.openai.openai_chat import OpenAIChat
from mulligan.activities.run_data.conversation_cache import CachedConversation, ConversationCache, Key
from mulligan.run_input import RunInput
from mulligan.values import ToolMessage
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.changing_results_agent import GATES, KEYS
from tests.support.lab import DONE, Lab
from tests.support.openai_server import Recorded
from tests.support.openai_turn import Turn

LOOK = Turn(calls=[("look", "{}", None)])
TWO_LOOKS = Turn(calls=[("look", '{"n": 1}', None), ("look", '{"n": 2}', None)])


@pytest.fixture(scope="module")
async def at(lab: Lab) -> AsyncIterator[Lab]:
    """A separate worker, so that no other test changes its cache."""
    queue = f"changing-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["tests.support.changing_results_agent"]), lab.telemetry, queue):
        yield Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)


async def points_of(handle: WorkflowHandle[Any, Any]) -> list[int]:
    """The event ids to which a run can be reset: its completed workflow tasks."""
    done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return [event.event_id async for event in handle.fetch_history_events() if event.event_type == done]


async def start(at: Lab, run_id: str, script: Any, agent: str = "changing") -> WorkflowHandle[Any, Any]:
    """Start a run with that id. The handle is of this run, not of later ones with the same id."""
    at.model.script(run_id, script)
    given = {"agent": agent, "prompt": "Go.", "model": f"openai-chat:{run_id}"}
    handle = await at.client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=at.task_queue)
    return at.client.get_workflow_handle(run_id, run_id=handle.first_execution_run_id)


async def reset(at: Lab, handle: WorkflowHandle[Any, Any], event_id: int) -> WorkflowHandle[Any, Any]:
    """Reset a run as `temporal workflow reset` does; return the handle of the new run."""
    request = ResetWorkflowExecutionRequest(
        namespace=at.client.namespace,
        workflow_execution=WorkflowExecution(workflow_id=handle.id, run_id=handle.run_id or ""),
        reason="a test",
        workflow_task_finish_event_id=event_id,
        request_id=str(uuid.uuid4()),
    )
    answer = await at.client.workflow_service.reset_workflow_execution(request, retry=True)
    return at.client.get_workflow_handle(handle.id, run_id=answer.run_id)


async def all_prompts(handle: WorkflowHandle[Any, Any]) -> list[list[Any]]:
    """The expected prompt of each model call: the messages before each answer of the conversation."""
    messages = (await handle.query("messages", args=[0, 1000]))["messages"]
    parsed = RunInput(agent="changing", messages=messages).messages
    items = [{"role": "system", "content": "You look."}]
    found = []
    for message in parsed:
        if message.role == "assistant":
            found.append([*items])
        items += [json.loads(item) for item in OpenAIChat().encode(message)]
    return found


def prompts_of(requests: list[Recorded]) -> list[Any]:
    return [request.json["messages"] for request in requests]


async def assert_no_second_attempt(handle: WorkflowHandle[Any, Any]) -> None:
    """Assert that no activity had a second attempt, which would hide a wrong prompt."""
    async for event in handle.fetch_history_events():
        assert event.activity_task_started_event_attributes.attempt <= 1


async def test_after_a_reset_to_any_task_each_prompt_is_that_of_the_new_run(at: Lab) -> None:
    """The tool returns another result each time, so that a prompt with data of the old run would be noticed."""
    first = await start(at, f"run-{uuid.uuid4().hex[:8]}", [LOOK, TWO_LOOKS, LOOK, DONE])
    await first.result()
    past = await all_prompts(first)
    assert prompts_of(at.model.requests_of(first.id)) == past
    points = await points_of(first)
    assert len(points) >= 8
    for point in points:
        before = len(at.model.requests_of(first.id))
        again = await reset(at, first, point)
        assert (await again.result())["output"] == "done"
        now = prompts_of(at.model.requests_of(first.id))[before:]
        assert now == (await all_prompts(again))[len(past) - len(now) :]
        await assert_no_second_attempt(again)
    assert [request.refusal for request in at.model.requests_of(first.id) if request.refusal] == []


@dataclass
class Remembered:
    """Records what the worker caches: (workflow id, text of a result, or of the last message of a conversation)."""

    texts: list[tuple[str, str]]

    async def wait_for(self, begin: str, run_id: str) -> None:
        while not any(key == run_id and text.startswith(begin) for key, text in self.texts):
            await asyncio.sleep(0.02)


@pytest.fixture
def remembered(monkeypatch: pytest.MonkeyPatch) -> Remembered:
    looking, hold, put = Remembered([]), ConversationCache.put_result, ConversationCache.put

    def held(self: ConversationCache, key: Key, result: ToolMessage) -> None:
        hold(self, key, result)
        looking.texts.append((key[0], result.text))

    def kept(self: ConversationCache, key: Key, prefix: CachedConversation) -> None:
        put(self, key, prefix)
        looking.texts.append((key[0], prefix.messages[-1].text))

    monkeypatch.setattr(ConversationCache, "put_result", held)
    monkeypatch.setattr(ConversationCache, "put", kept)
    # A heartbeat of the run that was reset would cancel its activity, which is to end late.
    monkeypatch.setattr(heartbeat, "INTERVAL", 600)
    return looking


async def test_a_late_tool_result_of_the_run_before_a_reset_is_never_sent(at: Lab, remembered: Remembered) -> None:
    """The reset run is terminated, but its tool still runs; its result is cached with the id of the new call."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    late, second = Event(), Event()
    GATES.update({(run_id, 1, 1): late, (run_id, 2, 2): second})
    handle = await start(at, run_id, [TWO_LOOKS, LOOK, DONE])
    await remembered.wait_for("Look 1 at 2", run_id)
    _opened, _called, tools_scheduled, *_ = await points_of(handle)
    again = await reset(at, handle, tools_scheduled)
    await remembered.wait_for("Look 2 at 1", run_id)
    late.set()
    await remembered.wait_for("Look 1 at 1", run_id)
    second.set()
    assert (await again.result())["output"] == "done"
    prompts = await all_prompts(again)
    assert [item["content"][:11] for item in prompts[1][-2:]] == ["Look 2 at 1", "Look 2 at 2"]
    assert prompts_of(at.model.requests_of(run_id)) == prompts
    await assert_no_second_attempt(again)


async def test_a_late_answer_of_the_run_before_a_reset_is_never_sent(at: Lab, remembered: Remembered) -> None:
    """The model call of the reset run is answered after that of the new run, and caches its own conversation."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    answered = asyncio.Event()
    answers = [
        Turn(text="the past", calls=[("look", "{}", None)], wait=answered),
        Turn(text="the present", calls=[("look", '{"n": 2}', None)]),
    ]
    gate = GATES[run_id, 2, 1] = Event()
    handle = await start(at, run_id, lambda _, nth: answers.pop(0) if nth == 1 else DONE if nth == 3 else LOOK)
    await at.model.wait_for_requests(2, run_id)
    *_, called = await points_of(handle)
    again = await reset(at, handle, called)
    await remembered.wait_for("the present", run_id)
    answered.set()
    await remembered.wait_for("the past", run_id)
    gate.set()
    assert (await again.result())["output"] == "done"
    prompts = await all_prompts(again)
    assert prompts[2][-2]["content"] == "the present"
    assert prompts_of(at.model.requests_of(run_id)) == [prompts[0], prompts[1], *prompts[1:]]
    await assert_no_second_attempt(again)


async def test_a_run_with_a_reused_id_does_not_see_results_of_the_earlier_run(at: Lab) -> None:
    """Both runs make the same calls with the same call ids."""
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    for times in (1, 2, 3):
        before = len(at.model.requests_of(run_id))
        handle = await start(at, run_id, [LOOK, TWO_LOOKS, DONE])
        assert (await handle.result())["output"] == "done"
        prompts = await all_prompts(handle)
        assert f"Look {times} at 2" in prompts[-1][-1]["content"]
        assert prompts_of(at.model.requests_of(run_id))[before:] == prompts
        await assert_no_second_attempt(handle)


async def test_an_id_that_the_provider_repeats_after_a_reset_has_another_idempotency_key_for_another_call(
    at: Lab,
) -> None:
    """The same call has the same key as before. A guard sees the key of its call's tool."""

    def paying(to: str) -> list[Turn]:
        return [Turn(calls=[("pay", json.dumps({"to": to}), "call_1")]), DONE]

    handle = await start(at, f"run-{uuid.uuid4().hex[:8]}", paying("ada"), agent="payer")
    await handle.result()
    opened, *_ = await points_of(handle)
    for to in ("bob", "ada"):
        at.model.script(handle.id, paying(to))
        handle = await reset(at, handle, opened)
        await handle.result()
    keys = [(to, key) for workflow_id, to, key in KEYS if workflow_id == handle.id]
    assert [to for to, _ in keys] == ["ada", "ada", "bob", "bob", "ada", "ada"]
    assert len(set(keys)) == len({key for _, key in keys}) == 2
