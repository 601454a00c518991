"""Each kind of wait (rows) through each event in the middle of it (columns): docs/waiting.md, as a test.

One test is a column. It starts a run for each row, lets the event happen once all of them wait, and then checks each row. The
message of a failed test has one line for each failed cell.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import (
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.exceptions import CancelledError
from temporalio.service import RPCError

from mulligan.client.origins.resume_run import resume_run
from mulligan.client.read_run import size_of_chain
from mulligan.devserver import DevServer, temporal_server
from tests.live.test_resets import points_of, reset
from tests.support.batch_server import BatchServer
from tests.support.http_server import Door, http_server
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn
from tests.support.ports import free_ports
from tests.support.processes import descendants_with
from tests.support.temporal import connect_to
from tests.support.worker_process import Process, worker_process
from tests.support.worker_versions import make_current, pin
from tests.system.test_worker_versions import builds_of

MODULE = "tests.support.waiting_agents"
SECONDS_FOR_A_CELL = 600
Handle = WorkflowHandle[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A kind of wait. `detail`: what `waiting_for` says about it. `result`: the result of the waiting call, as a pattern."""

    agent: str
    detail: str
    result: str = ""
    steps: int = 6
    effects: tuple[str, ...] = ()
    """What the tools have done once the wait has begun, and `done` after its end."""
    done: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()
    """What they do if the run is stopped or cancelled instead."""
    stopped: str = ""
    cancelled: str = ""
    """The kind of the waiting call's error that the resumed run's model reads."""
    continues_while_waiting: bool = True
    is_due_meanwhile: bool = False


ROWS = {
    "a deferred tool": Row(
        agent="orderer", detail="the result of `begin`", result="42", effects=("begun",), withdrawn=("withdrawn",), stopped="denied", cancelled="tool_lost",
    ),
    "wait_until": Row(
        agent="sleeper", detail="`wait_until` waits until", result=".*message.*", stopped="denied", cancelled="tool_lost", continues_while_waiting=False
    ),
    "wait_until, due meanwhile": Row(
        agent="napper", detail="`wait_until` waits until", result="The time has come.*",
        continues_while_waiting=False, is_due_meanwhile=True,
    ),
    "an approval with reminders": Row(agent="signer", detail="approval of `sign`", result="signed", done=("signed",), stopped="denied", cancelled="denied"),
    "a question": Row(agent="asker", detail="an answer to `ask_person`", result="blue", stopped="denied", cancelled="denied"),
    "a background response": Row(agent="thinker", detail="background response resp_", steps=2),
    "a batch": Row(agent="batcher", detail="in a batch", steps=2),
    "a tenant's budget": Row(agent="spender", detail="USD of the day", steps=2),
    "a sub-agent": Row(
        agent="chief", detail="the result of `begin`", result="done", effects=("begun",), withdrawn=("withdrawn",), stopped="tool_exception", cancelled="tool_lost",
    ),
}  # fmt: skip


@dataclass
class Wait:
    """One run of a row. `released`: its background response may end."""

    name: str
    row: Row
    id: str
    effects: Path
    tenant: str
    released: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def waiting_id(self) -> str:
        """The id of the run that waits itself."""
        return f"{self.id}/w" if self.row.agent == "chief" else self.id

    def lines(self) -> list[str]:
        """What the tools have done."""
        return self.effects.read_text().splitlines() if self.effects.exists() else []

    def done(self) -> tuple[str, ...]:
        return tuple(line.split()[0] for line in self.lines())

    @property
    def token(self) -> str:
        return self.lines()[0].split()[1]


class Office:
    """A worker process, the providers that it uses, and a run of each row."""

    def __init__(self, lab: Lab, server: DevServer, batches: BatchServer, folder: Path, stack: AsyncExitStack) -> None:
        self.lab, self.server, self.batches, self.folder, self.stack = lab, server, batches, folder, stack
        self.queue = f"waits-{uuid.uuid4().hex[:6]}"
        self.environment: dict[str, str] = {}
        self.waits: list[Wait] = []
        self.client = lab.client
        self.worker: Process
        self.door: Door

    async def open(self, **environment: str) -> None:
        """Start a worker, and a server for callbacks."""
        (self.folder / "prices.json").write_text(
            json.dumps({"models": {"waits-paid": {"input": 100_000, "output": 0}}})
        )
        (self.folder / "endpoints.toml").write_text(f'[batches]\nbase_url = "{self.batches.base_url}"\n')
        self.allow(1)
        self.environment = {
            **self.lab.model.environment(),
            "MULLIGAN_ENDPOINTS": str(self.folder / "endpoints.toml"),
            "MULLIGAN_PRICES": str(self.folder / "prices.json"),
            "MULLIGAN_BUDGETS": str(self.folder / "budgets.toml"),
            "MULLIGAN_CONTENT_DIR": str(self.folder / "content"),
            "MULLIGAN_BATCH_SECONDS": "0.3",
            "MULLIGAN_BATCH_POLL_SECONDS": "0.2",
            **environment,
        }
        self.lab.model.script("waits-paid", [call("look"), DONE])
        self.batches.holds = True
        await self.connect(self.server)
        await self.start_worker()

    async def connect(self, server: DevServer) -> None:
        self.server, self.client = server, await connect_to(server)
        self.door = await self.stack.enter_async_context(http_server(self.client))

    async def start_worker(self, **environment: str) -> Process:
        """Start a worker process, which is the one that the events concern from now on."""
        self.worker = await self.stack.enter_async_context(
            worker_process(MODULE, self.queue, self.server, **{**self.environment, **environment})
        )
        return self.worker

    def allow(self, usd: float) -> None:
        """Set the budget of each tenant."""
        (self.folder / "budgets.toml").write_text(f'[usd_per_day]\n"*" = {usd}\n')

    async def start(self, rows: Iterable[str]) -> None:
        """Start a run of each row, and wait until all of them wait."""
        for name in rows:
            run_id = f"{ROWS[name].agent}-{uuid.uuid4().hex[:8]}"
            wait = Wait(name, ROWS[name], run_id, self.folder / run_id, f"acme-{uuid.uuid4().hex[:6]}")
            given: dict[str, Any] = {
                "agent": wait.row.agent, "prompt": f"count {run_id}", "metadata": {"effects": str(wait.effects)},
            }  # fmt: skip
            if wait.row.agent == "thinker":
                self.lab.model.script(run_id, [call("look"), Turn("done", wait=wait.released)])
                given["model"] = f"openai:{run_id}"
            if wait.row.agent == "spender":
                given["tenant"] = wait.tenant
            await self.client.start_workflow("AgentWorkflow", given, id=run_id, task_queue=self.queue)
            self.waits.append(wait)
        await self.each(self.until_waiting)

    def handle(self, wait: Wait) -> Handle:
        return self.client.get_workflow_handle(wait.id)

    def waiting(self, wait: Wait) -> Handle:
        """The newest run that waits itself: for a sub-agent its own."""
        return self.client.get_workflow_handle(wait.waiting_id)

    async def each(self, check: Callable[[Wait], Awaitable[None]]) -> None:
        """Do it for each row at the same time. Fails with one line for each cell that has failed."""

        async def cell(wait: Wait) -> str | None:
            try:
                async with asyncio.timeout(SECONDS_FOR_A_CELL):
                    await check(wait)
            except Exception as error:  # all of them are shown, with their cells
                return f"{wait.name}: {check.__name__}: {type(error).__name__}: {error}"
            return None

        failed = [line for line in await asyncio.gather(*map(cell, self.waits)) if line]
        if failed:
            pytest.fail("\n".join(failed), pytrace=False)

    async def until_waiting(self, wait: Wait) -> None:
        while not await self._is_waiting(wait):
            await asyncio.sleep(0.1)

    async def _is_waiting(self, wait: Wait) -> bool:
        if wait.name == "a batch" and not self.batches.batches:
            return False
        if wait.row.agent == "chief" and not wait.lines():
            return False  # its child may not exist yet
        if wait.row.agent == "thinker" and len(self.lab.model.background.of(wait.id)) < wait.row.steps:
            return False  # this is the response of its first step
        progress = await self.waiting(wait).query("progress")
        is_over = wait.row.is_due_meanwhile and progress["step"] > 3
        return is_over or wait.row.detail in (progress["waiting_for"] or {"detail": ""})["detail"]

    async def settle(self, wait: Wait) -> None:
        """End the wait from outside. The same a second time is refused."""
        match wait.row.agent:
            case "orderer" | "chief":
                answer = await self.complete(wait)
                assert (answer.status_code, answer.json()) == (200, {"accepted": True})
                assert (await self.complete(wait)).status_code == 409
            case "sleeper":
                await self.handle(wait).execute_update("send_message", {"text": "Wake up.", "id": "up"})
            case "signer":
                while not self.reminders_in(await self.events(wait)):
                    await asyncio.sleep(0.1)
                await self.decide(wait, "decide", {"decision": "approve", "by": "Ada"})
            case "asker":
                await self.decide(wait, "answer", {"text": "blue", "by": "Ada"})
            case _:
                self.settle_models(wait)

    async def events(self, wait: Wait) -> list[dict[str, Any]]:
        return list((await self.handle(wait).query("events", args=[0, 1000]))["events"])

    def reminders_in(self, events: list[dict[str, Any]]) -> list[int]:
        return [each["number"] for each in events if each["type"] == "reminder"]

    def settle_models(self, wait: Wait) -> None:
        """The providers answer, and the tenants have more to spend."""
        wait.released.set()
        self.batches.holds = False
        self.allow(1_000)

    async def complete(self, wait: Wait) -> Any:
        return await self.door.http.post(f"/api/callbacks/{wait.token}", json={"result": 42})

    async def decide(self, wait: Wait, update: str, given: dict[str, Any]) -> None:
        await self.waiting(wait).execute_update(update, {"call_id": "w", **given})
        with pytest.raises(WorkflowUpdateFailedError):
            await self.waiting(wait).execute_update(update, {"call_id": "w", **given})

    async def completes(self, wait: Wait) -> None:
        """The run completes, and nothing of it has happened twice."""
        result = await self.handle(wait).result()
        row = wait.row
        assert (result["status"], result["steps"]) == ("completed", row.steps)
        assert result["recovered_failures"] == 0
        assert wait.done() == (*row.effects, *row.done)
        events = await self.events(wait)
        assert [each["step"] for each in events if each["type"] == "step_started"] == [*range(1, row.steps + 1)]
        settled = [each for each in events if each["type"] == "tool_call_settled" and each["call_id"] == "w"]
        assert len(settled) == bool(row.result)
        for each in settled:
            assert re.fullmatch(row.result, each["result"]["text"], re.DOTALL), each["result"]["text"]
        numbers = self.reminders_in(events)
        assert numbers == sorted(set(numbers))
        assert bool(numbers) == (row.agent == "signer")
        if row.agent == "thinker":
            stored = self.lab.model.background.of(wait.id)
            assert [(each.is_deleted, each.is_cancelled) for each in stored] == [(True, False)] * 2
        elif row.agent == "batcher":
            await self.pays_once(wait, 2)
        elif row.agent == "spender":
            assert result["cost"] == 2

    async def pays_once(self, wait: Wait, requests: int) -> None:
        """Each request of the run was answered once, and its files are deleted."""
        answered = [times for text, times in self.batches.answered.items() if wait.id in text]
        assert answered == [1] * requests
        while self.batches.files:
            await asyncio.sleep(0.1)

    async def all_complete(self) -> None:
        await self.each(self.until_waiting)
        await self.each(self.settle)
        await self.each(self.completes)


@pytest.fixture
async def batches() -> AsyncIterator[BatchServer]:
    async with BatchServer() as batches:
        yield batches
        assert batches.faults == []


@pytest.fixture
async def office(lab: Lab, temporal: DevServer, batches: BatchServer, tmp_path: Path) -> AsyncIterator[Office]:
    """No worker yet, on the server of all tests."""
    async with AsyncExitStack() as stack:
        yield Office(lab, temporal, batches, tmp_path, stack)


async def test_the_worker_is_killed(office: Office) -> None:
    await office.open()
    await office.start(ROWS)
    office.worker.kill()
    assert await office.worker.wait() == -signal.SIGKILL
    await office.start_worker()
    await office.all_complete()


async def test_the_server_is_killed(office: Office) -> None:
    """It starts again on the same port, with its database. The worker stays, and does not reach it meanwhile."""
    [port] = free_ports(1)
    database = office.folder / "temporal.db"
    async with AsyncExitStack() as until_killed:
        office.server = await until_killed.enter_async_context(temporal_server(port=port, db=database))
        await office.open()
        await office.start(ROWS)
        servers = descendants_with(str(port))
        assert servers
        for pid in servers:
            os.kill(pid, signal.SIGKILL)
    await office.connect(await office.stack.enter_async_context(temporal_server(port=port, db=database)))
    await office.all_complete()


async def test_the_run_continues_as_new(office: Office) -> None:
    """While it waits, where its history grows; otherwise in the steps before and after the wait."""
    await office.open(WAITS_CONTINUE_AFTER="15")
    await office.start(ROWS)

    async def continue_as_new(wait: Wait) -> None:
        if not wait.row.continues_while_waiting:
            return
        before = (await size_of_chain(office.client, wait.waiting_id)).runs
        number = 0
        while (await size_of_chain(office.client, wait.waiting_id)).runs <= before:
            number += 1
            if wait.row.agent in ("orderer", "asker", "chief", "batcher"):
                message = {"text": f"message {number}", "id": str(number)}
                await office.waiting(wait).execute_update("send_message", message)
            await asyncio.sleep(0.05)

    async def has_continued(wait: Wait) -> None:
        assert (await size_of_chain(office.client, wait.waiting_id)).runs > 1

    await office.each(continue_as_new)
    await office.all_complete()
    await office.each(has_continued)


async def test_a_new_version_of_the_worker_replaces_the_old_one(office: Office) -> None:
    """The runs are moved to it, as nobody serves their version any more."""
    at = Lab(office.client, office.lab.model, office.lab.otlp, office.lab.telemetry, office.queue)
    old, new = ({"TEMPORAL_DEPLOYMENT_NAME": office.queue, "TEMPORAL_WORKER_BUILD_ID": build} for build in ("a", "b"))
    await office.open(**old, WAITS_NAP_SECONDS="15")
    replaced = office.worker
    await make_current(at.client, at.task_queue, "a")
    await office.start(ROWS)
    await office.start_worker(**new)
    await make_current(at.client, at.task_queue, "b")
    replaced.terminate()
    await replaced.wait()

    moved: list[str] = []

    async def move(wait: Wait) -> None:
        for workflow_id in {wait.id, wait.waiting_id}:
            try:
                await pin(at.client, at.task_queue, workflow_id, "b")
            except RPCError:  # a nap that was due has ended the run
                assert (await office.handle(wait).describe()).status == WorkflowExecutionStatus.COMPLETED
                return
        moved.append(wait.name)

    async def has_moved(wait: Wait) -> None:
        if wait.name in moved:
            assert {"a", "b"} <= await builds_of(office.waiting(wait))

    await office.each(move)
    assert set(lasting()) <= set(moved)
    await office.all_complete()
    await office.each(has_moved)


def lasting() -> list[str]:
    """The rows whose waits do not end by themselves."""
    return [name for name, row in ROWS.items() if not row.is_due_meanwhile]


async def test_the_run_is_reset(office: Office) -> None:
    """Into the wait: it waits on, with the same token, response, batch and child."""
    await office.open()
    await office.start(lasting())
    at = Lab(office.client, office.lab.model, office.lab.otlp, office.lab.telemetry, office.queue)

    async def reset_into_the_wait(wait: Wait) -> None:
        handle = office.handle(wait)
        points = await points_of(handle)
        assert points
        await reset(at, handle, points[-1])

    await office.each(reset_into_the_wait)
    await office.all_complete()


async def stop(office: Office, wait: Wait) -> None:
    await office.handle(wait).execute_update("stop", {"reason": "lunch"})
    assert (await office.handle(wait).result())["status"] == "stopped"


async def cancel(office: Office, wait: Wait) -> None:
    await office.handle(wait).cancel()
    with pytest.raises(WorkflowFailureError) as failed:
        await office.handle(wait).result()
    assert isinstance(failed.value.cause, CancelledError)


@pytest.mark.parametrize("end", [stop, cancel])
async def test_the_run_is_ended_and_then_resumed(
    office: Office, end: Callable[[Office, Wait], Awaitable[None]]
) -> None:
    """The end reaches what was waited for. The resumed run completes, and repeats no call."""
    await office.open()
    await office.start(lasting())

    async def ends(wait: Wait) -> None:
        await end(office, wait)
        while len(wait.done()) < len(wait.row.effects) + len(
            wait.row.withdrawn
        ):  # a cancelled run does not wait for it
            await asyncio.sleep(0.05)
        assert wait.done() == (*wait.row.effects, *wait.row.withdrawn)
        if wait.row.agent in ("orderer", "chief"):
            late = await office.complete(wait)
            assert (late.status_code, late.json()["code"]) == (409, "run_ended")
        if wait.row.agent == "thinker":
            *_, stored = office.lab.model.background.of(wait.id)
            while not stored.is_deleted:
                await asyncio.sleep(0.05)
            assert (stored.is_cancelled, stored.is_deleted) == (True, True)

    async def resumes(wait: Wait) -> None:
        office.settle_models(wait)
        resumed = await resume_run(office.client, wait.id, task_queue=office.queue)
        result = await resumed.result()
        assert result["status"] == "completed"
        messages = (await resumed.query("messages", args=[0, 1000]))["messages"]
        kinds = [message["error"]["kind"] for message in messages if message.get("call_id") == "w"]
        assert kinds == [kind for kind in [wait.row.stopped if end is stop else wait.row.cancelled] if kind]
        assert wait.done() == (*wait.row.effects, *wait.row.withdrawn)
        if wait.row.agent == "thinker":
            stored = office.lab.model.background.of(wait.id)
            assert [(each.is_deleted, each.is_cancelled) for each in stored] == [
                (True, False), (True, True), (True, False),
            ]  # fmt: skip
        elif wait.row.agent == "batcher":
            await office_is_quiet()

    async def office_is_quiet() -> None:
        while office.batches.files:
            await asyncio.sleep(0.1)

    await office.each(ends)
    await office.each(resumes)


async def test_many_times_more_calls_wait_at_once_than_a_worker_has_places_for(office: Office) -> None:
    """In runs of ten calls, each of which is completed from outside. `WAITING_RUNS=100` has a thousand."""
    runs, calls = int(os.environ.get("WAITING_RUNS", "10")), 10
    # This worker is not lost: its heartbeats may be late on a busy machine, and no call is lost by that.
    await office.open(MULLIGAN_MAX_CONCURRENT_ACTIVITIES=str(calls), WAITS_HEARTBEAT_SECONDS="600")
    effects = office.folder / "crowd"
    given = {"agent": "crowd_orderer", "prompt": "Go.", "metadata": {"effects": str(effects)}}
    some = asyncio.Semaphore(10)

    async def waits() -> Handle:
        """A run once its calls wait. Not all begin together."""
        async with some:
            handle = await office.client.start_workflow(
                "AgentWorkflow", given, id=f"crowd-{uuid.uuid4().hex[:8]}", task_queue=office.queue
            )
            while True:
                with suppress(TypeError):
                    detail = (await handle.query("progress"))["waiting_for"]["detail"]
                    if f"(and {calls - 1} more)" in detail:
                        return handle
                await asyncio.sleep(0.2)

    handles = await asyncio.gather(*(waits() for _ in range(runs)))

    def tokens() -> Sequence[str]:
        return [line.split()[1] for line in effects.read_text().splitlines()]

    assert len(tokens()) == runs * calls
    limit = asyncio.Semaphore(20)

    async def complete(number: int, token: str) -> int:
        async with limit:
            return (await office.door.http.post(f"/api/callbacks/{token}", json={"result": number})).status_code

    answered = await asyncio.gather(*(complete(number, token) for number, token in enumerate(tokens())))
    assert answered == [200] * runs * calls
    results = await asyncio.gather(*(handle.result() for handle in handles))
    assert [(each["status"], each["tool_calls"]) for each in results] == [("completed", calls)] * runs
    read = [
        int(call["result"]["text"])
        for handle in handles
        for step in (await handle.query("steps"))["steps"]
        for call in step["tool_calls"]
    ]
    assert sorted(read) == [*range(runs * calls)]
    assert len(tokens()) == runs * calls
