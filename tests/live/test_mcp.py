"""Agents with real MCP servers, built with the official SDK, over stdin and stdout and over Streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic_core import to_jsonable_python
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import CancelledError

from mulligan import Agent, Call, McpServer, Say, tool
from mulligan.activities.mcp.servers import McpServers
from mulligan.testing import ScriptedModel, run_agent
from mulligan.worker.loading import load
from tests.support.generated_arguments import function_of, random_case
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.mcp_agents import SERVER, borrower
from tests.support.mcp_fixtures import calls, check_http, http_server, mcp_worker, wait_for_text
from tests.support.openai_turn import Turn

NAMES = ["GIVEN", "MCP_TEST_PASSED", "MCP_TEST_KEPT"]


@pytest.fixture(scope="module")
async def mcp_lab(lab: Lab) -> AsyncIterator[Lab]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MCP_TEST_SECRET": "given", "MCP_TEST_PASSED": "passed", "MCP_TEST_KEPT": "kept"}.items():
            patch.setenv(name, value)
        async with mcp_worker(lab, load(["tests.support.mcp_agents"])) as at:
            yield at


ROWS: dict[str, tuple[str, dict[str, Any], str | None, str]] = {
    "text": ("lent__echo", {"text": "hi"}, None, "hi"),
    "structured content": ("lent__structured", {}, None, '{"sum": 3, "unit": "€"}'),
    "an image": ("lent__picture", {}, None, "[image/png, 12,345 bytes]"),
    "all that there is": (
        "lent__mixed",
        {},
        None,
        "Two files.\n[application/pdf, 10 bytes, file:///a.pdf]\n[text/markdown, file:///b.md]\n# B\n[file:///c.txt] c\n"
        "[audio/wav, 2 bytes]",
    ),
    "nothing": ("lent__nothing", {}, None, "[no content]"),
    "a megabyte": ("lent__huge", {"chars": 1_000_000}, None, "more characters were left out]"),
    "progress": ("lent__progress", {}, None, "all parts"),
    "a name that no provider takes": ("lent__files_delete_all_b8fe2e", {}, None, "files.delete/all done"),
    "an error": ("lent__fail", {}, "tool_error", "The disk is full."),
    "an error of the protocol": (
        "lent__refuse",
        {},
        "tool_exception",
        "The MCP server `lent` answered the call with an error: ",
    ),
    "a result that is not of its schema": ("lent__wrong", {}, None, "[The call ran. "),
    "arguments that do not fit": (
        "lent__count",
        {"upto": "many"},
        "invalid_arguments",
        "`upto` should be of type integer",
    ),
    "an argument too much": ("lent__echo", {"text": "a", "b": 1}, "invalid_arguments", "has fields that are not known"),
    "no such tool": ("lent__ecko", {}, "unknown_tool", "Did you mean `lent__echo`?"),
    "a schema that is none": ("lent__no_schema", {}, "unknown_tool", "There is no tool `lent__no_schema`"),
    "the trace": ("lent__trace", {}, None, "-"),
    "its own tool": ("now", {}, None, "noon"),
}


@pytest.fixture(scope="module")
async def ran(mcp_lab: Lab) -> Ran:
    """All rows run concurrently in one step."""
    return await mcp_lab.run([calls(*((name, given) for name, given, *_ in ROWS.values())), DONE], agent="borrower")


@pytest.mark.parametrize("row", ROWS)
def test_each_mcp_outcome_is_returned_to_the_model_as_text_with_its_kind(ran: Ran, row: str) -> None:
    """Errors have the same kinds as for any tool."""
    name, _, kind, text = ROWS[row]
    made = ran.calls[list(ROWS).index(row)]
    assert made["name"] == name
    assert (made["result"]["error"] or {}).get("kind") == kind
    assert text in made["result"]["text"]
    assert len(made["result"]["text"]) < 33_000


def test_a_run_with_mcp_errors_completes_and_its_spans_name_the_server(ran: Ran) -> None:
    """The provider gets legal tool names and schemas."""
    wrong = [kind for _, _, kind, _ in ROWS.values() if kind]
    assert (ran.result["status"], ran.result["recovered_failures"]) == ("completed", len(wrong))
    spans = {span.attributes["ai.toolCall.name"]: span for span in ran.spans_of("ai.toolCall")}
    assert len(ran.spans_of("ai.toolCall")) == len(ROWS)
    for name in ("lent__picture", "lent__fail", "lent__count"):
        assert spans[name].attributes["mulligan.mcp.server"] == "lent"
        assert spans[name].attributes["mcp.method.name"] == "tools/call"
    assert "mulligan.mcp.server" not in {**spans["now"].attributes, **spans["lent__ecko"].attributes}
    context = next(made["result"]["text"] for made in ran.calls if made["name"] == "lent__trace").split("-")
    assert (context[1], context[2]) == (ran.result["trace_id"], spans["lent__trace"].span_id)
    names = [tool["function"]["name"] for tool in ran.requests[0].json["tools"]]
    assert (names[0], len(names)) == ("now", 22)
    assert {"lent__echo", "lent__odd", "lent__files_delete_all_b8fe2e"} < set(names)


async def test_an_mcp_server_gets_only_the_environment_it_is_given(mcp_lab: Lab) -> None:
    """The environment of the worker contains secrets: a server gets the SDK's short list and the declared variables."""
    ran = await mcp_lab.run([call("lent__environment"), DONE], agent="borrower")
    seen = json.loads(ran.calls[0]["result"]["text"])
    assert [seen.get(name) for name in NAMES] == ["given", "passed", None]
    assert set(seen) - {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"} == set(NAMES[:2])


async def test_mcp_calls_are_repaired_and_guarded_like_those_of_any_tool(mcp_lab: Lab) -> None:
    """JSON is repaired, a bare value is wrapped, the guard is asked, the server's policy applies."""
    turn = Turn(
        calls=[
            ("few__echo", "{'text': 'a',}", None),
            ("few__echo", '"b"', None),
            ("few__count", '{"upto": 9}', None),
            ("few__count", '{"upto": 0}', None),
        ]
    )
    ran = await mcp_lab.run([turn, DONE], agent="careful")
    mended, bare, denied, wrong = (each["result"] for each in ran.calls)
    assert (mended["text"], bare["text"]) == ("a", "b")
    assert [repair["by"] for repair in ran.calls[0]["repairs"] + ran.calls[1]["repairs"]][-1] == "bare_value"
    assert (denied["error"]["kind"], wrong["error"]["kind"]) == ("denied", "invalid_arguments")
    assert denied["text"] == wrong["text"] == "It did not work."
    names = {tool["function"]["name"] for tool in ran.requests[0].json["tools"]}
    assert names == {"few__echo", "few__count", "again__die_once", "again__hang", "again__fail", "strict__fail"}


async def test_a_killed_mcp_server_is_restarted_and_a_call_in_it_is_reported(mcp_lab: Lab, tmp_path: Path) -> None:
    """Killed between two calls it is only restarted; killed during a call, the call is reported to the model."""
    file = tmp_path / "hung"

    handle = await mcp_lab.start(
        [call("lent__pid"), calls(("lent__hang", {"file": str(file)})), call("lent__pid"), DONE], agent="borrower"
    )
    await wait_for_text(file, "started")
    first = (await handle.query("steps", args=[0, 10]))["steps"][0]["tool_calls"][0]["result"]["text"]
    os.kill(int(first), signal.SIGKILL)
    ran = await mcp_lab.look(handle)
    assert ran.calls[1]["result"]["error"]["kind"] == "tool_exception"
    assert "The MCP server `lent` ended, or broke off, before it answered" in ran.calls[1]["result"]["text"]
    second = ran.calls[2]["result"]["text"]
    assert second != first
    os.kill(int(second), signal.SIGKILL)
    assert (await mcp_lab.run([call("lent__echo", '{"text": "a"}'), DONE], agent="borrower")).calls[0]["result"][
        "text"
    ] == "a"


async def test_cancelling_a_run_cancels_its_call_in_the_mcp_server(mcp_lab: Lab, tmp_path: Path) -> None:
    """By the cancellation of the MCP protocol."""
    file = tmp_path / "hung"
    handle = await mcp_lab.start([calls(("lent__hang", {"file": str(file)})), DONE], agent="borrower")
    await wait_for_text(file, "started")
    await handle.cancel()
    await wait_for_text(file, "cancelled")
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert isinstance(raised.value.cause, CancelledError)


async def test_mcp_tools_need_approval_by_patterns_and_edits_are_checked_by_the_schema(mcp_lab: Lab) -> None:
    """The patterns match the server's own names. The schema is the one pinned for the run."""
    made = calls(("asks__files_delete_all_b8fe2e", {}), ("asks__count", {"upto": 2}), ("asks__echo", {"text": "a"}))
    handle = await mcp_lab.start([made, DONE], agent="asking")
    while len(waits := await handle.query("pending")) < 2:
        await asyncio.sleep(0.05)
    delete, count = sorted(waits, key=lambda wait: str(wait["tool"]), reverse=True)
    assert (delete["tool"], count["tool"]) == ("asks__files_delete_all_b8fe2e", "asks__count")
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await handle.execute_update("decide", decided(count, arguments={"upto": "many"}))
    assert "upto: should be of type integer" in str(refused.value.__cause__)
    await handle.execute_update("decide", decided(count, arguments={"upto": 3}))
    await handle.execute_update("decide", {"call_id": delete["call_id"], "decision": "deny", "reason": "never"})
    ran = await mcp_lab.look(handle)
    denied, counted, echoed = (each["result"] for each in ran.calls)
    assert (denied["error"]["kind"], counted["text"], echoed["text"]) == ("denied", "1, 2, 3", "a")
    spans = [span for span in ran.spans_of("ai.toolCall") if span.attributes["mulligan.mcp.server"] == "asks"]
    assert len(spans) == 3


def decided(wait: dict[str, Any], **said: Any) -> dict[str, Any]:
    return {"call_id": wait["call_id"], "decision": "approve", **said}


async def test_the_model_is_informed_of_unavailable_mcp_servers_and_the_run_goes_on(mcp_lab: Lab) -> None:
    """No program, no response, a missing variable, a closed port."""
    ran = await mcp_lab.run([call("now"), DONE], agent="forlorn")
    assert ran.result["status"] == "completed"
    told = ran.requests[0].json["messages"][0]["content"]
    for name in ("nowhere", "silent", "unset", "closed"):
        assert f"The tools of the MCP server `{name}` are not there" in told
    assert [tool["function"]["name"] for tool in ran.requests[0].json["tools"]] == ["now"]


async def test_run_agent_calls_mcp_tools_without_a_temporal_server() -> None:
    """The MCP server is a real one."""
    agent = Agent(name="a", model="openai:x", mcp=[McpServer("lent", command=SERVER, include=["echo"])])
    run = await run_agent(agent, "Go.", model=ScriptedModel(Say(calls=[Call("lent__echo", {"text": "hi"})]), "done"))
    assert run.calls[0].result is not None
    assert run.calls[0].result.text == "hi"
    assert [tool.name for tool in run.tools] == ["lent__echo"]


async def test_an_mcp_server_gets_the_same_arguments_as_a_function_of_the_same_schema(tmp_path: Path) -> None:
    """A real server and a function of one generated schema agree on verdict, repairs and executed arguments."""
    cases = [random_case(Random(seed)) for seed in range(60)]
    functions = [
        tool(name=f"t{index}", description="Take.")(function_of(case, to_jsonable_python))
        for index, case in enumerate(cases)
    ]
    schemas = tmp_path / "schemas.json"
    schemas.write_text(json.dumps({each.name: each.schema for each in functions}))
    server = McpServer("s", command=SERVER, include=["t*"], exclude=["trace"], env={"SCHEMAS": str(schemas)})
    calls_of = [
        [Call(f"{prefix}t{index}", case.arguments) for prefix in ("", "s__")] for index, case in enumerate(cases)
    ]
    model = ScriptedModel(
        *(Say(calls=[each for pair in calls_of[at : at + 20] for each in pair]) for at in (0, 20, 40)), "done"
    )
    run = await run_agent(Agent(name="a", model="openai:x", tools=functions, mcp=[server]), "Go.", model=model)
    valid_ones = 0
    for mine, others in zip(run.calls[::2], run.calls[1::2], strict=True):
        assert mine.result is not None
        assert others.result is not None
        assert (mine.result.error is None) == (others.result.error is None), (mine, others)
        assert [each.by for each in mine.repairs] == [each.by for each in others.repairs]
        if mine.result.error is None:
            valid_ones += 1
            assert json.loads(others.result.text) == others.arguments == mine.arguments
            received = json.loads(mine.result.text)
            assert received.keys() == mine.arguments.keys()
        else:
            assert mine.result.error.kind == "invalid_arguments"
    assert 20 < valid_ones < 60


async def test_an_mcp_server_that_cannot_start_is_not_retried_until_its_pause_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that open meanwhile neither wait for it nor start it again."""
    monkeypatch.setattr("mulligan.activities.mcp.session.FIRST_PAUSE", 600.0)
    monkeypatch.setattr("mulligan.activities.mcp.session.LONGEST_PAUSE", 600.0)
    starts = tmp_path / "starts"
    broken = McpServer("broken", command=[sys.executable, "-c", f"open({str(starts)!r}, 'a').write('x')"])
    agent = Agent(name="a", model="openai:x", mcp=[broken])
    servers = McpServers()
    async with servers.running():
        offers = [await servers.offer_tools(agent) for _ in range(3)]
    assert [len(offer.notes) for offer in offers] == [1, 1, 1]
    assert starts.read_text() == "x"


async def test_mcp_over_http_with_sessions(lab: Lab, tmp_path: Path) -> None:
    """As before 2026. Without sessions: tests/system."""
    await check_http(lab, ("--sessions",), tmp_path / "hung")


def fetcher(server: McpServer) -> Agent:
    return Agent(name="fetcher", model="openai:x", mcp=[server])


async def test_an_answer_over_the_limit_is_an_error_and_the_session_goes_on() -> None:
    """Of a program, and over HTTP as server-sent events."""
    with http_server() as port:
        for server in (McpServer("lent", command=SERVER), McpServer("lent", url=f"http://127.0.0.1:{port}/mcp")):
            model = ScriptedModel(
                Say(calls=[Call("lent__huge", {"chars": 9_000_000}), Call("lent__echo", {"text": "beside"})]),
                Say(calls=[Call("lent__echo", {"text": "after"})]),
                Say("Done."),
            )
            run = await run_agent(fetcher(server), "go", model=model)
            texts = [call.result.text if call.result else None for call in run.calls]
            assert texts[0] is not None
            assert "gave an answer of more than 8,000,000 bytes" in texts[0], texts
            assert "Ask it for less" in texts[0]
            assert texts[1:] == ["beside", "after"]


class Endless(BaseHTTPRequestHandler):
    """Answers each request with JSON that does not end."""

    sent = 0

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        with suppress(OSError):
            for _ in range(400):
                self.wfile.write(b" " * 1_000_000)
                Endless.sent += 1_000_000

    do_DELETE = do_POST  # noqa: N815 - the standard library's name

    def log_message(self, *_: object) -> None:
        """Log nothing."""


async def test_a_json_response_over_the_limit_is_not_read_to_its_end() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    servers = McpServers()
    try:
        async with servers.running():
            web = McpServer("web", url=f"http://127.0.0.1:{server.server_port}/mcp")
            offer = await servers.offer_tools(fetcher(web))
        assert len(offer.notes) == 1
        assert Endless.sent < 100_000_000
    finally:
        server.shutdown()
        server.server_close()


def test_the_agents_command_lists_mcp_servers_without_starting_them(tmp_path: Path) -> None:
    """`mulligan agents` prints their names and addresses."""
    shown = subprocess.run(
        [Path(sys.executable).with_name("mulligan"), "agents", "--load", "tests.support.mcp_agents", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    [agent] = [each for each in json.loads(shown.stdout) if each["name"] == borrower.name]
    address = Path(sys.executable).name
    assert agent["mcp"] == [{"name": "lent", "address": address, "include": None, "exclude": [], "trust": "untrusted"}]
