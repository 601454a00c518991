"""Experiments: many runs again, with a change, in one durable workflow; scores, baselines, costs, and a worker that is killed."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.testing import ActivityEnvironment
from typer.testing import CliRunner

from mulligan.activities.experiments.experiment_contents import ExperimentContents
from mulligan.activities.experiments.run_row import RunRowActivities
from mulligan.cli.app import app
from mulligan.client.experiments.experiment_content import pack_content
from mulligan.client.experiments.read_experiments import read_experiment
from mulligan.client.experiments.start_experiment import start_experiment
from mulligan.client.export_case import export_case
from mulligan.client.origins.fork_run import parse_fork, start_fork
from mulligan.client.start_run import read_start
from mulligan.devserver import DevServer
from mulligan.run_input import RunInput
from mulligan.wire.experiments import (
    EXPERIMENT_WORKFLOW,
    ID_PREFIX,
    ExperimentContent,
    ExperimentPlan,
    Line,
    Row,
    RowRequest,
)
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.live.test_fork import delete
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Failure, Turn
from tests.support.temporal import environment_of
from tests.support.worker_process import worker_process

MODULE = "tests.support.experiment_agents"
BOOK = '{"place": %d}'


@dataclass
class Bookings:
    """A worker for the agents, the commands that use it, and what its tool has done."""

    lab: Lab
    file: Path

    async def run(self, turns: Any, *, fails: bool = False, **run_input: Any) -> str:
        """Run the booker to its end, which may be a failure; returns the run's id."""
        handle = await self.lab.start(turns, agent="booker", metadata={"bookings": str(self.file)}, **run_input)
        with suppress(WorkflowFailureError) if fails else nullcontext():
            await handle.result()
        return str(handle.id)

    async def command(self, *words: str) -> tuple[int, Any, str]:
        """A command's exit code, its output (as JSON where it is), and its standard error."""
        ran = await asyncio.to_thread(CliRunner().invoke, app, words, catch_exceptions=False)
        try:
            return ran.exit_code, json.loads(ran.stdout), ran.stderr
        except ValueError:
            return ran.exit_code, ran.stdout, ran.stderr

    async def rows(self, content: ExperimentContent, **plan: Any) -> list[dict[str, Any]]:
        """The rows of an experiment whose workflow is started with this plan."""
        name = f"planned-{uuid.uuid4().hex[:6]}"
        started = await self.lab.client.start_workflow(
            EXPERIMENT_WORKFLOW,
            args=[ExperimentPlan(name=name, concurrency=1, **plan), pack_content(content, is_stored=False)],
            id=f"{ID_PREFIX}{name}",
            task_queue=self.lab.task_queue,
        )
        return list((await started.result())["rows"])

    @property
    def booked(self) -> Counter[str]:
        """How often the tool ran, by the runs' ids."""
        return (
            Counter(line.split()[0] for line in self.file.read_text().splitlines()) if self.file.exists() else Counter()
        )


@pytest.fixture(scope="module")
async def served(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    """A worker for the agents, with prices."""
    at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, f"exp-{uuid.uuid4().hex[:6]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULLIGAN_PRICES", str(price_file(tmp_path_factory.mktemp("prices"))))
        async with running_worker(lab.client, load([MODULE]), lab.telemetry, at.task_queue):
            yield at


@pytest.fixture
def bookings(served: Lab, temporal: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bookings:
    for name, value in {**environment_of(temporal), "MULLIGAN_TASK_QUEUE": served.task_queue}.items():
        monkeypatch.setenv(name, value)
    return Bookings(served, tmp_path / "bookings")


def price_file(folder: Path) -> Path:
    """A file of prices. 10 input tokens of `paid` are 1 USD."""
    prices = {"models": {"cheap-model": {"input": 1.0, "output": 2.0}, "paid": {"input": 100_000.0, "output": 0.0}}}
    (folder / "prices.json").write_text(json.dumps(prices))
    return folder / "prices.json"


def answering(text: str, place: int = 1) -> list[Turn]:
    """The model books a place and answers."""
    return [call("book", BOOK % place), Turn(text=text)]


async def test_each_outcome_is_a_row_and_nothing_happens_outside(bookings: Bookings) -> None:
    """The same run, one that answers otherwise, one that makes another call, and one that fails."""
    runs = [await bookings.run(answering("done")) for _ in range(4)]
    before = bookings.booked
    other = f"other-{uuid.uuid4().hex[:6]}"
    for run_id, turns in zip(runs[1:], (answering("well"), answering("done", 2), [Turn(refusal="No.")]), strict=True):
        bookings.lab.model.script(run_id, turns)
    name = f"first-{other}"
    code, table, _ = await bookings.command("whatif", "--runs", *runs, "--name", name, "--json")
    assert code == 0
    assert (table["name"], [row["id"] for row in table["rows"]]) == (name, runs)
    assert [row["outcome"] for row in table["rows"]] == ["same", "other", "diverged", "failed"]
    assert [row["run_id"] for row in table["rows"]] == [f"{name}-{number}" for number in range(1, 5)]
    assert [row.get("step") for row in table["rows"]] == [None, None, 1, None]
    assert [row["steps"] for row in table["rows"]] == [2, 2, 1, 1]
    assert [row["tokens"] for row in table["rows"]] == [30, 30, 15, 15]
    assert "would have called `book`" in table["rows"][2]["error"]
    assert "'refused'" in table["rows"][3]["error"]
    assert bookings.booked == before
    listed = (await bookings.command("experiments", "--json"))[1]
    assert [(each["name"], each["rows"], each["status"]) for each in listed if each["name"] == name] == [
        (name, 4, "completed")
    ]
    assert (await bookings.command("experiments", name, "--json"))[1]["rows"] == table["rows"]
    assert name in (await bookings.command("experiments", "5"))[1]


async def test_the_change_is_in_every_run_and_the_newest_runs_of_an_agent_are_taken(
    bookings: Bookings, tmp_path: Path
) -> None:
    """Without the runs of earlier experiments; `--at` says where they begin."""
    agent_runs = [await bookings.run(answering("done")) for _ in range(3)]
    other = f"other-{uuid.uuid4().hex[:6]}"
    bookings.lab.model.script(other, answering("done"))
    (tmp_path / "calm.md").write_text("You are calm.")
    words = ["whatif", "--agent", "booker", "--last", "2", "--model", f"openai-chat:{other}", "--json"]
    for at, steps in (("first", 2), ("last", 1), ("2", 1)):
        _, table, _ = await bookings.command(*words, "--instructions", str(tmp_path / "calm.md"), "--at", at)
        assert {row["id"] for row in table["rows"]} == {*agent_runs[1:]}
        assert [(row["outcome"], row["steps"]) for row in table["rows"]] == [("same", steps)] * 2
    sent = [request.json["messages"][0]["content"] for request in bookings.lab.model.requests_of(other)]
    assert sent == ["You are calm."] * 8


async def test_a_killed_worker_loses_no_run_and_starts_none_twice(
    lab: Lab, temporal: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only worker is killed while rows run. The command follows the experiment to its end."""
    queue, name = f"killed-{uuid.uuid4().hex[:6]}", f"killed-{uuid.uuid4().hex[:6]}"
    for key, value in {**environment_of(temporal), "MULLIGAN_TASK_QUEUE": queue}.items():
        monkeypatch.setenv(key, value)
    at = Bookings(Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue), tmp_path / "bookings")
    other, count = f"other-{name}", 10
    lab.model.script(other, lambda body, nth: Turn(text="done", delay=0.3) if nth else call("book", BOOK % 1))
    async with worker_process(MODULE, queue, temporal) as first:
        runs = await asyncio.gather(*(at.run(answering("done")) for _ in range(count)))
        before = at.booked
        words = (
            "whatif",
            "--runs",
            *runs,
            "--model",
            f"openai-chat:{other}",
            "--concurrency",
            "4",
            "--name",
            name,
            "--json",
        )
        following = asyncio.create_task(at.command(*words))
        await lab.model.wait_for_requests(6, other)
        first.send_signal(signal.SIGKILL)
        await first.wait()
    assert len(lab.model.requests_of(other)) < 2 * count
    async with worker_process(MODULE, queue, temporal):
        code, table, _ = await following
    assert (code, [row["id"] for row in table["rows"]]) == (0, [*runs])
    assert {row["outcome"] for row in table["rows"]} == {"same"}
    assert at.booked == before
    started = [each.id async for each in lab.client.list_workflows(f'WorkflowId STARTS_WITH "{name}-"')]
    assert sorted(started) == sorted(f"{name}-{number}" for number in range(1, count + 1))


async def test_no_more_runs_are_open_than_the_concurrency_allows(bookings: Bookings) -> None:
    """By the times of their starts and ends, as Temporal has them."""
    runs = [await bookings.run([DONE]) for _ in range(2)]
    other, name, held = f"other-{uuid.uuid4().hex[:6]}", f"some-{uuid.uuid4().hex[:6]}", asyncio.Event()
    bookings.lab.model.script(other, lambda body, nth: Turn(text="done", wait=held))
    content = ExperimentContent(runs=runs, repeat=4, fork={"edits": {"model": f"openai-chat:{other}"}})
    plan = {"name": name, "concurrency": 3}
    started = await start_experiment(bookings.lab.client, content, plan, bookings.lab.task_queue)
    await bookings.lab.model.wait_for_requests(3, other)
    held.set()
    assert len((await started.result())["rows"]) == 8
    handles = [bookings.lab.client.get_workflow_handle(f"{name}-{number}") for number in range(1, 9)]
    times = [(described.start_time, described.close_time) for described in [await each.describe() for each in handles]]
    open_at = [sum(begun <= at < ended for begun, ended in times if ended) for at, _ in times]
    assert max(open_at) == 3


async def test_an_experiment_continues_as_new_and_finishes(
    lab: Lab, chain_server: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that are done and what they cost are carried over, and the content stays in the first event."""
    from mulligan import connect

    queue = f"chain-{uuid.uuid4().hex[:6]}"
    for key, value in {**environment_of(chain_server), "MULLIGAN_TASK_QUEUE": queue}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("MULLIGAN_PRICES", str(price_file(tmp_path)))
    client = await connect(chain_server.address)
    lab.model.script("paid", lambda body, nth: DONE)
    at = Bookings(Lab(client, lab.model, lab.otlp, lab.telemetry, queue), tmp_path / "bookings")
    async with running_worker(client, load([MODULE]), lab.telemetry, queue):
        runs = [await at.run([DONE]) for _ in range(12)]
        score = f"{MODULE}:is_right"
        words = ("whatif", "--runs", *runs, "--score", score, "--name", queue, "--model", "openai-chat:paid", "--json")
        code, table, _ = await at.command(*words, "--max-cost", "100")
    assert (code, [(row["id"], row["outcome"], row["score"]) for row in table["rows"]]) == (
        0,
        [(run_id, "same", 1.0) for run_id in runs],
    )
    experiment = client.get_workflow_handle(f"mulligan-experiment-{queue}")
    described = (await experiment.describe()).raw_description.workflow_execution_info
    assert described.first_run_id != described.execution.run_id
    [plan, _] = await client.data_converter.decode((await read_start(experiment)).input.payloads)
    assert plan["spent"] == len(plan["table"]) > 0  # USD
    history = (await experiment.fetch_history()).to_json()
    assert runs[0] not in re.sub(r'"payloads".*?\]', "", history)


async def test_the_same_command_again_follows_and_another_of_its_name_is_refused(bookings: Bookings) -> None:
    [run_id, other] = [await bookings.run([DONE]) for _ in range(2)]
    name = f"again-{uuid.uuid4().hex[:6]}"
    _, first, _ = await bookings.command("whatif", "--runs", run_id, "--name", name, "--json")
    _, again, _ = await bookings.command("whatif", run_id, "--name", name, "--json")
    assert first == again
    code, _, error = await bookings.command("whatif", "--runs", other, "--name", name)
    assert (code, f"another experiment '{name}' already" in error) == (2, True)


async def test_a_score_is_a_number_or_a_mapping_and_its_failure_is_a_row_with_an_error(bookings: Bookings) -> None:
    """It is on a span of the new run, as an event of the conventions; the means decide the exit code."""
    run_id = await bookings.run(answering("done"))
    whatif = ("whatif", "--runs", run_id, "--json", "--at-least", "0.5", "--score")
    code, table, _ = await bookings.command(*whatif, f"{MODULE}:marks")
    assert (code, table["rows"][0]["score"], table["means"]) == (
        0,
        {"right": 1.0, "calls": 1.0},
        {"right": 1.0, "calls": 1.0},
    )
    bookings.lab.model.script(run_id, answering("worse"))
    code, table, error = await bookings.command(*whatif, f"{MODULE}:is_right")
    assert (code, table["rows"][0]["score"], table["means"]) == (1, 0.0, {"score": 0.0})
    assert "below --at-least 0.5: score" in error
    bookings.lab.telemetry.flush()
    result = await bookings.lab.client.get_workflow_handle(table["rows"][0]["run_id"]).result()
    spans = bookings.lab.otlp.spans(trace_id=result["trace_id"])
    [root] = [span for span in spans if span.name == "invoke_agent booker"]
    [evaluation] = [span for span in spans if span.name == "agent.evaluation"]
    assert evaluation.parent_span_id == root.span_id
    attributes = {"gen_ai.evaluation.name": f"{MODULE}:is_right", "gen_ai.evaluation.score.value": 0.0}
    assert evaluation.events == [("gen_ai.evaluation.result", attributes)]
    for function, why in (
        ("breaks", "LookupError: no such word"),
        ("says_text", "it is str; it must be a finite number"),
    ):
        code, table, _ = await bookings.command(*whatif, f"{MODULE}:{function}")
        assert (code, table["rows"][0].get("score"), table["rows"][0]["outcome"]) == (1, None, "other")
        assert why in table["rows"][0]["error"]


async def test_a_cancelled_experiment_ends_its_command_and_its_runs_go_on(bookings: Bookings) -> None:
    run_id, name, held = await bookings.run([DONE]), f"cancelled-{uuid.uuid4().hex[:6]}", asyncio.Event()
    bookings.lab.model.script(run_id, [Turn(text="done", wait=held)])
    following = asyncio.create_task(bookings.command("whatif", "--runs", run_id, "--name", name))
    await bookings.lab.model.wait_for_requests(2, run_id)
    await bookings.command("cancel", f"{ID_PREFIX}{name}")
    code, _, error = await following
    assert (code, f"the experiment {name} ended early" in " ".join(error.split())) == (1, True)
    held.set()
    assert (await bookings.lab.client.get_workflow_handle(f"{name}-1").result())["status"] == "completed"
    assert "cancelled, 0 of 1 rows" in (await bookings.command("experiments", name))[1]


async def test_a_score_that_no_worker_has_starts_no_run(bookings: Bookings) -> None:
    run_id, name = await bookings.run([DONE]), f"none-{uuid.uuid4().hex[:6]}"
    code, _, error = await bookings.command("whatif", "--runs", run_id, "--name", name, "--score", "checks:missing")
    assert code == 2
    assert "'checks:missing'" in error
    assert f"{MODULE}:is_right" in error
    assert [each.id async for each in bookings.lab.client.list_workflows(f'WorkflowId STARTS_WITH "{name}-"')] == []


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "give --runs with the ids of runs, or --agent"),
        (("--runs", "no-such-run"), "there is no run 'no-such-run'"),
        (("--agent", "nobody"), "the agent 'nobody' has no ended run"),
        (("--runs", "x", "--at", "soon"), "--at is 'soon'"),
        (("--runs", "x", "--model", "gpt"), "cannot be used"),
        (("--runs", "x", "--name", "a b"), "The name 'a b' cannot be that of an experiment"),
        (
            ("--runs", "x", "--model", "openai-chat:nowhere", "--max-cost", "1"),
            "the price of openai-chat:nowhere is not known",
        ),
        (("--runs", "x", "--max-cost", "0"), "--max-cost is 0"),
        (("--runs", "x", "--baseline", "/nowhere.json"), "--baseline: /nowhere.json cannot be read"),
    ],
)
async def test_a_wrong_whatif_is_refused_with_a_sentence(bookings: Bookings, words: tuple[str, ...], why: str) -> None:
    run_id = await bookings.run([DONE]) if "x" in words else ""
    code, _, error = await bookings.command("whatif", *(run_id if word == "x" else word for word in words))
    assert (code, why in " ".join(error.split())) == (2, True), error


async def test_runs_that_cannot_be_forked_are_skipped_and_deleted_ones_say_so(bookings: Bookings) -> None:
    """A step that there is not; a run that was deleted before its fork was begun, or after that."""
    run_id = await bookings.run(answering("done"))
    code, table, _ = await bookings.command("whatif", "--runs", run_id, "--at", "9", "--json")
    [row] = table["rows"]
    assert (code, row["outcome"], row["run_id"]) == (0, "skipped", None)
    assert "There is no step 9" in row["error"]
    [row] = await bookings.rows(ExperimentContent(runs=["gone"]), rows=1)
    assert (row["outcome"], row["run_id"]) == ("skipped", None)
    assert row["error"] == "There is no run 'gone' on this server."
    ran = await bookings.lab.run(answering("done"), agent="booker", metadata={"bookings": str(bookings.file)})
    held = asyncio.Event()
    bookings.lab.model.script(ran.id, [Turn(text="done", wait=held)])
    asking = asyncio.create_task(bookings.command("whatif", "--runs", ran.id, "--json"))
    await bookings.lab.model.wait_for_requests(3, ran.id)
    await delete(bookings.lab.client, ran)
    held.set()
    _, table, _ = await asking
    [row] = table["rows"]
    assert row["outcome"] == "failed"
    assert "is no longer on this server" in row["error"]


async def test_the_cost_is_reserved_before_a_run_begins(bookings: Bookings) -> None:
    """Twice the tokens of the earlier run at the model's prices: its own limit. What does not fit is skipped."""
    bookings.lab.model.script("paid", lambda body, nth: call("book", BOOK % 1) if nth < 5 else DONE)
    runs = [await bookings.run(answering("done")) for _ in range(3)]
    words = [
        "whatif",
        "--runs",
        *runs,
        "--model",
        "openai-chat:paid",
        "--json",
        "--name",
        name := f"paid-{uuid.uuid4().hex[:6]}",
    ]
    _, table, _ = await bookings.command(
        *words, "--max-cost", "8.5", "--unrecorded", "error"
    )  # 20 tokens are 2 USD; 4 a row
    rows = table["rows"]
    assert sorted(row["outcome"] for row in rows) == ["failed", "failed", "skipped"]
    assert {row["usd"] for row in rows if row["outcome"] == "failed"} == {4.0}
    assert all("max_cost" in row["error"] for row in rows if row["outcome"] == "failed")
    assert "--max-cost does not suffice" in next(row["error"] for row in rows if row["outcome"] == "skipped")
    assert len([each async for each in bookings.lab.client.list_workflows(f'WorkflowId STARTS_WITH "{name}-"')]) == 2
    _, table, _ = await bookings.command("whatif", "--runs", runs[0], "--max-cost", "9", "--json")
    assert (table["rows"][0]["outcome"], "the price of" in table["rows"][0]["error"]) == ("skipped", True)


async def test_a_run_of_which_no_usage_is_known_has_an_equal_share_of_the_cost(bookings: Bookings) -> None:
    """Its first model call has failed: where an endpoint counts no tokens, they are estimated."""
    bookings.lab.model.script("paid", lambda body, nth: call("book", BOOK % 1) if nth < 9 else DONE)
    runs = [await bookings.run([Turn(failure=Failure(400))], fails=True) for _ in range(2)]
    words = ("--model", "openai-chat:paid", "--unrecorded", "error", "--max-cost", "6", "--json")
    _, table, _ = await bookings.command("whatif", "--runs", *runs, *words)
    assert [(row["outcome"], row["usd"]) for row in table["rows"]] == [("failed", 3.0)] * 2
    assert all("max_cost" in row["error"] for row in table["rows"])


async def test_what_rows_may_have_cost_is_not_spent_again(bookings: Bookings) -> None:
    """The cost of the first row is not known: its limit counts, also in the next run of the chain."""
    runs = [await bookings.run(answering("done")) for _ in range(2)]
    content = ExperimentContent(runs=runs, fork={"at": 1, "edits": {"model": "openai-chat:paid"}})
    before = {0: Row(id=runs[0], outcome="failed", usd=None)}
    [_, row] = await bookings.rows(content, rows=2, max_cost=5.0, table=before, spent=4.0)
    assert (row["outcome"], "--max-cost does not suffice" in row["error"]) == ("skipped", True)


async def test_a_row_without_money_does_not_replace_another_repetition(bookings: Bookings) -> None:
    """The comparison of versions knows rows by their ids and repetitions. A line of a file stays one."""
    run = await bookings.run(answering("done"))
    fork = {"at": 1, "edits": {"model": "openai-chat:paid"}}
    line = Line(id="line 1", input=RunInput(agent="booker", prompt="Book it."))
    content = ExperimentContent(runs=[run], lines=[line], agent="booker", repeat=2, fork=fork)
    rows = await bookings.rows(content, rows=4, max_cost=1.0, spent=1.0)
    assert {row["outcome"] for row in rows} == {"skipped"}
    assert [(row.get("repetition", 1), row.get("line", False)) for row in rows] == [
        (1, False),
        (2, False),
        (1, True),
        (2, True),
    ]


@pytest.mark.parametrize("max_cost", [None, 1.0])
async def test_an_experiment_whose_content_is_gone_ends_with_a_sentence_for_each_row(
    bookings: Bookings, max_cost: float | None
) -> None:
    gone = str(uuid.uuid4())
    rows = await bookings.rows(ExperimentContent(runs=["a", "b"]), rows=2, max_cost=max_cost, first_run_id=gone)
    assert [(row["id"], row["outcome"]) for row in rows] == [("row 1", "failed"), ("row 2", "failed")]
    assert all("is no longer on this server" in row["error"] for row in rows)


@pytest.mark.parametrize("attempt", [1, 2])
async def test_the_run_of_somebody_else_is_not_taken_for_that_of_a_row(bookings: Bookings, attempt: int) -> None:
    """An equal fork, with the id that the row's run would have."""
    run_id, name = await bookings.run(answering("done")), f"taken-{uuid.uuid4().hex[:6]}"
    client, content = bookings.lab.client, ExperimentContent(runs=[run_id], fork={"at": 1})
    await start_fork(client, run_id, parse_fork(content.fork), new_id=f"{name}-1")
    plan = {"name": name, "concurrency": 1, "max_cost": None, "score": None}
    experiment = await start_experiment(client, content, plan, "nobody-works-here")
    request = RowRequest(
        name=name, workflow_id=experiment.id, first_run_id=experiment.first_execution_run_id or "", number=0
    )
    environment = ActivityEnvironment(client)
    environment.info = replace(environment.info, attempt=attempt)
    services: Any = None
    row = await environment.run(RunRowActivities(services, ExperimentContents()).run_row, request)
    await experiment.terminate()
    assert (row.outcome, row.run_id, f"another run '{name}-1' already" in (row.error or "")) == ("skipped", None, True)


async def cases_of(bookings: Bookings, folder: Path, count: int) -> list[str]:
    """Cases of runs in a folder; returns the runs' ids."""
    folder.mkdir()
    runs = [await bookings.run(answering(f"answer {number}")) for number in range(count)]
    for run_id in runs:
        case = await export_case(bookings.lab.client, run_id)
        (folder / f"{run_id}.json").write_text(case.model_dump_json())
    return sorted(runs)


async def test_cases_are_evaluated_with_recorded_tools_and_compared_with_a_baseline(
    bookings: Bookings, tmp_path: Path
) -> None:
    runs = await cases_of(bookings, tmp_path / "cases", 3)
    before = bookings.booked
    words = [
        "eval",
        str(tmp_path / "cases"),
        "--agent",
        "booker",
        "--score",
        f"{MODULE}:is_right",
        "--repeat",
        "2",
        "--json",
    ]
    code, table, _ = await bookings.command(*words, "--at-least", "1")
    assert (code, table["means"]) == (0, {"score": 1.0})
    assert [(row["id"], row["outcome"], row.get("repetition", 1)) for row in table["rows"]] == [
        (run_id, "same", n) for run_id in runs for n in (1, 2)
    ]
    (tmp_path / "before.json").write_text(json.dumps(table))
    bookings.lab.model.script(runs[1], answering("something else"))
    code, table, _ = await bookings.command(*words, "--at-least", "0.9", "--baseline", str(tmp_path / "before.json"))
    assert (code, table["means"]) == (1, {"score": pytest.approx(2 / 3)})
    assert table["baseline"] == {"better": [], "worse": [runs[1]], "changed": []}
    (tmp_path / "worse.json").write_text(json.dumps(table))
    bookings.lab.model.script(runs[1], answering(next(row["id"] for row in table["rows"])))
    other = f"other-{uuid.uuid4().hex[:6]}"
    bookings.lab.model.script(other, answering("always this"))
    _, table, _ = await bookings.command(
        *words, "--model", f"openai-chat:{other}", "--baseline", str(tmp_path / "worse.json")
    )
    assert table["baseline"] == {"better": [], "worse": [each for each in runs if each != runs[1]], "changed": []}
    assert bookings.booked == before
    code, text, _ = await bookings.command(*words[:-1], "--baseline", str(tmp_path / "worse.json"))
    assert (code, "better: none" in text, "mean: score" in text) == (0, True, True)


async def test_lines_are_tasks_whose_tools_run_after_a_question(bookings: Bookings, tmp_path: Path) -> None:
    """`expected` decides on the outcome, and is what a score compares with."""
    task = {"prompt": "Book.", "metadata": {"bookings": str(bookings.file)}, "model": "openai-chat:booker"}
    lines = [{"input": task, "expected": "done"}, {"input": task, "expected": "well"}, {"input": task}]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    bookings.lab.model.script("booker", answering("done"))
    words = ["eval", str(tmp_path / "tasks.jsonl"), "--agent", "booker", "--score", f"{MODULE}:is_right", "--json"]
    code, _, error = await bookings.command(*words)
    assert (code, "Tools run, in 3 runs of booker: book." in error, "use --yes" in error) == (2, True, True)
    assert sum(bookings.booked.values()) == 0
    code, table, _ = await bookings.command(*words, "--yes")
    assert (code, [row["outcome"] for row in table["rows"]]) == (0, ["same", "other", "other"])
    assert [row["id"] for row in table["rows"]] == ["tasks.jsonl:1", "tasks.jsonl:2", "tasks.jsonl:3"]
    assert [row["score"] for row in table["rows"]] == [1.0, 0.0, 0.0]
    assert sum(bookings.booked.values()) == 3
    (tmp_path / "talk.jsonl").write_text('{"input": "Hello."}\n')
    bookings.lab.model.script("talker", [DONE])
    code, table, _ = await bookings.command("eval", str(tmp_path / "talk.jsonl"), "--agent", "talker", "--json")
    assert (code, table["rows"][0]["outcome"]) == (0, "other")


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("a.jsonl", "{", "line 1 is not JSON"),
        ("a.jsonl", '{"task": "x"}', 'must be one JSON object with "input"'),
        ("a.jsonl", '{"input": {"agent": "talker", "prompt": "x"}}', "is of the agent 'talker', not of 'booker'"),
        ("a.jsonl", '{"input": ""}', '"prompt" is empty'),
        ("a.json", "{", "is not JSON"),
        ("a.json", '{"version": 7}', "is a case of version 7"),
        ("a.txt", "x", "has no case"),
        ("", "", "has no case"),
    ],
)
async def test_cases_that_cannot_be_used_are_refused(
    bookings: Bookings, tmp_path: Path, file: str, text: str, why: str
) -> None:
    (tmp_path / "cases").mkdir()
    if file:
        (tmp_path / "cases" / file).write_text(text)
    code, _, error = await bookings.command("eval", str(tmp_path / "cases"), "--agent", "booker", "--yes")
    assert (code, why in " ".join(error.split())) == (2, True), error


async def test_cases_of_another_agent_and_an_unknown_agent_are_refused(bookings: Bookings, tmp_path: Path) -> None:
    [run_id] = await cases_of(bookings, tmp_path / "cases", 1)
    code, _, error = await bookings.command("eval", str(tmp_path / "cases"), "--agent", "talker")
    assert (code, "is a case of the agent 'booker', not of 'talker'" in " ".join(error.split())) == (2, True)
    (tmp_path / "cases" / "again.json").write_text((tmp_path / "cases" / f"{run_id}.json").read_text())
    code, _, error = await bookings.command("eval", str(tmp_path / "cases"), "--agent", "booker")
    assert (code, f"two cases of the run '{run_id}'" in " ".join(error.split())) == (2, True)
    (tmp_path / "t.jsonl").write_text('{"input": "x"}')
    code, _, error = await bookings.command("eval", str(tmp_path / "t.jsonl"), "--agent", "nobody")
    assert (code, "There is no agent 'nobody'" in error) == (2, True)


async def test_lists_of_runs_leave_experiments_out_and_an_unknown_one_is_named(bookings: Bookings) -> None:
    run_id, name = await bookings.run([DONE]), f"unlisted-{uuid.uuid4().hex[:6]}"
    await bookings.command("whatif", "--runs", run_id, "--name", name)
    _, listed, _ = await bookings.command("list", "--json", "--limit", "50")
    assert f"{name}-1" in {run["id"] for run in listed}
    assert f"mulligan-experiment-{name}" not in {run["id"] for run in listed}
    code, _, error = await bookings.command("experiments", "no-such")
    assert (code, "there is no experiment 'no-such'" in error) == (2, True)
    assert await read_experiment(bookings.lab.client, "no-such") is None
    code, _, error = await bookings.command("experiments", "9" * 5_000)
    assert (code, "there is no experiment '999" in error) == (2, True)
