"""The workflows of `examples`, as a user would start them."""

from __future__ import annotations

import asyncio
import sys
import uuid

import pytest

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.conftest import Lab
from tests.support.http_server import http_server


@pytest.mark.parametrize(("letter", "decision"), [("The lamp of order 7 broke.", "refunded"), ("Order 8!", "waits")])
async def test_the_refund_desk_example_decides_by_the_typed_output(lab: Lab, letter: str, decision: str) -> None:
    """The second turn continues the conversation of the first."""
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["examples.refund_desk"]), lab.telemetry, queue):
        answer = await lab.client.execute_workflow("RefundDesk", letter, id=queue, task_queue=queue)
    assert answer["decision"] == decision
    assert answer["text"] == "Thank you for your letter; we have looked at it with care."
    lab.telemetry.flush()
    [trace] = {span.trace_id for span in lab.otlp.spans() if span.attributes.get("temporal.workflow_id") == queue}
    failed = [span for span in lab.otlp.spans(trace) if span.attributes.get("error.type") == "invalid_output"]
    assert any(span.attributes["ai.toolCall.name"] == "Letter" for span in failed)


async def test_the_buyer_example_asks_a_question_and_an_approval(lab: Lab) -> None:
    """As in docs/people.md."""
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    given = {"agent": "buyer", "prompt": "We need ten lamps."}
    async with running_worker(lab.client, load(["examples.buyer"]), lab.telemetry, queue):
        handle = await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
        for update, said in (("answer", {"text": "Green."}), ("decide", {"decision": "approve"})):
            while not (waits := await handle.query("pending")):
                await asyncio.sleep(0.02)
            await handle.execute_update(update, {"call_id": waits[0]["call_id"], **said})
        assert (await handle.result())["output"] == "Ordered: 10 lamps, green, for 240 euros."


async def test_the_librarian_example_asks_for_approval_of_an_mcp_tool(lab: Lab) -> None:
    """As in docs/mcp.md."""
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    given = {"agent": "librarian", "prompt": "Tidy up."}
    async with running_worker(lab.client, load(["examples.librarian"]), lab.telemetry, queue):
        handle = await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
        while not (waits := await handle.query("pending")):
            await asyncio.sleep(0.02)
        assert (waits[0]["tool"], waits[0]["arguments"]) == ("notes__delete_note", {"title": "old prices"})
        await handle.execute_update("decide", {"call_id": waits[0]["call_id"], "decision": "approve"})
        assert (await handle.result())["output"] == "Deleted: old prices."
        steps = (await handle.query("steps", args=[0, 10]))["steps"]
    assert steps[0]["tool_calls"][0]["result"]["text"] == "old prices\nopening hours"


async def test_the_openai_client_example_prints_the_story_of_an_agent(lab: Lab) -> None:
    """As in docs/serving-openai.md: with the calls of the run, and the mistake that it recovered from."""
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    worker = running_worker(lab.client, load(["examples.storyteller"]), lab.telemetry, queue)
    async with worker, http_server(lab.client, task_queue=queue) as door:
        program = (sys.executable, "-m", "examples.openai_client", door.url)
        process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
    printed = out.decode()
    assert process.returncode == 0
    assert [line for line in printed.splitlines() if line.startswith("[")] == [
        "[look_outside: failed]",
        "[look_outside: completed]",
    ]
    assert printed.endswith("That was all.")
