"""Every kind of tool in a script of code mode, and what reaches a run in the middle of one."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.live.test_code_mode import size_of
from tests.live.test_continue_while_waiting import runs_of, write
from tests.promise.test_people import pending
from tests.support.lab import DONE, Lab, Ran
from tests.support.openai_turn import Turn, Usage
from tests.support.script_runs import script, text_of

MODULE = "tests.support.code_tool_agents"


@pytest.fixture(scope="module")
async def at(lab: Lab) -> AsyncIterator[Lab]:
    there = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"code-{uuid.uuid4().hex[:6]}")
    async with running_worker(there.client, load([MODULE]), lab.telemetry, there.task_queue):
        yield there


async def run(at: Lab, code: str, agent: str = "tool_coder", **more: Any) -> Ran:
    return await at.run([script(code), DONE], agent=agent, **more)


async def waits_for(handle: Any, kind: str) -> None:
    while ((await handle.query("progress"))["waiting_for"] or {}).get("kind") != kind:
        await asyncio.sleep(0.05)


async def test_a_deferred_call_of_a_script_waits_for_its_result(at: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also over continue-as-new; the script gets the result as a value."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 60)
    code = "a = await order('blue')\nprint(a['id'] + 1)\nawait note(a['room'])"
    handle = await at.start([script(code), DONE], agent="tool_coder")
    await waits_for(handle, "callback")
    await write(handle, [f"message {n}" for n in range(40)])
    assert await runs_of(at, handle) > 1
    await handle.execute_update("complete", {"call_id": "s.1", "result": {"id": 7, "room": "blue"}})
    ran = await at.look(handle)
    assert text_of(ran) == "8\nnoted blue"
    assert ran.calls[0]["calls"][0]["deferred"]["started"] == "ordered blue"


async def test_errors_and_time_limits_of_deferred_calls_raise(at: Lab) -> None:
    code = (
        "import asyncio\nfor call in (order('x'), forget()):\n    try:\n        await call\n"
        "    except ToolError as error:\n        print(error)"
    )
    handle = await at.start([script(code), DONE], agent="tool_coder")
    await waits_for(handle, "callback")
    await handle.execute_update("complete", {"call_id": "s.1", "error": "No room."})
    ran = await at.look(handle)
    first, second = text_of(ran).splitlines()
    assert first == "No room."
    assert "`forget` has started, but its result did not come within 1 s" in second
    kinds = [each["result"]["error"]["kind"] for each in ran.calls[0]["calls"]]
    assert (kinds, ran.result["recovered_failures"]) == (["tool_error", "tool_timeout"], 2)


async def test_a_sub_agent_called_by_a_script_is_a_run_of_its_own(at: Lab) -> None:
    code = (
        "print(await code_helper('Help.'))\ntry:\n    await code_lost('Fail.')\n"
        "except ToolError as error:\n    print('failed', str(error)[:20])"
    )
    ran = await run(at, code)
    assert text_of(ran).startswith("I have noted it.\nfailed ")
    helped, failed = ran.calls[0]["calls"]
    assert (helped["run"]["status"], failed["run"]["status"]) == ("completed", "max_steps")
    assert failed["result"]["error"]["kind"] == "tool_exception"
    assert ran.result["sub_runs"] == 2
    below = [each for each in ran.spans_of("ai.toolCall") if each.attributes["gen_ai.tool.name"] == "note"]
    assert len(below) == 2, "in the trace of the run"


async def test_tools_of_mcp_servers_are_functions(at: Lab) -> None:
    code = (
        "print(await lent__echo('hi'))\nprint((await lent__structured()))\ntry:\n    await lent__fail()\n"
        "except ToolError as error:\n    print('failed')"
    )
    ran = await run(at, code)
    assert text_of(ran).splitlines()[0] == "hi", text_of(ran)
    assert text_of(ran).splitlines()[-1] == "failed"
    assert [each["name"] for each in ran.calls[0]["calls"]] == ["lent__echo", "lent__structured", "lent__fail"]
    spans = [each for each in ran.spans_of("ai.toolCall") if each.attributes.get("mulligan.mcp.server") == "lent"]
    assert len(spans) == 3


async def test_of_images_and_files_a_script_gets_the_text(at: Lab) -> None:
    """The steps have them as they are: people see what the script did not."""
    ran = await run(at, "print(await photo())\nprint(await lent__picture())\n(await portrait()).upper()")
    assert text_of(ran).startswith("Here:"), text_of(ran)
    parts = ran.calls[0]["calls"][0]["result"]["content"]
    assert [(each["type"], each.get("media_type")) for each in parts] == [
        ("text", None), ("image", "image/png"), ("file", "application/pdf"),
    ]  # fmt: skip
    assert "png" not in text_of(ran).partition("\n")[0]


async def test_a_message_is_read_after_the_script(at: Lab) -> None:
    code = "print(await refund(1))"
    handle = await at.start([script(code), DONE], agent="tool_coder")
    await pending(handle)
    await handle.execute_update("send_message", {"text": "Hurry."})
    await handle.execute_update("decide", {"call_id": "s.1", "decision": "approve"})
    ran = await at.look(handle)
    messages = (await handle.query("messages"))["messages"]
    assert [each["role"] for each in messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert messages[3]["text"] == "Hurry."
    assert text_of(ran) == "refunded 1\n"


async def test_a_budget_of_tokens_ends_the_run_after_the_script(at: Lab) -> None:
    """A script is one step: what it calls is carried out, and no further step begins."""
    turn = replace(script("for n in range(3):\n    await note(str(n))\n'done'"), usage=Usage(input_tokens=2_000))
    ran = await at.run([turn, DONE], agent="thrifty_coder")
    assert (ran.result["status"], ran.result["steps"]) == ("max_tokens", 1)
    assert [each["result"]["text"] for each in ran.calls[0]["calls"]] == ["noted 0", "noted 1", "noted 2"]
    assert text_of(ran) == "done"


async def test_a_stop_and_a_cancellation_end_what_a_script_waits_for(at: Lab) -> None:
    stopped = await at.start([script("await order('x')"), DONE], agent="tool_coder")
    cancelled = await at.start([script("await code_helper('Help.')\nawait order('x')"), DONE], agent="tool_coder")
    for handle in (stopped, cancelled):
        await waits_for(handle, "callback")
    await stopped.execute_update("stop", {"reason": "Enough."})
    await cancelled.cancel()
    ran = await at.look(stopped)
    assert ran.result["status"] == "stopped"
    assert ran.result["recovered_failures"] == 0
    assert ran.calls[0]["calls"][0]["result"]["error"]["kind"] == "denied"
    with pytest.raises(WorkflowFailureError):
        await cancelled.result()
    assert (await cancelled.query("progress"))["status"] == "cancelled"


async def test_a_script_is_one_step_of_max_steps(at: Lab) -> None:
    ran = await at.run([script("for n in range(3):\n    await note(str(n))\n'done'"), DONE], agent="brief_coder")
    assert (ran.result["status"], ran.result["steps"], ran.result["tool_calls"]) == ("max_steps", 1, 4)
    assert text_of(ran) == "done"


async def test_a_call_of_a_script_takes_at_most_twice_the_history_of_a_call_of_the_model(at: Lab) -> None:
    """Of the call alone, with equal values: calls of one answer, so that no model call is counted with them.

    Their results come one after the other, as a script's do: results that come at the same time share a workflow task.
    """
    for chars in (1, 10_000):
        text, of_scripts, of_answers = "x" * chars, [], []
        for calls in (2, 12):
            code = f"for n in range({calls}):\n    await note_alone('{text}' + str(n))"
            of_scripts.append(await size_of(at, await run(at, code)))
            answer = Turn(calls=[("note_alone", json.dumps({"text": f"{text}{n}"}), f"n{n}") for n in range(calls)])
            of_answers.append(await size_of(at, await at.run([answer, DONE], agent="plain_noter")))
        in_script, ordinary = (of_scripts[1] - of_scripts[0]) / 10, (of_answers[1] - of_answers[0]) / 10
        assert in_script <= 2 * ordinary, (chars, in_script, ordinary)
