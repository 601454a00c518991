"""Recorded histories replay: a run in flight survives a deploy. And each type of what a worker serves is in one of them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from mulligan import data_converter
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import load
from mulligan.worker.sdk_workarounds.temporal_definitions import activity_definition, workflow_definition
from mulligan.worker.wiring import WORKFLOWS, AgentActivities, LoadedFeatures, sandbox
from mulligan.workflows import limits
from mulligan.workflows.agent_workflow import AgentWorkflow
from mulligan.workflows.conversation.continue_as_new import decode_state
from mulligan.workflows.feature import Feature
from mulligan.workflows.features import FEATURE_CLASSES, with_loaded
from tests.support.sandboxed_workflow import Sandboxed

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))
PARTS = 8
"""In which they are replayed: a worker is made for each, and each has the time limit of a test."""
OWN = {workflow_definition(each).name for each in WORKFLOWS}
UNRECORDED: dict[str, str] = {}
"""What no history contains, with the reason."""


def read(file: Path) -> dict[str, Any]:
    """A history as JSON, which is read much faster than the messages of it are made. `limits`: those that its recorder has
    changed.
    """
    history: dict[str, Any] = json.loads(file.read_text())
    return history


async def with_their_limits(histories: Iterable[dict[str, Any]]) -> AsyncIterator[WorkflowHistory]:
    """Histories to replay. While one is replayed, the limits are those of its recorder."""
    for data in histories:
        with pytest.MonkeyPatch.context() as patched:
            for name, value in data.get("limits", {}).items():
                patched.setattr(limits, name, value)
            yield WorkflowHistory.from_json(data["workflow_id"], {"events": data["events"]})


async def failures_of(histories: Iterable[dict[str, Any]], replayer: Replayer) -> list[Exception | None]:
    """Why each of the histories cannot be replayed; None: it can. One worker replays them all."""
    async with replayer.workflow_replay_iterator(with_their_limits(histories)) as results:
        return [result.replay_failure async for result in results]


def replayer(agent_workflow: type[AgentWorkflow] = AgentWorkflow) -> Replayer:
    modules = ("sequential_turns_workflow", "one_word_feature", "compaction_agents")
    loaded = load([f"tests.support.{name}" for name in modules])
    others = [each for each in WORKFLOWS if each is not AgentWorkflow]
    return Replayer(
        workflows=[agent_workflow, *others, *loaded.workflows],
        workflow_runner=sandbox(loaded),
        data_converter=data_converter,
        interceptors=[LoadedFeatures(loaded)],
    )


def test_there_are_recorded_histories() -> None:
    assert len(HISTORIES) >= 100


def changed(released: str, folder: Path) -> list[str]:
    """The files of a list in the form of `sha256sum` that are missing in a folder, or have other bytes there."""
    expected = [line.split("  ") for line in released.splitlines() if line and not line.startswith("#")]
    there = {file.name: sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    return [name for digest, name in expected if there.get(name) != digest]


def test_the_histories_of_a_release_stay_as_they_are() -> None:
    """A later version has to replay what the release recorded."""
    folder = Path(__file__).parent
    assert changed((folder / "released.sha256").read_text(), folder / "histories") == []


def unlisted(changelog: str, released: str) -> list[str]:
    """The releases of a changelog from 0.2.0 on of which the list has no history."""
    releases = re.findall(r"^## (\d+\.\d+\.\d+) - ", changelog, re.MULTILINE)
    kept = [each for each in releases if tuple(map(int, each.split("."))) >= (0, 2, 0)]
    return [each for each in kept if not re.search(rf"^[0-9a-f]{{64}}  {re.escape(each)}-", released, re.MULTILINE)]


def test_each_release_lists_its_histories() -> None:
    root = Path(__file__).parents[2]
    assert unlisted((root / "CHANGELOG.md").read_text(), Path(__file__).with_name("released.sha256").read_text()) == []


def test_a_release_without_histories_is_named() -> None:
    changelog = "## [Unreleased]\n## 0.10.1 - 2027-05-01\n## 0.2.0 - 2026-12-20\n## 0.1.0 - 2026-11-27\n"
    assert unlisted(changelog, f"{'0' * 64}  0.2.0-asked.json\n# 0.10.1-asked.json") == ["0.10.1"]


def test_a_history_of_a_release_that_was_changed_or_removed_is_named(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text("{}")
    (tmp_path / "changed.json").write_text("{} ")
    digest = sha256(b"{}").hexdigest()
    released = "# comment\n" + "".join(f"{digest}  {name}.json\n" for name in ("kept", "changed", "removed"))
    assert changed(released, tmp_path) == ["changed.json", "removed.json"]


@pytest.mark.parametrize("agent_workflow", [AgentWorkflow, Sandboxed])
@pytest.mark.parametrize("part", range(PARTS))
async def test_each_recorded_history_replays_with_and_without_the_sandbox(
    agent_workflow: type[AgentWorkflow], part: int
) -> None:
    """The current code issues the commands that were recorded. Workers run it without the sandbox."""
    files = HISTORIES[part::PARTS]
    failures = await failures_of(map(read, files), replayer(agent_workflow))
    named = zip(files, failures, strict=True)
    assert {file.stem: failure for file, failure in named if failure is not None} == {}


@dataclass
class Recorded:
    """What the histories contain. `taken`: workflow, kind and name of each signal and update. `carried`: what
    continue-as-new carries of a run's features and waits.
    """

    workflows: set[str] = field(default_factory=set)
    activities: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    carried: set[str] = field(default_factory=set)

    def add(self, of: str, event: dict[str, Any]) -> None:
        """Add what an event of a workflow of the type `of` contains."""
        if scheduled := event.get("activityTaskScheduledEventAttributes"):
            self.activities.add(scheduled["activityType"]["name"])
        elif (marker := event.get("markerRecordedEventAttributes")) and marker["markerName"] == "core_local_activity":
            self.activities.add(json.loads(data_of(marker["details"]["data"]))["activity_type"])
        elif signaled := event.get("workflowExecutionSignaledEventAttributes"):
            self.taken.add(f"{of} signal {signaled['signalName']}")
        elif accepted := event.get("workflowExecutionUpdateAcceptedEventAttributes"):
            self.taken.add(f"{of} update {accepted['acceptedRequest']['input']['name']}")
        elif (continued := event.get("workflowExecutionContinuedAsNewEventAttributes")) and of == "AgentWorkflow":
            state = decode_state(data_of(continued["input"]))
            self.carried |= {f"feature {name}" for name in state["features"]}
            self.carried |= {f"wait {name}" for name in state["waits"]}


def data_of(payloads: dict[str, Any]) -> bytes:
    """The data of the only payload."""
    [payload] = payloads["payloads"]
    return base64.b64decode(payload["data"])


@cache
def recorded() -> Recorded:
    """What all histories contain."""
    found = Recorded()
    for file in HISTORIES:
        data = read(file)
        found.workflows.add(of := type_of(data))
        for event in data["events"]:
            found.add(of, event)
    return found


def type_of(data: dict[str, Any]) -> str:
    """The type of a history's workflow."""
    name: str = data["events"][0]["workflowExecutionStartedEventAttributes"]["workflowType"]["name"]
    return name


def check_recorded(what: str, served: set[str], in_histories: set[str]) -> None:
    """What is served is in a history, or in the list of what is not."""
    excepted = {name.removeprefix(f"{what} ") for name in UNRECORDED if name.startswith(f"{what} ")}
    assert served - in_histories == excepted, f"record it by tests/replay/record.py: the {what}"


def test_each_workflow_that_workers_serve_is_recorded() -> None:
    assert OWN
    check_recorded("workflow", OWN, recorded().workflows)


def test_each_activity_that_workers_serve_is_recorded() -> None:
    served = {activity_definition(each).name for each in AgentActivities(load([]), Telemetry()).all}
    assert served
    check_recorded("activity", served, recorded().activities)


def one_history_of_each_type() -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for data in map(read, HISTORIES):
        found.setdefault(type_of(data), data)
    return [data for of, data in found.items() if of in OWN]


async def test_each_signal_and_update_that_workers_take_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay sets the handlers, as a worker does."""
    served: set[str] = set()

    def noting(kind: str, set_handler: Callable[..., None]) -> Callable[..., None]:
        def note(name: str, *handler: Any, **options: Any) -> None:
            served.add(f"{workflow.info().workflow_type} {kind} {name}")
            set_handler(name, *handler, **options)

        return note

    for kind in ("signal", "update"):
        setter = f"set_{kind}_handler"
        monkeypatch.setattr(workflow, setter, noting(kind, getattr(workflow, setter)))
    assert not any(await failures_of(one_history_of_each_type(), replayer()))
    assert "AgentWorkflow update decide" in served
    check_recorded("handler", served, recorded().taken)


def test_each_state_that_continue_as_new_carries_is_recorded() -> None:
    """The state of each feature that has one, and each kind of wait: the next version continues with what this one has."""
    features = {f"feature {each.feature}" for each in FEATURE_CLASSES if each.dump is not Feature.dump}
    waits = {f"wait {name}" for name, each in with_loaded(()).waits.items() if each.is_carried_over}
    assert features
    assert waits
    check_recorded("state", features | waits, recorded().carried)
