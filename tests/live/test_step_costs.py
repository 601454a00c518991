"""What a step costs, by exact counts: a change that makes steps more expensive changes tests/live/step_costs.json as well.

`--write-costs` writes the file. Times are in `make bench`; here nothing is measured that the machine's load changes.
"""

from __future__ import annotations

import itertools
import json
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHandle

from mulligan import connect
from mulligan.activities import heartbeat
from mulligan.activities.models import live_text
from mulligan.devserver import DevServer
from mulligan.features import FEATURES
from mulligan.wire.agent_facts import OPEN_RUN
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.support.batch_server import BatchServer
from tests.support.compaction_agents import is_summing_up
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn
from tests.support.step_costs import CONVERSIONS, MOST_TRIES, MULLIGAN, SDK, Cost, Disturbed, Meter, counting_runtime
from tests.support.temporal import connect_to

FILE = Path(__file__).with_name("step_costs.json")
MEASUREMENTS = 3
MODULE = "tests.support.step_cost_agents"
VERSIONS = {"python": f"{sys.version_info.major}.{sys.version_info.minor}", "temporalio": version("temporalio")}
"""The counts are exact for the Python that has written them; with another SDK, for what is not the SDK's."""
LONG = 60
"""Seconds, more than a step takes."""
CHANGED = (
    "A step does not cost what tests/live/step_costs.json says. If that is meant, run this file with --write-costs."
)
HERE = '{"place": "here"}'
Handle = WorkflowHandle[Any, Any]
Script = Sequence[Turn] | Callable[[dict[str, Any], int], Turn]


def calling(name: str, arguments: str = HERE) -> Callable[[int], Script]:
    """A model that makes a call in each of some steps."""
    return lambda steps: [*(call(name, arguments, f"c{n}") for n in range(steps)), DONE]


def paying(steps: int) -> Script:
    return [*(call("pay", json.dumps({"place": str(n)}), f"c{n}") for n in range(steps)), DONE]


def handing_over(steps: int) -> Script:
    """Two models that hand the conversation to each other."""
    names = itertools.cycle(["receiving", "handing_over"])
    return [*(call(f"transfer_to_{next(names)}", "{}", f"c{n}") for n in range(steps)), DONE]


def reading(steps: int) -> Script:
    """A model of which a compaction hides its earlier answers: it counts its requests."""
    answers = itertools.count()

    def script(body: dict[str, Any], _: int) -> Turn:
        if is_summing_up(body):
            return Turn(text="It was read.")
        nth = next(answers)
        return call("read", HERE, f"c{nth}") if nth < steps else DONE

    return script


def failing(at: int) -> Callable[[int], Script]:
    """A model that fails in every second step, from step `at` on."""

    def script(steps: int) -> Script:
        def turn(_: dict[str, Any], nth: int) -> Turn:
            if nth % 2 == at:
                return Turn(failure=Failure(status=400))
            return call("look", HERE, f"c{nth}") if nth < steps else DONE

        return turn

    return script


async def approve(handle: Handle, nth: int) -> None:
    await handle.execute_update("decide", {"call_id": f"c{nth}", "decision": "approve"})


async def complete(handle: Handle, nth: int) -> None:
    await handle.execute_update("complete", {"call_id": f"c{nth}", "result": "nothing new"})


async def answer(handle: Handle, nth: int) -> None:
    await handle.execute_update("answer", {"call_id": f"c{nth}", "text": '{"nights": 2}'})


SPARE_BYTES = 32
"""Seconds in payloads are texts of more or fewer digits. An added field has more bytes."""


@dataclass(frozen=True)
class Case:
    """An agent, and what happens in each of its steps.

    `features`: those whose code may run. `scripts`: of further models. `act`: what people do when the n-th step waits.
    `settings`: of the worker. `prompts`: of the shorter and the longer run, where these say what the model does.
    """

    agent: str
    script: Callable[[int], Script]
    features: Sequence[str] = ()
    scripts: Mapping[str, Callable[[int], Script]] = field(default_factory=dict)
    act: Callable[[Handle, int], Awaitable[None]] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    settings: Sequence[str] = ()
    prompts: tuple[str, str] = ("Go.", "Go.")
    is_alone: bool = True
    """Whether the worker does nothing else meanwhile that depends on time: then its requests are counted."""
    is_fork: bool = False
    """Whether the run is forked from an equal one, whose results its calls get."""


CASES = {
    "no feature": Case("plain", calling("look")),
    "approvals": Case("asking", calling("leave"), ["approvals", "rules"], act=approve),
    "once": Case("paying", paying, ["once"]),
    "undo": Case("undoing", calling("look"), ["undo"]),
    "recorded tools": Case("plain", calling("look"), ["recorded_tools"], is_fork=True, is_alone=False),
    "deferred": Case("ordering", calling("order"), ["deferred"], act=complete),
    "server questions": Case(
        "booking", calling("web__book", '{"city": "Rome"}'), ["guarded", "server_questions"], act=answer,
    ),
    "sub-agents": Case(
        "boss", calling("ask_helper", '{"prompt": "Help."}'), ["sub_agents"],
        scripts={"step-cost-helper": lambda _: [DONE]},
    ),
    "guarded": Case("guarding", calling("look"), ["guarded"]),
    "handoffs, not needed": Case("handing_over", calling("look"), ["handoffs"]),
    "handoffs": Case("handing_over", handing_over, FEATURES),  # each is asked whether the other agent uses it
    "code mode": Case("coding", calling("run_code", '{"code": "await look(\'here\')"}'), ["code_mode"]),
    "tool search": Case("searching", calling("look"), ["tool_search"]),
    "skills": Case("skilled", calling("read_skill", '{"name": "looking"}'), ["skills"]),
    "budgets": Case(
        "plain", calling("look"), ["budgets"], given={"tenant": "acme"}, settings=["MULLIGAN_PRICES", "MULLIGAN_BUDGETS"]
    ),
    "clearing, not due": Case("remembering", calling("look"), ["clearing"]),
    "clearing": Case("forgetting", calling("read"), ["clearing"]),
    "compaction, not due": Case("with_room", calling("look"), ["compaction"]),
    "compaction": Case("reading", reading, ["compaction"]),
    "fallback, not needed": Case("failing_over", calling("look"), ["fallback"]),
    "fallback": Case("failing_over", failing(0), ["fallback"], scripts={"step-cost-second": failing(1)}),
    "background": Case("in_background", calling("look"), ["background"]),
    "batch": Case(
        "in_batches", lambda _: [], ["batch"], prompts=("reply", "count"), is_alone=False,
        settings=["OPENAI_BASE_URL", "MULLIGAN_CONTENT_DIR", "MULLIGAN_BATCH_SECONDS", "MULLIGAN_BATCH_POLL_SECONDS"],
    ),
    "calls in text": Case(
        "writing_calls", lambda steps: [*[Turn(text=f'{{"name": "look", "arguments": {HERE}}}')] * steps, DONE],
        ["calls_in_text"],
    ),
}  # fmt: skip
"""By what is measured: the cost of a step more. The models of all but `batch` are scripted."""


@pytest.fixture(scope="module", autouse=True)
def patch() -> Iterator[pytest.MonkeyPatch]:
    """No heartbeat depends on how long something takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_LIVE_TEXT_SECONDS", str(LONG))
        # It is in each task's event: the counts are the same on the way to a release and with it.
        patch.setattr("mulligan.worker.options.version", lambda _: "0.1.0")
        patch.setattr(heartbeat, "INTERVAL", LONG)
        patch.setattr(live_text, "FIRST_AFTER", LONG)
        patch.setattr(limits, "POLL_FIRST", 0.1)
        yield patch


@asynccontextmanager
async def metered(lab: Lab, server: DevServer, queue: str) -> AsyncIterator[Meter]:
    """A worker whose work is counted."""
    runtime, metrics = counting_runtime()
    client = await connect(server.address, namespace=server.namespace, runtime=runtime)
    async with running_worker(client, load([MODULE]), lab.telemetry, queue):
        yield Meter(await connect_to(server), metrics, queue)


@pytest.fixture(scope="module")
async def meter(lab: Lab, temporal: DevServer, patch: pytest.MonkeyPatch) -> AsyncIterator[Meter]:
    """A worker without settings of its own."""
    del patch
    async with metered(lab, temporal, f"costs-{uuid.uuid4().hex[:6]}") as meter:
        yield meter


@asynccontextmanager
async def set_up(names: Sequence[str], folder: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The settings of a case, and a provider for batches."""
    (folder / "prices.json").write_text(json.dumps({"models": {"step-cost": {"input": 1, "output": 1}}}))
    (folder / "budgets.toml").write_text('over_budget = "wait"\n[usd_per_day]\nacme = 1000\n')
    async with BatchServer() as server:
        values = {
            "MULLIGAN_PRICES": folder / "prices.json",
            "MULLIGAN_BUDGETS": folder / "budgets.toml",
            "MULLIGAN_CONTENT_DIR": folder / "content",
            "MULLIGAN_BATCH_SECONDS": 0.1,
            "MULLIGAN_BATCH_POLL_SECONDS": 0.1,
            "OPENAI_BASE_URL": server.base_url,
        }
        for name in names:
            patch.setenv(name, str(values[name]))
        yield


async def measure(meter: Meter, lab: Lab, case: Case, more: int) -> Cost:
    """The cost of a run of two steps, or of one `more`, and of the model's final answer."""
    run_input = {"agent": case.agent, "prompt": case.prompts[more], **case.given}
    for _ in range(MOST_TRIES):
        for model, script in {"step-cost": case.script, **case.scripts}.items():
            lab.model.script(model, script(2 + more))
        if case.is_fork:
            run_input["carried"] = await original(meter, run_input)
        try:
            return await meter.cost(f"cost-{uuid.uuid4().hex[:8]}", run_input, case.act)
        except Disturbed:
            continue
    raise AssertionError(f"the machine is too busy: each of {MOST_TRIES} runs was disturbed")


async def original(meter: Meter, run_input: dict[str, Any]) -> dict[str, Any]:
    """Where a fork of an equal run comes from: its first step."""
    given = {name: value for name, value in run_input.items() if name != "carried"}
    handle = await meter.start(f"original-{uuid.uuid4().hex[:8]}", given)
    await handle.result()
    return {"origin": {"kind": "fork", "workflow_id": handle.id, "run_id": handle.first_execution_run_id}}


async def cost_of_step(meter: Meter, lab: Lab, case: Case) -> Cost:
    """The cost of one more step. The first runs fill caches, and do not count."""
    for more in (0, 1):
        await measure(meter, lab, case, more)
    less = await measure(meter, lab, case, 0)
    cost = (await measure(meter, lab, case, 1)).since(less)
    # It opens both runs alike, but reads again what was remembered for a time.
    cost.calls.pop((OPEN_RUN, MULLIGAN), None)
    return cost


async def cost_with_settings(lab: Lab, server: DevServer, case: Case, folder: Path) -> Cost:
    """Each measurement has the same task queue: a tenant's budget of the day is kept by a workflow on that of the first one."""
    with pytest.MonkeyPatch.context() as patch:
        async with set_up(case.settings, folder, patch), metered(lab, server, "costs-shared") as meter:
            return await cost_of_step(meter, lab, case)


async def measured(name: str, lab: Lab, server: DevServer, meter: Meter, folder: Path) -> Cost:
    """The cost of one more step of a case, of what is compared."""
    case = CASES[name]
    if case.settings:
        cost = await cost_with_settings(lab, server, case, folder)
    else:
        cost = await cost_of_step(meter, lab, case)
    if not case.is_alone:
        cost.requests.clear()
        del cost.calls[CONVERSIONS, MULLIGAN]
    assert {feature for feature in cost.of_features if feature not in case.features} == set()
    return cost


def changes(name: str, cost: Cost, recorded: dict[str, Any]) -> list[str]:
    """What costs another number than is recorded, a line each."""
    before, now = recorded[name], cost.to_json()
    if recorded["temporalio"] != VERSIONS["temporalio"]:
        before, now = ({what: count for what, count in each.items() if SDK not in what} for each in (before, now))
    return [
        f"{name}: {what}: {before.get(what, 0)} recorded, {now.get(what, 0)} now"
        for what in sorted(before | now)
        if abs(before.get(what, 0) - now.get(what, 0)) > (SPARE_BYTES if what == "history: bytes" else 0)
    ]


@pytest.mark.parametrize("name", CASES)
async def test_a_step_costs_what_is_recorded(
    name: str, lab: Lab, temporal: DevServer, meter: Meter, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """And no code runs of a feature that the agent does not use.

    A busy machine costs more now and then: the SDK sends a request again that was not answered in time, which nobody sees.
    What the code costs is the same in each measurement.
    """
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    if pytestconfig.getoption("--write-costs"):
        cost = await measured(name, lab, temporal, meter, tmp_path)
        FILE.write_text(json.dumps({**recorded, **VERSIONS, name: cost.to_json()}, indent=1) + "\n")
        return
    if recorded["python"] != VERSIONS["python"]:
        pytest.skip(f"The counts were recorded with Python {recorded['python']}.")
    changed: list[str] = []
    for _ in range(MEASUREMENTS):
        changed = changes(name, await measured(name, lab, temporal, meter, tmp_path), recorded)
        if not changed:
            break
    assert changed == [], CHANGED


def test_each_case_is_recorded() -> None:
    """And nothing else; each feature has a case."""
    assert set(json.loads(FILE.read_text())) == {*VERSIONS, *CASES}
    assert {feature for case in CASES.values() for feature in case.features} == set(FEATURES)
