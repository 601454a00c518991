"""`/mcp` with the official client: agents are tools, on a real socket, a real Temporal server and a real worker."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Literal

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict
from temporalio.service import RetryConfig

from mulligan import connect
from mulligan.serve.arriving_body import BodyLimits
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.http_server import Door, http_server
from tests.support.lab import Lab
from tests.support.mcp_served_agents import AGENTS, SCRIPTS, Receipt

TOKENS = "ada:token-of-ada,bob:token-of-bob:greet|cashier"
ERAS = ["auto", "legacy"]
"""The client speaks 2026-07-28, or the versions with a handshake."""
QUICK = '{"name": "Ada"}'


@pytest.fixture(scope="module")
async def queue(lab: Lab) -> AsyncIterator[str]:
    name = f"mcp-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load((), agents=AGENTS, scripts=SCRIPTS), lab.telemetry, name):
        yield name


@pytest.fixture(scope="module")
async def door(lab: Lab, queue: str) -> AsyncIterator[Door]:
    async with http_server(lab.client, task_queue=queue) as served:
        yield served


@asynccontextmanager
async def client_of(door: Door, by: str | None = None, **options: Any) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=door.by(by) if by else {}, timeout=300))
        transport = streamable_http_client(f"{door.url}/mcp", http_client=http)
        yield await stack.enter_async_context(Client(transport, **options))


class Form:
    """A person who submits each form with the same answer, and remembers what was asked."""

    def __init__(self, action: Any, content: dict[str, Any] | None = None) -> None:
        self.result = types.ElicitResult(action=action, content=content)
        self.messages: list[str] = []

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.messages.append(params.message)
        return self.result


def text_of(result: types.CallToolResult) -> str:
    return "".join(block.text for block in result.content if isinstance(block, types.TextContent))


def run_id_of(result: types.CallToolResult) -> str:
    return str((result.meta or {})["mulligan.run"]["id"])


@pytest.mark.parametrize("mode", ERAS)
async def test_each_agent_is_a_tool_that_returns_its_answer_and_reports_progress(door: Door, mode: Any) -> None:
    reports: list[tuple[float, str]] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reports.append((progress, message or ""))

    async with client_of(door, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        result = await client.call_tool("test_tool_with_progress", {"prompt": "Go."}, progress_callback=report)
        named = next(name for name in tools if tools[name].title == "a name with spaces")
        greeting = await client.call_tool(named, {"prompt": QUICK, "metadata": {"customer": "7"}})
    assert set(tools["greet"].input_schema["properties"]) == {"prompt", "metadata"}
    declared = tools["cashier"].output_schema or {}
    assert {key: declared[key] for key in ("type", "required")} == {"type": "object", "required": ["order", "paid"]}
    assert set(declared["properties"]) == set(Receipt.model_fields)
    assert tools["greet"].output_schema is None
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", named)
    assert (text_of(result), result.is_error) == ("done", False)
    assert text_of(greeting) == "Hello, Ada!"
    assert [number for number, _ in reports] == list(range(1, len(reports) + 1))
    said = "\n".join(message for _, message in reports)
    assert f"Run {run_id_of(result)} of the agent test_tool_with_progress has started." in said
    assert "compute: half of it" in said
    assert "compute has finished." in said


@pytest.mark.parametrize(
    ("action", "content", "paid"),
    [
        ("accept", {"decision": "approve"}, True),
        ("accept", {"decision": "deny", "reason": "Too late."}, False),
        ("decline", None, False),
    ],
)
async def test_an_approval_is_a_form_and_the_structured_output_its_result(
    door: Door, action: str, content: dict[str, Any] | None, paid: bool
) -> None:
    form = Form(action, content)
    async with client_of(door, elicitation_callback=form) as client:
        result = await client.call_tool("cashier", {"prompt": "Pay back order 7."})
    assert result.structured_content == {"order": 7, "paid": paid}
    assert len(form.messages) == 1
    assert "'cashier' asks for approval" in form.messages[0]
    assert '{"order": 7}' in form.messages[0]


async def test_two_questions_are_two_forms_and_a_form_that_is_closed_leaves_them_open(door: Door) -> None:
    closed, answered = Form("cancel"), Form("accept", {"answer": "Ada"})
    async with client_of(door, elicitation_callback=closed) as client:
        waiting = await client.call_tool("multi_input", {"prompt": "Go."})
    assert sorted(closed.messages) == ["Really?", "Your name?"]
    run_id = run_id_of(waiting)
    assert "Call answer_question with" in text_of(waiting)
    async with client_of(door, elicitation_callback=answered) as client:
        result = await client.call_tool("wait_for_run", {"run_id": run_id})
    assert text_of(result) == "Ada; Ada"


async def test_each_round_of_forms_has_a_state_of_its_own(door: Door) -> None:
    """Also if what it asks was waiting already, so that no event came between the two rounds."""
    answer = types.ElicitResult(action="accept", content={"answer": "Ada"})
    arguments = {"prompt": "Go."}
    async with client_of(door, elicitation_callback=Form("cancel")) as client:
        call = partial(client.session.call_tool, "multi_input", arguments, allow_input_required=True)
        first = await call()
        assert isinstance(first, types.InputRequiredResult)
        [key, other] = first.input_requests or {}
        second = await call(input_responses={key: answer}, request_state=first.request_state)
        assert isinstance(second, types.InputRequiredResult)
        assert list(second.input_requests or {}) == [other]
        assert second.request_state != first.request_state
        result = await call(input_responses={other: answer}, request_state=second.request_state)
    assert isinstance(result, types.CallToolResult)
    assert text_of(result) == "Ada; Ada"


@pytest.mark.parametrize("mode", ERAS)
async def test_a_client_without_forms_reads_what_a_run_waits_for_and_how_to_answer(door: Door, mode: Any) -> None:
    async with client_of(door, mode=mode) as client:
        waiting = await client.call_tool("cashier", {"prompt": "Pay back order 7."})
        assert "waits for a person" in text_of(waiting)
        assert "Call decide_call" in text_of(waiting)
        [call_id] = re.findall(r"call_id '([^']+)'", text_of(waiting))
        run_id = run_id_of(waiting)
        wrong = await client.call_tool("decide_call", {"run_id": run_id, "call_id": "x", "decision": "approve"})
        assert wrong.is_error
        assert call_id in text_of(wrong)
        decided = await client.call_tool("decide_call", {"run_id": run_id, "call_id": call_id, "decision": "approve"})
        assert not decided.is_error
        result = await client.call_tool("wait_for_run", {"run_id": run_id})
    assert result.structured_content == {"order": 7, "paid": True}


async def test_a_run_goes_on_when_its_stream_is_closed_and_any_replica_answers_for_it(
    lab: Lab, door: Door, queue: str
) -> None:
    started = asyncio.Event()
    messages: list[str] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message or "")
        if "compute is running" in messages[-1]:
            started.set()

    async with client_of(door) as client:
        task = asyncio.create_task(client.call_tool("slow_compute", {"prompt": "{}"}, progress_callback=report))
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    run_id = messages[0].split()[1]
    async with http_server(lab.client, task_queue=queue) as replica, client_of(replica) as client:
        looked_at = await client.call_tool("wait_for_run", {"run_id": run_id, "seconds": 0})
        assert "is not finished" in text_of(looked_at)
        result = await client.call_tool("wait_for_run", {"run_id": run_id})
    assert text_of(result) == "The result is 42."


async def test_start_run_returns_an_id_at_once_and_the_same_id_is_the_same_run(door: Door) -> None:
    run_id = f"run-{uuid.uuid4().hex[:8]}"
    async with client_of(door) as client:
        given = {"agent": "greet", "prompt": QUICK, "run_id": run_id}
        started = [await client.call_tool("start_run", given) for _ in range(2)]
        assert [each.structured_content for each in started] == [{"run_id": run_id}] * 2
        other = await client.call_tool("start_run", {**given, "prompt": "Another one."})
        assert other.is_error
        assert "another" in text_of(other)
        assert text_of(await client.call_tool("wait_for_run", {"run_id": run_id})) == "Hello, Ada!"


class Task(types.Result):
    """The result of a call that became a task."""

    result_type: Literal["task"] = "task"
    task_id: str


class GetTask(types.Request[types.GetTaskRequestParams, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: types.GetTaskRequestParams
    name_param = "taskId"


class Anything(types.Result):
    model_config = ConfigDict(extra="allow")


class Tasks(ClientExtension):
    """A client that polls tasks."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Task, resolve=self.resolve)]

    async def resolve(self, task: Task, context: ClaimContext) -> types.CallToolResult:
        while True:
            request = GetTask(params=types.GetTaskRequestParams(task_id=task.task_id))
            state = (await context.session.send_request(request, Anything)).model_extra or {}
            self.states.append(state)
            if state["status"] not in ("working", "input_required"):
                return types.CallToolResult.model_validate(state["result"])
            await asyncio.sleep(0.2)


async def test_a_long_run_is_a_task_for_a_client_with_the_extension(door: Door) -> None:
    tasks = Tasks()
    async with client_of(door, extensions=[tasks]) as client:
        assert text_of(await client.call_tool("greet", {"prompt": QUICK})) == "Hello, Ada!"
        quick = len(tasks.states)
        result = await client.call_tool("slow_compute", {"prompt": "{}"})
        failed = await client.call_tool("failing_job", {"prompt": "{}"})
    assert quick == 0
    assert text_of(result) == "The result is 42."
    assert tasks.states[0]["status"] == "working"
    assert failed.is_error
    assert "the disk is full" in text_of(failed)
    assert "Traceback" not in text_of(failed)


async def test_a_token_has_only_its_agents_as_tools_and_sees_only_the_runs_of_its_tenant(lab: Lab, queue: str) -> None:
    async with http_server(lab.client, task_queue=queue, tokens=TOKENS) as door:
        async with client_of(door, "bob") as bob:
            names = [tool.name for tool in (await bob.list_tools()).tools]
            with pytest.raises(MCPError, match="There is no tool 'slow_compute'; there are: cashier, greet, start_run"):
                await bob.call_tool("slow_compute", {"prompt": "{}"})
            refused = await bob.call_tool("start_run", {"agent": "slow_compute", "prompt": "{}"})
            his = run_id_of(await bob.call_tool("greet", {"prompt": QUICK}))
        async with client_of(door, "ada") as ada:
            foreign = await ada.call_tool("wait_for_run", {"run_id": his})
            missing = await ada.call_tool("wait_for_run", {"run_id": "no-such-run"})
        read = await door.http.get(f"/api/runs/{his}", headers=door.by("bob"))
    assert names == ["cashier", "greet", "start_run", "wait_for_run", "answer_question", "decide_call"]
    assert refused.is_error
    assert foreign.is_error
    assert text_of(foreign) == text_of(missing).replace("no-such-run", his)
    assert read.json()["tenant"] == "bob"


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("greet", {}, '"prompt": it is missing. greet takes: prompt, metadata.'),
        ("greet", {"prompt": "x", "model": "openai:x"}, '"model"'),
        ("greet", {"prompt": "x", "metadata": {"a": 1}}, '"metadata.a"'),
        ("start_run", {"agent": "gret", "prompt": "x"}, "There is no agent 'gret'; there are: "),
        ("wait_for_run", {"run_id": "x", "seconds": 1_000}, '"seconds"'),
        ("decide_call", {"run_id": "x", "call_id": "c", "decision": "maybe"}, '"decision"'),
    ],
)
async def test_a_model_can_correct_wrong_arguments(door: Door, tool: str, arguments: dict[str, Any], says: str) -> None:
    async with client_of(door) as client:
        result = await client.call_tool(tool, arguments)
    assert result.is_error
    assert says in text_of(result)


CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.mark.parametrize(
    ("method", "request_", "status", "code"),
    [
        ("POST", {"json": CALL}, 401, "unauthorized"),
        ("POST", {"json": CALL, "headers": {"Authorization": "Bearer x"}}, 401, "unauthorized"),
        ("POST", {"json": CALL, "headers": {"Origin": "https://evil.example"}}, 403, "foreign_origin"),
        ("POST", {"json": CALL, "headers": {"Host": "evil.example"}}, 421, "foreign_host"),
        ("GET", {"headers": {"Authorization": "Bearer token-of-ada"}}, 405, "wrong_method"),
        ("POST", {"content": b" " * 2_000, "headers": {"Authorization": "Bearer token-of-ada"}}, 413, "too_large"),
    ],
)
async def test_what_is_refused_is_a_json_rpc_error_with_a_sentence(
    lab: Lab, method: str, request_: dict[str, Any], status: int, code: str
) -> None:
    async with http_server(lab.client, tokens=TOKENS, bodies=BodyLimits(most_bytes=1_000)) as door:
        headers = {**ACCEPT, **request_.get("headers", {})}
        answer = await door.http.request(method, "/mcp", **{**request_, "headers": headers})
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (error["data"]["code"], error["data"]["status"]) == (code, status)
    assert error["message"].endswith(".")


async def test_while_temporal_is_away_a_client_is_told_when_to_try_again() -> None:
    client = await connect("127.0.0.1:1", lazy=True, retry_config=RetryConfig(max_elapsed_time_millis=300))
    version = "2026-07-28"
    meta = {"io.modelcontextprotocol/protocolVersion": version, "io.modelcontextprotocol/clientCapabilities": {}}
    async with http_server(client) as door:
        answer = await door.http.post(
            "/mcp",
            json={**CALL, "params": {"_meta": meta}},
            headers={**ACCEPT, "MCP-Protocol-Version": version, "Mcp-Method": "tools/list"},
        )
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["data"]["code"] == "unavailable"
