"""The workflows of `examples`, as a user would start them."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import uuid
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.app_command import app_command  # noqa: F401 - a fixture
from tests.support.batch_server import BatchServer
from tests.support.docs_block import docs_block
from tests.support.http_server import http_server
from tests.support.lab import Lab
from tests.support.openai_turn import Turn, responses_reply


async def waits_of(handle: Any) -> list[dict[str, Any]]:
    """The calls of a run that wait for a person, as soon as there are any."""
    while not (waits := await handle.query("pending")):
        assert (await handle.describe()).status == WorkflowExecutionStatus.RUNNING
        await asyncio.sleep(0.02)
    return list(waits)


@pytest.mark.parametrize(
    ("letter", "decides", "decision", "text"),
    [
        ("The lamp of order 7 broke.", None, "refunded", "We are sorry, and have paid 40 euros back."),
        ("Order 8!", "approve", "refunded", "We are sorry, and have paid 250 euros back."),
        ("Order 8!", "deny", "denied", "We are sorry, but we cannot pay this back."),
    ],
)
async def test_the_refund_desk_example_asks_a_person_about_large_refunds(
    lab: Lab, letter: str, decides: str | None, decision: str, text: str
) -> None:
    """Code decides by the typed output, after the model has corrected a mistake in it."""
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["examples.refund_desk"]), lab.telemetry, queue):
        handle = await lab.client.start_workflow("RefundDesk", letter, id=queue, task_queue=queue)
        if decides:
            [wait] = await waits_of(handle)
            assert (wait["agent"], wait["arguments"]) == ("clerk", {"order": 8, "euros": 250})
            await handle.execute_update("decide", {"call_id": wait["call_id"], "decision": decides})
        answer = await handle.result()
    assert (answer["decision"], answer["text"]) == (decision, text)
    lab.telemetry.flush()
    [trace] = {span.trace_id for span in lab.otlp.spans() if span.attributes.get("temporal.workflow_id") == queue}
    failed = [span for span in lab.otlp.spans(trace) if span.attributes.get("error.type") == "invalid_output"]
    assert any(span.attributes["ai.toolCall.name"] == "Letter" for span in failed)


async def test_the_research_team_example_publishes_what_quarantined_researchers_found(lab: Lab) -> None:
    """No word of a page reaches the editor, who may publish: had one, `publish` would be denied."""
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    given = {"agent": "editor", "prompt": "How are the herons?"}
    async with running_worker(lab.client, load(["examples.research_team"]), lab.telemetry, queue):
        handle = await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
        result = await handle.result()
        [first, published, _] = (await handle.query("steps", args=[0, 10]))["steps"]
        messages = (await handle.query("messages"))["messages"]
        sub_run = await lab.client.get_workflow_handle(first["tool_calls"][2]["run"]["id"]).result()
    findings = [json.loads(call["result"]["text"]) for call in first["tool_calls"]]
    assert [(each["species"], each["pairs"], each["trend"]) for each in findings] == [
        ("grey", 260_000, "rising"),
        ("purple", 60_000, "falling"),
        ("squacco", 20_000, "stable"),
    ]
    assert "IGNORE" not in str(messages)
    assert (sub_run["trust"], "trust" in result) == ("untrusted", False)
    assert published["tool_calls"][0]["result"]["error"] is None
    assert result["output"].startswith("Published 'The herons': grey: 260000 pairs, rising;")


class ReportServer(BatchServer):
    """OpenAI's Batch API, with a model that writes the report of `examples.nightly_report`."""

    def _reply(self, url: str, body: dict[str, Any], text: str, seed: str) -> dict[str, Any]:
        results = [json.loads(each["output"]) if each["output"].startswith("{") else each["output"]
                   for each in body["input"] if each.get("type") == "function_call_output"]  # fmt: skip
        turn = Turn(calls=[("sales_of_yesterday", "{}", "c1")])
        if len(results) == 1:
            day = results[0]["day"]
            report = {"path": f"reports/{day}.md", "content": f"# Sales of {day}\n", "mode": "overwrite"}
            turn = Turn(calls=[("write_file", json.dumps(report), "c2")])
        elif results:
            turn = Turn(text="Lamps sold well.")
        return responses_reply(turn, body, seed)


@pytest.mark.parametrize("scripted", [None, "scripted:night"])
async def test_the_nightly_report_example_is_written_by_a_schedule(
    lab: Lab, command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scripted: str | None
) -> None:
    """Through the Batch API, at half the price; with the scripted model at once, without a key and without a storage."""
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    monkeypatch.setenv("MULLIGAN_WORKSPACE", str(tmp_path / "workspace"))
    words = ["schedule", "create", queue, "reporter", "Report on yesterday.", "--cron", "0 3 * * *"]
    words += ["--timezone", "Europe/Berlin", "--task-queue", queue]
    async with ReportServer() as server:
        if scripted is None:
            for name, value in (
                ("OPENAI_BASE_URL", server.base_url),
                ("OPENAI_API_KEY", "test-key"),
                ("MULLIGAN_CONTENT_DIR", str(tmp_path / "content")),
                ("MULLIGAN_BATCH_SECONDS", "0.2"),
                ("MULLIGAN_BATCH_POLL_SECONDS", "0.1"),
            ):
                monkeypatch.setenv(name, value)
        else:
            words += ["--input", json.dumps({"model": scripted})]
        async with running_worker(lab.client, load(["examples.nightly_report"]), lab.telemetry, queue):
            assert (await command(*words))[0] == 0
            try:
                assert (await command("schedule", "trigger", queue))[0] == 0
                while not (recent := json.loads((await command("schedule", "show", queue, "--json"))[1])["recent"]):
                    await asyncio.sleep(0.1)
                result = await lab.client.get_workflow_handle(recent[0]).result()
            finally:
                await command("schedule", "delete", queue)
        assert (result["status"], result["steps"], len(server.batches)) == ("completed", 3, 0 if scripted else 3)
        assert server.faults == []
    [report] = (tmp_path / "workspace/reports").iterdir()
    assert report.read_text().startswith(f"# Sales of {report.stem}\n")


async def test_the_analyst_example_reads_a_database_by_scripts_and_cannot_change_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MULLIGAN_WORKSPACE", str(tmp_path))
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    given = {"agent": "analyst", "prompt": "Which customers buy less than last year?"}
    async with running_worker(lab.client, load(["examples.analyst"]), lab.telemetry, queue):
        before = (tmp_path / "shop.db").read_bytes()
        handle = await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
        result = await handle.result()
        steps = (await handle.query("steps", args=[0, 10]))["steps"]
    assert result["output"] == (
        "They buy less than in 2025: Ada: 600 euros less (66 %)\nLinus: 120 euros less (100 %)\n"
    )
    [[tidies], [compares], []] = [step["tool_calls"] for step in steps]
    assert "Only reading is permitted" in tidies["result"]["text"]
    assert "CREATE TABLE orders" in tidies["result"]["text"]
    assert [call["name"] for call in compares["calls"]] == ["query_sqlite"] * 2
    assert (tmp_path / "shop.db").read_bytes() == before


async def test_the_coding_agent_example_fixes_a_bug_and_commits_what_a_person_has_approved(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The tests of the project fail before, and pass after."""
    monkeypatch.setenv("MULLIGAN_WORKSPACE", str(tmp_path))
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    given = {"agent": "coder", "prompt": "Three lamps cost a cent too little. Fix it."}
    async with running_worker(lab.client, load(["examples.coding_agent"]), lab.telemetry, queue):
        handle = await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
        [wait] = await waits_of(handle)
        assert wait["tool"] == "run_command"
        assert not (tmp_path / "till/.git").exists()
        await handle.execute_update("decide", {"call_id": wait["call_id"], "decision": "approve"})
        result = await handle.result()
        steps = (await handle.query("steps", args=[0, 10]))["steps"]
    assert result["output"] == "The discount is now taken from the sum; the tests pass. It is committed."
    tests = [call["result"]["text"] for step in steps for call in step["tool_calls"] if call["name"] == "run_tests"]
    assert ["AssertionError: 5385 != 5386" in text for text in tests] == [True, False]
    assert [text.splitlines()[-1] for text in tests] == ["exit code 1", "exit code 0"]
    git = ("git", "-C", str(tmp_path / "till"), "log", "--format=%s", "--name-only")
    log = await asyncio.create_subprocess_exec(*git, stdout=asyncio.subprocess.PIPE)
    assert (await log.communicate())[0].decode().split("\n\n") == [
        "Take the discount from the sum", "test_till.py\ntill.py\n",
    ]  # fmt: skip


async def test_the_buyer_example_asks_a_question_and_an_approval(lab: Lab) -> None:
    """As in docs/people.md."""
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    given = {"agent": "buyer", "prompt": "We need ten lamps."}
    async with running_worker(lab.client, load(["examples.buyer"]), lab.telemetry, queue):
        handle = await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
        for update, said in (("answer", {"text": "Green."}), ("decide", {"decision": "approve"})):
            [wait] = await waits_of(handle)
            await handle.execute_update(update, {"call_id": wait["call_id"], **said})
        assert (await handle.result())["output"] == "Ordered: 10 lamps, green, for 240 euros."


async def test_the_librarian_example_asks_for_approval_of_an_mcp_tool(lab: Lab) -> None:
    """As in docs/mcp.md."""
    queue = f"examples-{uuid.uuid4().hex[:6]}"
    given = {"agent": "librarian", "prompt": "Tidy up."}
    async with running_worker(lab.client, load(["examples.librarian"]), lab.telemetry, queue):
        handle = await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
        [wait] = await waits_of(handle)
        assert (wait["tool"], wait["arguments"]) == ("notes__delete_note", {"title": "old prices"})
        await handle.execute_update("decide", {"call_id": wait["call_id"], "decision": "approve"})
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


def test_the_page_of_long_runs_shows_the_example_of_a_chat() -> None:
    """docs/long-runs.md has its loop, without the docstring."""
    source = (Path(__file__).parents[2] / "examples/chat.py").read_text()
    shown = docs_block("docs/long-runs.md", "continue_as_new")
    assert indent(shown, "    ") in re.sub(r' +"""Take a turn.*?"""\n', "", source, flags=re.DOTALL)
