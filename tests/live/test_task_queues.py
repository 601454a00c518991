"""Tools on another task queue: another worker has their code, the worker of the agent has the policy."""

from __future__ import annotations

from operator import itemgetter

import pytest

from mulligan.activities.run_data.conversation_cache import ConversationCache
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN


@pytest.fixture(scope="module")
async def gpu(lab: Lab):
    """A worker on the task queue `gpu` that has the tools but not the agents."""
    async with running_worker(lab.client, load(["tests.support.gpu_tools"]), lab.telemetry, "gpu"):
        yield


@pytest.mark.usefixtures("gpu")
async def test_a_tool_runs_on_its_own_task_queue_and_a_missing_one_is_reported_to_the_model(lab: Lab) -> None:
    """It gets the resources of its own worker. A tool that is not deployed, or has no worker, gets an error result."""
    named = [("embed", '{"text": "abc"}'), ("not_deployed", "{}"), ("deserted", "{}"), ("now", "{}")]
    ran = await lab.run([Turn(calls=[(name, raw, None) for name, raw in named]), DONE], agent="far")
    assert ran.result["status"] == "completed"
    embedded, missing, deserted, now = (each["result"] for each in ran.calls)
    assert (embedded["text"], now["text"]) == ("[3]", "noon")
    assert missing["error"]["kind"] == "unknown_tool"
    assert "task queue 'gpu' does not know it" in missing["text"]
    assert deserted["error"]["kind"] == "tool_lost"
    assert "no worker of task queue 'nobody-is-here' took it within 0.5 s" in deserted["text"]
    assert sorted(RAN[ran.id], key=itemgetter(0)) == [
        ("embed", {"text": "abc", "with": "a GPU", "agent": "far"}),
        ("now", {}),
    ]
    recovered = [span for span in ran.spans_of("ai.toolCall") if span.attributes["mulligan.recovered"]]
    assert sorted(span.attributes["error.type"] for span in recovered) == ["tool_lost", "unknown_tool"]
    assert len(ran.spans_of("ai.toolCall")) == 4


@pytest.mark.usefixtures("gpu")
async def test_a_worker_without_the_agent_caches_no_results(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its model calls never run there, so the cached results would not be used."""
    held: list[str] = []
    monkeypatch.setattr(ConversationCache, "put_result", lambda self, key, result: held.append(result.name))
    ran = await lab.run([Turn(calls=[("embed", '{"text": "abc"}', None), ("now", "{}", None)]), DONE], agent="far")
    assert [call["result"]["text"] for call in ran.calls] == ["[3]", "noon"]
    assert held == ["now"]


@pytest.mark.usefixtures("gpu")
async def test_invalid_input_is_rejected_before_it_is_sent_to_another_task_queue(lab: Lab) -> None:
    """The worker of the agent validates it."""
    ran = await lab.run([call("embed", '{"txt": 1}'), call("embed", "{'text': 'a',}"), DONE], agent="far")
    assert ran.calls[0]["result"]["error"]["kind"] == "invalid_arguments"
    assert [arguments["text"] for _, arguments in RAN[ran.id]] == ["a"]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("agent", "text", "told"),
    [
        ("far", "refuse", "The GPU is hot."),
        ("far_picky", "break", "raised ZeroDivisionError"),
        ("far_picky", "refuse", None),
        ("far_strict", "break", None),
    ],
)
async def test_the_policy_of_the_agent_applies_to_tools_on_other_workers(
    lab: Lab, agent: str, text: str, told: str | None
) -> None:
    """Although the worker that ran the tool does not know the agent."""
    ran = await lab.run([call("embed", f'{{"text": "{text}"}}'), DONE], agent=agent)
    [span] = ran.spans_of("ai.toolCall")
    assert (span.status, span.attributes["mulligan.recovered"]) == ("ERROR", told is not None)
    if told is None:
        assert type(ran.error).__name__ == "ToolExecutionError"
    else:
        assert told in ran.calls[0]["result"]["text"]
        assert ran.result["recovered_failures"] == 1
