"""Agents as files on a real server: a change is served without a restart, and a run keeps the version that it began with."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle

from mulligan import InvalidRunInputError, error_of, fork_run
from mulligan.client.content_store import configured_content_store
from mulligan.client.find_runs import RunQuery, find_runs
from mulligan.client.origins.resume_run import resume_run
from mulligan.worker.agent_folder import AgentFolder
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support import agent_file_parts
from tests.support.lab import DONE, Lab, Ran, call

LOOK_UP, WAIT = call("look_up", '{"order": 7}'), call("wait", '{"order": 7}')


@dataclass
class Desk:
    """A folder of agents, and the workers that serve it on a task queue."""

    lab: Lab
    folder: Path
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.at = Lab(
            self.lab.client, self.lab.model, self.lab.otlp, self.lab.telemetry, f"desk-{uuid.uuid4().hex[:6]}"
        )

    def write(self, instructions: str, front_matter: str = "tools: [look_up, wait]", name: str = "support") -> str:
        """Save the agent, as an editor that replaces files does; returns its text."""
        text = f"---\nmodel: openai:nobody\n{front_matter}\n---\n{instructions}\n"
        unfinished = self.folder / f".{name}.tmp"
        unfinished.write_text(text)
        unfinished.rename(self.folder / f"{name}.md")
        return text

    @asynccontextmanager
    async def worker(self, folder: Path | None = None) -> AsyncIterator[AgentFolder]:
        loaded = load(["tests.support.agent_file_parts"])
        files = AgentFolder(folder or self.folder, loaded.registry, (), self.said.append)
        await files.load()
        async with (
            running_worker(self.at.client, loaded, self.at.telemetry, self.at.task_queue),
            files.watched(),
        ):
            yield files

    async def run(self, *turns: Any, **run_input: Any) -> Ran:
        return await self.at.run([*(turns or (DONE,))], agent="support", **run_input)

    async def start(self, *turns: Any, **run_input: Any) -> WorkflowHandle[Any, Any]:
        handle: WorkflowHandle[Any, Any] = await self.at.start([*turns], agent="support", **run_input)
        return handle

    async def until_served(self, instructions: str) -> None:
        """Wait until a new run has these instructions."""
        while instructions_of(await self.run()) != [instructions]:
            await asyncio.sleep(0.1)


def instructions_of(ran: Ran) -> list[str]:
    return [request.json["messages"][0]["content"] for request in ran.requests]


@pytest.fixture(params=["storage", "none"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """With and without a content storage."""
    if request.param == "storage":
        monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path / "content"))
    return str(request.param)


@pytest.fixture
def desk(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(agent_file_parts, "RELEASE", tmp_path / "release")
    monkeypatch.setenv("MULLIGAN_GRACE_SECONDS", "0.5")
    return Desk(lab, tmp_path / "agents")


async def begun(handle: WorkflowHandle[Any, Any]) -> None:
    """Wait until the run waits in its tool."""
    while not (await handle.query("progress"))["running"]:
        await asyncio.sleep(0.05)


async def test_a_change_is_served_and_a_run_keeps_the_version_that_it_began_with(desk: Desk, storage: str) -> None:
    """On another worker, too, which has not seen that version, and after the file is gone."""
    desk.write("You are the first.")
    async with desk.worker():
        handle = await desk.start(WAIT, LOOK_UP, DONE)
        await begun(handle)
        desk.write("You are the second.", "tools: []")
        await desk.until_served("You are the second.")
    (desk.folder / "support.md").unlink()
    agent_file_parts.RELEASE.touch()
    async with desk.worker():
        ran = await desk.at.look(handle)
    assert instructions_of(ran) == ["You are the first."] * 3
    assert [each["result"]["text"] for each in ran.calls] == ["order 7 was waited for", "order 7 is on the shelf"]
    assert len({step["version"] for step in ran.steps}) == 1


async def test_what_a_version_costs_is_in_history_once(desk: Desk) -> None:
    """Without a content storage: no input of an activity has the instructions."""
    desk.write("You are " + "very " * 1_000 + "helpful.")
    async with desk.worker():
        ran = await desk.run(*[LOOK_UP] * 5, DONE)
    history = (await ran.handle.fetch_history()).to_json()
    payloads = [base64.b64decode(each) for each in re.findall(r'"data": ?"([^"]*)"', history)]
    have = [each for each in payloads if b"very very" in each]
    assert len(have) == 1
    assert json.loads(have[0])["facts"]["version"]["text"].startswith("---\n")


async def test_what_is_wrong_leaves_the_version_before_in_service(desk: Desk) -> None:
    desk.write("You are right.")
    async with desk.worker() as files:
        desk.write("You are wrong.", "tools: [gone]")
        while not files.problems:
            await asyncio.sleep(0.05)
        path = desk.folder / "support.md"
        assert files.problems[0].startswith(f"{path}, line 3: no loaded module declares a tool named 'gone'")
        assert "The version before" in files.problems[0]
        assert f"warning: {files.problems[0]}" in desk.said
        assert instructions_of(await desk.run()) == ["You are right."]
        path.write_text("---\nmodel: openai:nobody\n---\nYou are right again.")
        await desk.until_served("You are right again.")
        assert files.problems == []


async def test_a_worker_that_starts_with_a_wrong_file_serves_the_version_before(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path / "content"))
    desk.write("You are older.")
    async with desk.worker():
        pass
    desk.write("You are right.")
    async with desk.worker():
        pass
    (desk.folder / "support.md").write_text("---\nmodel: openai:no")
    async with desk.worker() as files:
        assert "line 1: the front matter does not end" in files.problems[0]
        assert instructions_of(await desk.run()) == ["You are right."]


async def test_a_file_with_which_something_unforeseen_happens_stops_no_worker_and_no_other_agent(desk: Desk) -> None:
    desk.write("You are right.")
    desk.write("You have a bug.", "features: [faulty]", name="other")
    async with desk.worker() as files:
        assert "line 1: the agent cannot be built: ZeroDivisionError" in files.problems[0]
        desk.write("You are newer.")
        await desk.until_served("You are newer.")
        assert files.served == ["support"]


async def test_a_file_that_is_nested_without_an_end_stops_nobody(desk: Desk) -> None:
    """It took the event loop for minutes."""
    desk.write("You are right.")
    async with desk.worker() as files:
        (desk.folder / "other.md").write_text(f"---\nmodel: {'[' * 60_000}\n---\n")
        while not files.problems:
            await asyncio.sleep(0.05)
        assert "other.md, line 2: it has more than 20 levels" in files.problems[0]
        assert instructions_of(await desk.run()) == ["You are right."]


async def test_a_half_written_file_is_not_read(desk: Desk) -> None:
    """It is a right file, but for what is not written yet."""
    desk.write("You are right.")
    path, text = desk.folder / "support.md", "---\nmodel: openai:nobody\n---\nYou are whole, "
    async with desk.worker() as files:
        with path.open("w") as file:
            for part in (text, *["and more, "] * 20, "and done."):
                file.write(part)
                file.flush()
                await asyncio.sleep(0.1)
                assert not files.problems
        await desk.until_served(f"You are whole, {'and more, ' * 20}and done.")
    served = [line for line in desk.said if "is served in the version" in line]
    assert len(served) == 1


async def test_a_folder_in_the_place_of_another_is_served(desk: Desk, tmp_path: Path) -> None:
    desk.write("You are the old one.")
    other = Desk(desk.lab, tmp_path / "next")
    other.write("You are the new one.")
    async with desk.worker() as files:
        desk.folder.rename(tmp_path / "former")
        while not files.problems:
            await asyncio.sleep(0.05)
        assert "cannot be read" in files.problems[0]
        assert instructions_of(await desk.run()) == ["You are the old one."]
        other.folder.rename(desk.folder)
        await desk.until_served("You are the new one.")
        assert files.problems == []
        desk.write("You are newer.")  # the folder is watched, which is another one now
        await desk.until_served("You are newer.")


async def test_a_link_to_another_folder_is_followed(desk: Desk, tmp_path: Path) -> None:
    """As those do that mount files into containers."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "support.md").write_text(f"---\nmodel: openai:nobody\n---\nYou are {name}.")
    shutil.rmtree(desk.folder)
    desk.folder.symlink_to(tmp_path / "one")
    async with desk.worker() as files:
        (tmp_path / "link").symlink_to(tmp_path / "two")
        (tmp_path / "link").rename(desk.folder)
        await desk.until_served("You are two.")
        assert files.problems == []


async def test_two_files_of_one_name_and_a_name_of_python_are_refused(desk: Desk) -> None:
    desk.write("You are right.")
    async with desk.worker() as files:
        desk.write("You are another.", name="Support")
        desk.write("You are not in Python.", name="clerk")
        while len(files.problems) < 3:
            await asyncio.sleep(0.05)
        assert [each.partition("line 1: ")[2].partition(" ")[0] for each in files.problems] == [
            "'support.md'", "a", "'Support.md'",
        ]  # fmt: skip
        assert instructions_of(await desk.run()) == ["You are right."]
        ran = await desk.at.run([DONE], agent="clerk")
        assert instructions_of(ran) == ["You are declared in Python."]
        os.unlink(desk.folder / "Support.md")
        desk.write("You are right again.")
        await desk.until_served("You are right again.")


async def test_a_run_begins_with_the_version_that_it_names(desk: Desk, storage: str) -> None:
    desk.write("You are the first.")
    async with desk.worker() as files:
        [first] = await files.versions()
        desk.write("You are the second.")
        await desk.until_served("You are the second.")
        (desk.folder / "labels.toml").write_text(f'[support]\nstable = "{first["version"]}"')
        while not files.labels:
            await asyncio.sleep(0.05)
        for wanted in (first["version"], first["version"][:8], "stable"):
            assert instructions_of(await desk.run(version=wanted)) == ["You are the first."]
        assert instructions_of(await desk.run(version="current")) == ["You are the second."]
        for wanted in ("unstable", "0" * 64, first["version"][:7]):
            ran = await desk.run(version=wanted)
            assert isinstance(ran.error, InvalidRunInputError)
            assert "its labels are: stable" in ran.error.message
        of_python = await desk.at.run([DONE], agent="clerk", version="stable")
        assert of_python.error is not None
        assert "declared in Python" in of_python.error.message


async def test_a_label_with_a_share_is_that_of_the_conversation(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all its turns, spans, steps and lists; each turn has the version that the label has then."""
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path / "content"))
    texts = ["You are production.", "You are the candidate.", "You are the next candidate."]
    digests = []
    for text in texts:
        desk.write(text)
        async with desk.worker() as files:
            digests.append(next(row["version"] for row in await files.versions() if row["served"]))
    labels = desk.folder / "labels.toml"
    labels.write_text(
        f'[support]\nproduction = "{digests[0]}"\ncandidate = {{version = "{digests[1]}", share = "50%"}}'
    )
    async with desk.worker() as files:
        runs = [await desk.run() for _ in range(12)]
        chosen = {ran.id: ran.steps[0]["label"] for ran in runs}
        assert set(chosen.values()) == {"production", "candidate"}
        for ran in runs:
            nth = ["production", "candidate"].index(chosen[ran.id])
            assert instructions_of(ran) == [texts[nth]]
            [root] = ran.spans_of("invoke_agent support")
            assert root.attributes["gen_ai.agent.version"] == ran.steps[0]["version"] == digests[nth]
            assert root.attributes["mulligan.label.name"] == chosen[ran.id]
            assert root.attributes.get("mulligan.label.share") == (None, "50%")[nth]
        candidate = next(ran for ran in runs if chosen[ran.id] == "candidate")
        listed = await find_runs(desk.at.client, RunQuery(id_prefix=candidate.id), limit=5)
        assert {name: listed.runs[0][name] for name in ("version", "label", "share")} == {
            "version": digests[1], "label": "candidate", "share": "50%",
        }  # fmt: skip
        labels.write_text(
            f'[support]\nproduction = "{digests[0]}"\ncandidate = {{version = "{digests[2]}", share = "50%"}}'
        )
        while files.labels["support"][1].version != digests[2]:
            await asyncio.sleep(0.05)
        desk.lab.model.script(f"next-{candidate.id}", [DONE, DONE])
        again = await resume_run(desk.at.client, candidate.id, "And now?", model=f"openai-chat:next-{candidate.id}")
        await again.result()
        steps = (await again.query("steps", args=[0, 10]))["steps"]
        assert (steps[-1]["label"], steps[-1]["version"]) == ("candidate", digests[2])


async def test_a_fork_works_by_the_version_of_the_original(desk: Desk, storage: str) -> None:
    desk.write("You are the first.")
    async with desk.worker():
        ran = await desk.run(LOOK_UP, DONE)
    desk.write("You are the second.")
    async with desk.worker():
        fork = await fork_run(desk.at.client, ran.id, at=2)
        await fork.result()
        steps = (await fork.query("steps", args=[0, 10]))["steps"]
        assert instructions_of(await desk.at.look(ran.handle)) == ["You are the first."] * 3
    assert [step["version"] for step in steps] == [ran.steps[0]["version"]] * 2


async def test_an_agent_of_a_file_takes_over_and_hands_back(desk: Desk) -> None:
    """Each has its own version in the steps; the one that began is gone meanwhile."""
    desk.write("You sort.", "tools: [look_up]\nhandoffs: [refunds]")
    desk.write("You refund for {{ prompt }}.", "tools: [wait]\nhandoffs: [support]", name="refunds")
    async with desk.worker() as files:
        turns = [call("transfer_to_refunds"), WAIT, call("transfer_to_support"), LOOK_UP, DONE]
        handle = await desk.start(*turns, prompt="order\n7")
        await begun(handle)
        for name in ("support", "refunds"):
            (desk.folder / f"{name}.md").unlink()
        while files.served:
            await asyncio.sleep(0.05)
        agent_file_parts.RELEASE.touch()
        ran = await desk.at.look(handle)
    assert instructions_of(ran) == ["You sort.", *["You refund for order 7."] * 2, *["You sort."] * 2]
    assert [step["agent"] for step in ran.steps] == ["support", "refunds", "refunds", "support", "support"]
    assert len({step["version"] for step in ran.steps}) == 2


async def test_values_of_the_input_stand_in_the_instructions(desk: Desk) -> None:
    desk.write("Help {{ user }} with {{ prompt }} in {{ metadata.shop }}.", "")
    async with desk.worker():
        given = {"prompt": "order 7\n# Rules", "user": "ada", "metadata": {"shop": "Köln"}}
        assert instructions_of(await desk.run(**given)) == ["Help ada with order 7 # Rules in Köln."]
        with pytest.raises(WorkflowFailureError) as failed:
            await (await desk.start(DONE)).result()
        error = error_of(failed.value)
        assert isinstance(error, InvalidRunInputError)
        assert "\"metadata\" has no 'shop'" in error.message


async def test_a_fault_in_the_labels_of_one_agent_keeps_those_of_others(desk: Desk) -> None:
    desk.write("You are the first.")
    desk.write("You refund.", name="refunds")
    async with desk.worker() as files:
        digests = {row["agent"]: row["version"] for row in await files.versions()}
        labels = desk.folder / "labels.toml"
        labels.write_text("".join(f'[{name}]\nproduction = "{digest}"\n' for name, digest in digests.items()))
        while len(files.labels) < 2:
            await asyncio.sleep(0.05)
        labels.write_text(f'[support]\nstable = "{digests["support"]}"\n[refunds]\nproduction = "{"0" * 64}"\n')
        while not files.problems:
            await asyncio.sleep(0.05)
        assert f"{labels}, line 4: 'production' of 'refunds': no version '000000000000' is known" in files.problems[0]
        assert {name: [each.name for each in of_agent] for name, of_agent in files.labels.items()} == {
            "support": ["stable"], "refunds": ["production"],
        }  # fmt: skip
        labels.write_text("[support")
        while "no TOML" not in files.problems[0]:
            await asyncio.sleep(0.05)
        assert "label" not in (await desk.run()).steps[0]
        assert (await desk.run(version="stable")).steps[0]["label"] == "stable"


async def test_what_a_client_has_stored_is_never_an_agent(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path / "content"))
    store = configured_content_store()
    assert store is not None
    ref = await store.put(desk.write("You are of a client.", name="other").encode())
    desk.write("You are right.")
    async with desk.worker():
        ran = await desk.run(version=ref.removeprefix("sha256:"))
    assert ran.error is not None
    assert "which is no label of the agent" in ran.error.message


async def test_a_failed_call_is_recorded_by_a_worker_that_has_not_seen_the_version(desk: Desk) -> None:
    """It asks the workflow, which would wait for a local activity."""
    desk.write("You are the first.", "tools: [look_up, lost]")
    async with desk.worker():
        handle = await desk.start(call("lost", '{"order": 7}'), DONE)
        await begun(handle)
    (desk.folder / "support.md").unlink()
    async with desk.worker():
        ran = await desk.at.look(handle)
    assert [each["result"]["error"]["kind"] for each in ran.calls] == ["tool_lost"]
    assert instructions_of(ran) == ["You are the first."] * 2
