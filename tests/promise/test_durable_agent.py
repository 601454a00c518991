"""DurableAgent in a user's own workflow."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from typer.testing import CliRunner

from mulligan.cli.app import app
from mulligan.devserver import DevServer
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.temporal import environment_of


async def test_a_second_turn_continues_the_conversation_of_its_agent_in_one_trace(
    lab: Lab, temporal: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each agent has its own conversation. `mulligan show` prints what all turns of all agents have used."""
    run_id = f"own-{uuid.uuid4().hex[:8]}"
    lab.model.script(run_id, [call("now"), Turn(text="It is here."), call("clik"), Turn(text="So is 8.")])
    lab.model.script(run_id + "-b", [DONE])
    models = [f"openai-chat:{run_id}", f"openai:{run_id}-b"]
    handle = await lab.client.start_workflow("TwoTurns", models, id=run_id, task_queue="agents")
    first, other, again, trace, trace_again = await handle.result()
    assert (first, other, again, trace) == ("It is here.", "done", "So is 8.", trace_again)
    progress, *each = [await handle.query("progress", *conversation) for conversation in ((), ("0",), ("1",))]
    usage = progress["all_turns"]["usage"]
    steps = [step for key in ("0", "1") for step in (await handle.query("steps", args=[0, 100, key]))["steps"]]
    assert usage["input_tokens"] == sum(step["usage"]["input_tokens"] for step in steps) > 0
    assert usage["output_tokens"] == sum(step["usage"]["output_tokens"] for step in steps)
    assert usage["input_tokens"] > sum(one["usage"]["input_tokens"] for one in each)  # those are of the newest turns
    for name, value in environment_of(temporal).items():
        monkeypatch.setenv(name, value)
    shown = await asyncio.to_thread(CliRunner().invoke, app, ["show", run_id], catch_exceptions=False)
    used = f"{usage['input_tokens']} + {usage['output_tokens']} tokens, price unknown"
    assert f"{len(steps)} steps, {used}" in shown.stdout.splitlines()
    requests = lab.model.requests_of(run_id)
    assert [request.refusal for request in requests if request.refusal] == []
    roles = [message["role"] for message in requests[-1].json["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool"]
    lab.telemetry.flush()
    names = [span.name for span in lab.otlp.spans(trace_id=trace) if not span.parent_span_id]
    assert sorted(names) == ["invoke_agent asked", "invoke_agent shop", "invoke_agent shop"]


async def test_a_turn_may_be_cut_short_by_its_workflow(lab: Lab) -> None:
    """The next one works: each call has its result, and says what is known of it."""
    run_id = f"own-{uuid.uuid4().hex[:8]}"
    calls = [
        ("refund", '{"order": 7, "amount": {"euros": 2}}', "c1"),
        ("nap", '{"seconds": 0}', "c2"),
        ("nap", '{"seconds": 60}', "c3"),
    ]
    lab.model.script(run_id, [Turn(calls=calls), DONE])
    handle = await lab.client.start_workflow("TimedTurn", f"openai-chat:{run_id}", id=run_id, task_queue="agents")
    assert await handle.result() == ["TimeoutError", "done"]
    requests = lab.model.requests_of(run_id)
    assert [request.refusal for request in requests if request.refusal] == []
    messages = (await handle.query("messages", args=[0, 100]))["messages"]
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "tool",
        "user",
        "assistant",
    ]
    results = {message["call_id"]: message for message in messages if message["role"] == "tool"}
    assert [each["error"] and each["error"]["kind"] for each in results.values()] == ["denied", None, "tool_lost"]
    assert "nobody had decided on it" in results["c1"]["text"]
    assert await handle.query("pending") == []
