"""A fleet of an earlier release becomes the current tree while runs begin, work and wait: no run is lost (docs/upgrading.md).

The earlier release is a wheel, built from the tag of the newest release in this clone; where there is none, from the commit in
upgrade_from.txt, the newest one whose JSON and histories differ from those before: until 0.2.0 is released, no version reads
older ones. The names of the tests say which.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from mulligan.devserver import DevServer
from tests.support.command_fixtures import Outcome, command
from tests.support.temporal import connect_to, environment_of
from tests.support.worker_versions import make_current
from tests.system.features.test_new import uv

ROOT = Path(__file__).parents[2]
AGENTS = ROOT / "tests/support/fleet_agents.py"
EFFECTS = {"holder": 3, "payer": 2, "orderer": 2, "asker": 4, "writer": 3, "sleeper": 1, "spender": 2}
"""How many calls of each agent that waits have an effect, with those of its sub-agents."""
AT_ONCE = 3
"""Runs of the load that are open at any time."""


def git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)


def newest_release(tags: Iterable[str]) -> str | None:
    """The tag of the newest release. A candidate is none: Git, and names in their order, have v0.2.0rc1 after v0.2.0."""
    releases = [tag for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)]
    return max(releases, key=lambda tag: [int(number) for number in tag[1:].split(".")], default=None)


def earlier() -> str:
    """The newest release, else the commit of the file."""
    tags = git("tag", "--list", "v*").stdout.decode().split()
    return newest_release(tags) or Path(__file__).with_name("upgrade_from.txt").read_text().strip()


EARLIER = earlier()
NAME = EARLIER if EARLIER.startswith("v") else f"commit-{EARLIER[:8]}"


@pytest.fixture(scope="module", params=[EARLIER], ids=[NAME])
def earlier_python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the earlier wheel and the dependencies that it was released with."""
    archive = git("archive", request.param)
    if archive.returncode:
        pytest.skip(f"{NAME} is not in this clone, which may be shallow: {archive.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as source:
        source.extractall(folder / "source", filter="tar")
    build: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"]
    subprocess.run(build, cwd=folder / "source", check=True, capture_output=True)
    [wheel] = (folder / "dist").glob("*.whl")
    python = folder / "venv/bin/python"
    install: list[str | Path] = [uv(), "pip", "install", "--quiet", "--python", python]
    subprocess.run([uv(), "venv", "--quiet", "--python", sys.executable, folder / "venv"], cwd=folder, check=True)
    subprocess.run([*install, "-r", folder / "source/deploy/requirements.txt"], cwd=folder, check=True)
    subprocess.run([*install, "--no-deps", wheel], cwd=folder, check=True)
    return python


@dataclass
class Fleet:
    """Workers of two releases, and the runs that they work on."""

    client: Client
    folder: Path
    queue: str
    environment: dict[str, str]
    waiting: dict[str, WorkflowHandle[Any, Any]] = field(default_factory=dict)
    loaded: dict[str, dict[str, Any]] = field(default_factory=dict)

    def set_budget(self, usd: int) -> None:
        """Write what the tenant may spend on a day. It has the name of the queue: its sum is a workflow of these workers."""
        (self.folder / "budgets.toml").write_text(f"[usd_per_day]\n{self.queue} = {usd}\n")

    @asynccontextmanager
    async def worker(self, python: Path, **env: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """A worker process, as soon as it serves; killed at the end of the block, unless it has been stopped."""
        log = self.folder / f"{uuid.uuid4().hex}.log"
        with log.open("w") as file:
            process = await asyncio.create_subprocess_exec(
                python, "-P", "-m", "mulligan", "worker", "--load", "fleet_agents", "--task-queue", self.queue,
                cwd=self.folder, env=self.environment | env, stdin=asyncio.subprocess.DEVNULL, stderr=file,
            )  # fmt: skip
        try:
            while "Serving" not in log.read_text():
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.1)
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def mulligan(self, python: Path, *words: str) -> Outcome:
        """A command of one of the releases."""
        return await command(str(python), "-P", "-m", "mulligan", *words, cwd=self.folder, env=self.environment)

    async def start(self, agent: str, name: str) -> WorkflowHandle[Any, Any]:
        given = {"agent": agent, "prompt": "Go."}
        if agent == "spender":
            given["tenant"] = self.queue
        return await self.client.start_workflow(
            "AgentWorkflow", given, id=f"{self.queue}-{name}", task_queue=self.queue
        )

    async def start_all_that_wait(self) -> None:
        """A run in each kind of wait: a tool's call, a person, a deferred result, a timer, a budget, a sub-agent, a script's
        call.
        """
        for agent in EFFECTS:
            self.waiting[agent] = await self.start(agent, f"waits-{agent}")
        for agent, kind in (("payer", "person"), ("orderer", "callback"), ("sleeper", "timer"), ("spender", "timer")):
            while ((await self.waiting[agent].query("progress"))["waiting_for"] or {}).get("kind") != kind:
                await asyncio.sleep(0.1)
        while len(list(self.folder.glob("holds-*"))) < 3:
            await asyncio.sleep(0.1)

    async def end_all_waits(self, decides: Path) -> None:
        """What each of them waits for happens; one release's commands decide."""
        (self.folder / "go").touch()
        self.set_budget(1_000_000)
        payer, orderer = self.waiting["payer"].id, self.waiting["orderer"].id
        for words in (["approve", payer, "asked"], ["complete", orderer, "asked", "--result", '"came"']):
            said = await self.mulligan(decides, *words)
            assert said.code == 0, said.err

    async def load(self, until: asyncio.Event, worker: int) -> None:
        """Runs one after the other."""
        number = 0
        while not until.is_set():
            run = await self.start("booker", f"load-{worker}-{number}")
            self.loaded[run.id] = await run.result()
            number += 1

    @asynccontextmanager
    async def under_load(self) -> AsyncIterator[None]:
        """Runs begin and end in the block. At its end, each has its result."""
        until = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for worker in range(AT_ONCE):
                group.create_task(self.load(until, worker))
            yield
            until.set()

    async def await_loaded(self, more: int) -> None:
        """Wait until more runs of the load have ended."""
        wanted = len(self.loaded) + more
        while len(self.loaded) < wanted:
            await asyncio.sleep(0.1)

    async def check_each_run(self) -> None:
        """None was lost, failed or recovered from anything, and each effect happened once."""
        results = [*self.loaded.values(), *[await handle.result() for handle in self.waiting.values()]]
        assert {(each["status"], each["output"], each["recovered_failures"]) for each in results} == {
            ("completed", "Done.", 0)
        }
        effects = Counter(line.rpartition(" ")[0] for line in (self.folder / "effects").read_text().splitlines())
        assert set(effects.values()) == {1}
        by_run = Counter(name.rpartition(" ")[0].removeprefix(f"{self.queue}-").split("/")[0] for name in effects)
        waited = {agent: sum(n for run, n in by_run.items() if run.startswith(f"waits-{agent}")) for agent in EFFECTS}
        assert waited == EFFECTS
        booked = {run: number for run, number in by_run.items() if run.startswith("load-")}
        assert len(booked) == len(self.loaded)
        assert set(booked.values()) == {4}

    async def pids(self, run: WorkflowHandle[Any, Any]) -> set[int]:
        """The processes that worked on a run: its workflow tasks and its activities."""
        found = set()
        async for event in run.fetch_history_events():
            for kind in ("workflow_task_started", "activity_task_started"):
                if event.HasField(f"{kind}_event_attributes"):  # type: ignore[arg-type]
                    found.add(int(getattr(event, f"{kind}_event_attributes").identity.partition("@")[0]))
        return found


@pytest.fixture
async def fleet(temporal: DevServer, tmp_path: Path) -> Fleet:
    shutil.copy(AGENTS, tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    queue = f"fleet-{uuid.uuid4().hex[:6]}"
    settings = {
        "PYTHONPATH": str(tmp_path),
        "FLEET": str(tmp_path),
        "MULLIGAN_GRACE_SECONDS": "60",
        "MULLIGAN_TASK_QUEUE": queue,
        "MULLIGAN_PRICES": str(tmp_path / "prices.json"),
        "MULLIGAN_BUDGETS": str(tmp_path / "budgets.toml"),
    }
    # One token is 1 USD: the first model call costs more than the budget.
    (tmp_path / "prices.json").write_text('{"models": {"scripted:spends": {"input": 1000000, "output": 0}}}')
    made = Fleet(await connect_to(temporal), tmp_path, queue, kept | environment_of(temporal) | settings)
    made.set_budget(1)
    return made


CURRENT = Path(sys.executable)


def test_a_candidate_is_no_earlier_release() -> None:
    assert newest_release(["v0.2.0rc1", "v0.2.0", "v0.10.0", "v0.9.1", "v0.11.0rc2", "v1"]) == "v0.10.0"
    assert newest_release(["v0.1.0rc1"]) is None


async def test_no_run_is_lost_without_worker_versioning(fleet: Fleet, earlier_python: Path) -> None:
    """Workers are replaced one by one, as Kubernetes does: for a while both releases work on the same runs."""
    async with AsyncExitStack() as workers:
        old = [await workers.enter_async_context(fleet.worker(earlier_python)) for _ in range(2)]
        new = []
        async with fleet.under_load():
            await fleet.start_all_that_wait()
            for leaving in old:
                new.append(await workers.enter_async_context(fleet.worker(CURRENT)))
                await fleet.await_loaded(AT_ONCE)
                leaving.terminate()
            await fleet.end_all_waits(decides=earlier_python)
            assert [await each.wait() for each in old] == [0, 0]
            await fleet.await_loaded(2 * AT_ONCE)
        await fleet.check_each_run()
        for agent, run in fleet.waiting.items():
            worked = await fleet.pids(run)
            assert worked & {each.pid for each in old}, f"{agent} began after the upgrade"
            assert worked & {each.pid for each in new}, f"{agent} ended before it"
        first, *_, newest = fleet.loaded
        await check_read(fleet, [earlier_python, CURRENT], first, newest)


async def test_no_run_is_lost_with_worker_versioning(fleet: Fleet, earlier_python: Path) -> None:
    """A run ends on the release on which it began, and is read and continued when no worker of that release is left."""
    async with AsyncExitStack() as workers:
        old = await two_of_a_version(workers, fleet, earlier_python, "earlier")
        async with fleet.under_load():
            await fleet.start_all_that_wait()
            new = await two_of_a_version(workers, fleet, CURRENT, "current")
            await fleet.await_loaded(3 * AT_ONCE)
            await fleet.end_all_waits(decides=CURRENT)
            await asyncio.gather(*[run.result() for run in fleet.waiting.values()])
            for leaving in old:
                leaving.terminate()
            assert [await each.wait() for each in old] == [0, 0]
            await fleet.await_loaded(AT_ONCE)
        await fleet.check_each_run()
        for run in fleet.waiting.values():
            assert await fleet.pids(run) <= {each.pid for each in old}
        await check_read(fleet, [CURRENT])
        holder, resumed = fleet.waiting["holder"].id, f"{fleet.queue}-resumed"
        said = await fleet.mulligan(CURRENT, "resume", holder, "And now?", "--id", resumed, "--wait")
        assert said.code == 0, said.err
        assert await fleet.pids(fleet.client.get_workflow_handle(resumed)) <= {each.pid for each in new}


async def two_of_a_version(
    workers: AsyncExitStack, fleet: Fleet, python: Path, build: str
) -> list[asyncio.subprocess.Process]:
    """Two workers of a version, which gets the runs that begin from now on."""
    version = {"TEMPORAL_DEPLOYMENT_NAME": fleet.queue, "TEMPORAL_WORKER_BUILD_ID": build}
    two = [workers.enter_async_context(fleet.worker(python, **version)) for _ in range(2)]
    made = await asyncio.gather(*two)
    await make_current(fleet.client, fleet.queue, build)
    return made


async def check_read(fleet: Fleet, readers: Sequence[Path], *runs: str) -> None:
    """Each release reads what the other one has written, also in the run with a script."""
    for python, run_id in product(readers, (fleet.waiting["writer"].id, *runs)):
        told = await fleet.mulligan(python, "show", run_id, "--json")
        assert told.code == 0, told.err
        assert json.loads(told.out)["status"] == "completed"
