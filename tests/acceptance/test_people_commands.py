"""The commands by which people decide, answer, send, stop, cancel and resume.

Commands that need a terminal run as processes; the others run in this process, because a start takes more than a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from typer.testing import CliRunner

from mulligan import connect
from mulligan.cli.app import app
from tests.support.command_fixtures import Outcome, Run
from tests.support.command_server import PIPE, start_command

QUEUE = "office"


@pytest.fixture(scope="module")
async def clerk_client(environment: dict[str, str]) -> AsyncIterator[Client]:
    """A worker that serves the clerk agent, and a client to start its runs."""
    process = await start_command(
        "worker", "--load", "tests.acceptance.clerk_agent", "--task-queue", QUEUE,
        env=environment, stderr=PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    await process.stderr.readline()
    yield await connect(environment["TEMPORAL_ADDRESS"], namespace=environment["TEMPORAL_NAMESPACE"])
    process.terminate()
    await process.stderr.read()
    assert await process.wait() == 0


@pytest.fixture
def in_process(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`mulligan …` in this process, one command at a time."""
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE"):
        monkeypatch.setenv(name, environment[name])

    async def run(*words: str, stdin: str = "") -> Outcome:
        ran = await asyncio.to_thread(CliRunner().invoke, app, words, input=stdin, catch_exceptions=False)
        return Outcome(ran.exit_code, ran.stdout, ran.stderr)

    return run


async def start_clerk(clerk_client: Client, run_id: str, **given: Any) -> Any:
    """Start a run of the clerk, and wait until its first call waits for approval."""
    handle = await clerk_client.start_workflow(
        "AgentWorkflow", {"agent": "clerk", "prompt": "Help.", **given}, id=run_id, task_queue=QUEUE
    )
    await wait_for_call(handle, "call_1")
    return handle


async def wait_for_call(handle: Any, call_id: str) -> None:
    while [wait["call_id"] for wait in await handle.query("pending")][:1] != [call_id]:
        await asyncio.sleep(0.05)


async def in_terminal(environment: dict[str, str], typed: str, *words: str) -> tuple[int, str, str]:
    """Run a command with a terminal as its stdin; return its exit code, stdout and stderr."""
    ours, theirs = pty.openpty()
    process = await start_command(*words, env=environment, stdin=theirs, stdout=PIPE, stderr=PIPE)
    os.write(ours, typed.encode())
    out, err = await process.communicate()
    os.close(ours)
    os.close(theirs)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_a_call_is_edited_and_approved_a_question_answered_and_a_message_sent(
    mulligan: Run, in_process: Run, clerk_client: Client, environment: dict[str, str], tmp_path: Path
) -> None:
    """The whole way of one run: an edited approval, an answer, a message and two denials, each by a command."""
    handle = await start_clerk(clerk_client, "o-1")
    await check_what_waits(mulligan, in_process, environment)
    await check_refusals(in_process)
    await approve_in_an_editor(environment, tmp_path)

    await wait_for_call(handle, "call_2")
    answered = await in_process("answer", "o-1", "The green one.", "--json")
    assert json.loads(answered.out) == {"run": "o-1", "accepted": True, "call_id": "call_2"}
    assert r"Which [bold]lamp\x1b[0m?" in answered.err

    await wait_for_call(handle, "call_3")
    several = await in_process("deny", "o-1", "--reason", "No more.")
    assert "several calls of 'o-1' wait; name one: call_3 (refund), call_4 (refund)" in several.err
    denied = [await in_process("deny", "o-1", call_id, "--reason", "No more.") for call_id in ("call_3", "call_4")]
    assert [ran.code for ran in denied] == [0, 0]
    result = await handle.result()
    texts = result["output"].split(" / ")
    assert texts[:4] == ["Help.", "refunded 6 for order 7", "Be quick.", "The green one."]
    assert ["No more." in text for text in texts[4:]] == [True, True]
    seen = await in_process("show", "o-1")
    assert "approved by Ada; edited: {" in seen.out
    assert 'refund {"order": 7, "euros": 6.0,' in seen.out
    assert "answered by " in seen.out
    late, empty = await in_process("send", "o-1", "Too late."), await in_process("pending", "--json")
    assert (late.code, late.out) == (2, "")
    assert "the run 'o-1' has ended; continue it in a new run with `mulligan resume o-1`" in late.err
    assert "o-1" not in [wait["id"] for wait in json.loads(empty.out)]
    ended, as_json = await in_process("pending", "o-1"), await in_process("pending", "o-1", "--json")
    assert (ended.code, ended.out, as_json.code, as_json.out) == (0, "", 0, "[]\n")
    assert "the run 'o-1' has ended, so none of its calls waits" in ended.err


async def test_a_rule_is_made_listed_and_deleted(in_process: Run, clerk_client: Client) -> None:
    """`approve --remember`, for a run and for its tenant; `rules` lists both, and deletes."""
    await start_clerk(clerk_client, "r-1", tenant="acme")
    wrong = await in_process("approve", "r-1", "call_1", "--for", "tenant")
    assert (wrong.code, "which says where a rule counts; add --remember" in wrong.err) == (2, True)
    remembered = await in_process("approve", "r-1", "call_1", "--remember", "--for", "tenant", "--by", "Ada")
    assert remembered.code == 0
    assert "refund is approved.\nThe rule refund-" in remembered.out
    second = await clerk_client.start_workflow(
        "AgentWorkflow", {"agent": "clerk", "prompt": "Help.", "tenant": "acme"}, id="r-2", task_queue=QUEUE
    )
    await wait_for_call(second, "call_2")
    (rule,) = json.loads((await in_process("rules", "--tenant", "acme", "--json")).out)
    assert (rule["for"], rule["tenant"], rule["agent"], rule["tool"]) == ("tenant", "acme", "clerk", "refund")
    assert (rule["by"], rule["arguments"]["euros"]) == ("Ada", 12.5)
    shown = await in_process("show", "r-2")
    assert f"approved by Ada by the rule {rule['name']} of {rule['at'][:10]}" in shown.out
    await start_clerk(clerk_client, "r-3")
    no_tenant = await in_process("approve", "r-3", "call_1", "--remember", "--for", "tenant")
    assert "The run has no tenant" in no_tenant.err
    of_run = json.loads((await in_process("approve", "r-3", "call_1", "--remember", "--json")).out)["rule"]
    listed = await in_process("rules")
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == [rule["name"], of_run]
    assert "\x1b" not in listed.out
    for name, left in ((rule["name"], [of_run]), (of_run, [])):
        deleted = await in_process("rules", "--delete", name)
        assert (deleted.code, deleted.out) == (0, f"The rule {name} is deleted.\n")
        assert [each["name"] for each in json.loads((await in_process("rules", "--json")).out)] == left
    unknown = await in_process("rules", "r-3", "--delete", of_run)
    assert (unknown.code, f"there is no rule '{of_run}'; rules: none." in unknown.err) == (2, True)
    for run_id in ("r-1", "r-2", "r-3"):
        await clerk_client.get_workflow_handle(run_id).cancel()


async def check_what_waits(mulligan: Run, in_process: Run, environment: dict[str, str]) -> None:
    """`pending` and `approve` present the call without its control characters; an answer of "n" decides nothing."""
    listed, no = await asyncio.gather(mulligan("pending"), in_terminal(environment, "n\n", "approve", "o-1"))
    one, unsure = await in_process("pending", "o-1", "--json"), await in_process("approve", "o-1")
    assert listed.code == 0, listed.err
    assert all(word in listed.out for word in ("o-1", "clerk", "call_1", "refund"))
    [wait] = json.loads(one.out)
    assert wait.items() >= {"id": "o-1", "call_id": "call_1", "tool": "refund", "kind": "approval"}.items()
    assert wait["arguments"]["euros"] == 12.5
    assert (unsure.code, "name the call" in unsure.err) == (2, True)
    assert no[0] == 1
    assert "run it?" in no[2]
    for shown in (no[2], listed.out):
        assert "\x1b[2J" not in shown
        assert "\u202e" not in shown
    assert r'"note": "\u001b[2J[red]\u202eAda"' in no[2]


async def check_refusals(in_process: Run) -> None:
    """Wrong arguments and an unknown call are refused; a message to the run is accepted meanwhile."""
    wrong = await in_process("approve", "o-1", "call_1", "--arguments", '{"order": "seven", "ordr": 7}')
    other = await in_process("approve", "o-1", "call_9")
    sent = await in_process("send", "o-1", "-", "--id", "m-1", "--json", stdin="Be quick.\n")
    assert (wrong.code, wrong.out) == (2, "")
    assert "`refund` does not take these arguments" in wrong.err
    assert 'has fields that are not known: "ordr"' in " ".join(wrong.err.split())
    assert "no call 'call_9' of 'o-1' waits for approval; waiting calls: call_1 (refund)" in other.err
    assert json.loads(sent.out) == {"run": "o-1", "accepted": True, "id": "m-1"}


async def approve_in_an_editor(environment: dict[str, str], tmp_path: Path) -> None:
    """The arguments are edited in $EDITOR, then approved."""
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/12.5/6/" "$1"\n')
    editor.chmod(0o700)
    edited = await in_terminal(environment | {"EDITOR": str(editor)}, "y\n", "approve", "o-1", "--edit", "--by", "Ada")
    assert edited[:2] == (0, "refund is approved.\n"), edited[2]
    assert '"euros": 6' in edited[2]


async def test_a_run_is_stopped_and_resumed_by_commands(in_process: Run, clerk_client: Client) -> None:
    """`show` names the run that was resumed."""
    handle = await start_clerk(clerk_client, "o-2")
    waiting = json.loads((await in_process("list", "--status", "waiting", "--agent", "clerk", "--json")).out)
    assert {"o-2": "waiting"}.items() <= {run["id"]: run["status"] for run in waiting}.items()
    assert "o-2" not in (await in_process("list", "--status", "running", "--json")).out
    assert json.loads((await in_process("show", "o-2", "--json")).out)["status"] == "waiting"
    early, stopped = await in_process("resume", "o-2"), await in_process("stop", "o-2", "--reason", "lunch")
    assert "error: The run 'o-2' is open; stop it first: `mulligan stop o-2`" in early.err
    assert stopped.out == "The run o-2 is stopping.\n"
    result = await handle.result()
    assert (result["status"], result["reason"]) == ("stopped", "lunch")
    listed = {
        status: await in_process("list", "--status", status, "--agent", "clerk", "--json")
        for status in ("stopped", "completed")
    }
    assert [(run["id"], run["status"]) for run in json.loads(listed["stopped"].out)] == [("o-2", "stopped")]
    assert "o-2" not in [run["id"] for run in json.loads(listed["completed"].out)]
    assert "o-2" not in (await in_process("list", "--status", "waiting", "--json")).out
    assert json.loads((await in_process("list", "--agent", "agent-of-no-run", "--json")).out) == []
    both = json.loads((await in_process("list", "--json")).out)
    assert [run["started"] for run in both] == sorted((run["started"] for run in both), reverse=True)
    start = json.loads((await in_process("show", "o-2", "--json")).out)["start"]
    assert start == {"agent": "clerk", "model": "scripted:clerk", "prompt": "Help.", "by": clerk_client.identity}
    shown = await in_process("show", "o-2")
    assert shown.out.startswith("agent: clerk\nmodel: scripted:clerk\nprompt: Help.\nby: ")
    ran = await in_process("resume", "o-2", "Go on.", "--max-steps", "1", "--json")
    assert json.loads(ran.out).items() >= {"id": "o-2-resumed", "resumed_from": {"id": "o-2"}}.items()
    await wait_for_call(clerk_client.get_workflow_handle("o-2-resumed"), "call_2")
    again, shown = await in_process("resume", "o-2"), await in_process("show", "o-2-resumed")
    assert (again.code, "continued before, with another prompt or other options: as 'o-2-resumed'" in again.err) == (
        2,
        True,
    )
    same = await in_process("resume", "o-2", "Go on.", "--max-steps", "1", "--json")
    assert json.loads(same.out) == json.loads(ran.out)
    assert "resumed from o-2" in shown.out
    cancelled = await in_process("cancel", "o-2-resumed", "--json")
    assert json.loads(cancelled.out) == {"run": "o-2-resumed", "accepted": True}


async def test_a_run_that_somebody_terminates_ends_as_that_for_who_follows_it(
    in_process: Run, clerk_client: Client, environment: dict[str, str]
) -> None:
    words = ("start", "clerk", "Help.", "--id", "o-4", "--task-queue", QUEUE, "--wait", "--json")
    process = await start_command(*words, env=environment, stdout=PIPE, stderr=PIPE)
    assert process.stderr is not None
    while b"mulligan approve o-4" not in await process.stderr.readline():
        assert not process.stderr.at_eof()
    await clerk_client.get_workflow_handle("o-4").terminate("enough")
    out, _ = await process.communicate()
    assert (process.returncode, json.loads(out)["status"]) == (1, "terminated")
    assert json.loads((await in_process("show", "o-4", "--json")).out)["status"] == "terminated"
    listed = json.loads((await in_process("list", "--status", "terminated", "--json")).out)
    assert {"o-4": "terminated"}.items() <= {run["id"]: run["status"] for run in listed}.items()


async def test_the_cancel_command_ends_a_run_as_cancelled(in_process: Run, clerk_client: Client) -> None:
    handle = await start_clerk(clerk_client, "o-3")
    assert (await in_process("cancel", "o-3")).out == "Cancellation of o-3 was requested.\n"
    ended = await in_process("tail", "o-3", "--json")
    assert json.loads(ended.out.splitlines()[-1])["status"] == "cancelled"
    assert (await handle.describe()).status.name == "CANCELED"


NOT_SO: list[tuple[list[str], str]] = [
    (["send", "nobody", "x"], "there is no run 'nobody' on this server"),
    (["send", "nobody", " "], "the text is ' '; give one that says something"),
    (["approve", "nobody", "c"], "there is no run 'nobody'"),
    (["approve", "x", "--arguments", "{"], "--arguments is not JSON"),
    (["approve", "x", "--arguments", "[]"], '--arguments is []; it must be a JSON object like {"order": 7}'),
    (["approve", "x", "--arguments", "{}", "--edit"], "--edit and --arguments do not go together"),
    (["answer", "x"], "give the answer"),
    (["answer", "x", "a", "b", "c"], "the answer in quotes"),
    (["resume", "nobody"], "There is no run 'nobody' on this server"),
    (["resume", "x", "--max-steps", "0"], "--max-steps"),
    (["cancel", "nobody"], "there is no run 'nobody'"),
    (["stop", "nobody"], "there is no run 'nobody'"),
    (["pending", "nobody"], "there is no run 'nobody'"),
    (["deny", "nobody"], "there is no run 'nobody'"),
]


@pytest.mark.parametrize(("words", "says"), NOT_SO, ids=[" ".join(words) for words, _ in NOT_SO])
async def test_wrong_use_of_people_commands_exits_with_2_and_a_sentence(
    in_process: Run, words: list[str], says: str
) -> None:
    """Exit code 2, one sentence on stderr, nothing on stdout, never a traceback."""
    ran = await in_process(*words)
    assert says in " ".join(ran.err.replace("│", " ").split())
    assert (ran.code, ran.out, "Traceback" in ran.err) == (2, "", False)
