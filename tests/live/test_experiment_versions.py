"""Experiments by other versions of an agent, side by side; a start by a version, and what lists show of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mulligan.cli.app import app
from mulligan.devserver import DevServer
from mulligan.wire.agent_facts import DEFINITION_QUERY
from tests.live.test_agent_files import Desk
from tests.support.lab import DONE, Lab
from tests.support.openai_turn import Turn
from tests.support.temporal import environment_of

FIRST, SECOND = "You are the first.", "You are the second."


@pytest.fixture
def desk(lab: Lab, temporal: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path / "content"))
    monkeypatch.setenv("MULLIGAN_GRACE_SECONDS", "0.5")
    desk = Desk(lab, tmp_path / "agents")
    for name, value in {**environment_of(temporal), "MULLIGAN_TASK_QUEUE": desk.at.task_queue}.items():
        monkeypatch.setenv(name, value)
    return desk


async def command(*words: str) -> tuple[int, Any, str]:
    """A command's exit code, its output (as JSON where it is), and its standard error."""
    ran = await asyncio.to_thread(CliRunner().invoke, app, words, catch_exceptions=False)
    try:
        return ran.exit_code, json.loads(ran.stdout), ran.stderr
    except ValueError:
        return ran.exit_code, ran.stdout, " ".join(ran.stderr.split())


async def instructions_of(desk: Desk, rows: list[dict[str, Any]]) -> list[str]:
    """The instructions of the new runs."""
    handles = [desk.at.client.get_workflow_handle(row["run_id"]) for row in rows]
    return [(await handle.query(DEFINITION_QUERY, "0"))["instructions"] for handle in handles]


async def test_versions_stand_side_by_side(desk: Desk, tmp_path: Path) -> None:
    """A label and `current`, of a run that began by the label's version; without a version its own definition is kept."""
    first = hashlib.sha256(desk.write(FIRST).encode()).hexdigest()
    name = f"sides-{uuid.uuid4().hex[:6]}"
    async with desk.worker() as files:
        before = await desk.run(DONE)
        desk.lab.model.script(before.id, lambda body, _: Turn(text="changed") if SECOND in str(body) else DONE)
        desk.write(SECOND)
        await desk.until_served(SECOND)
        (desk.folder / "labels.toml").write_text(f'[support]\nstable = "{first}"')
        while not files.labels:
            await asyncio.sleep(0.05)
        words = ["whatif", "--runs", before.id, "--version", "stable", "--version", "current", "--name", name]
        code, table, _ = await command(*words, "--json", "--at-least", "0.9")
        rows = table["rows"]
        assert [(row["id"], row["version"], row["outcome"]) for row in rows] == [
            (before.id, "stable", "same"),
            (before.id, "current", "other"),
        ]
        assert await instructions_of(desk, rows) == [FIRST, SECOND]
        assert (code, table["versions"]) == (1, {"stable": {"same": 1.0}, "current": {"same": 0.0}})
        _, text, _ = await command(*words)
        heading, line, *means = text.splitlines()
        assert heading.split() == ["id", "stable", "current"]
        assert line.split()[0] == before.id
        assert line.index("same") == heading.index("stable")
        assert line.index("other") == heading.index("current")
        assert means == ["mean of stable: same 1", "mean of current: same 0"]
        assert (await command("experiments", name))[1].splitlines()[1].split() == heading.split()
        for chosen, text in (("stable", FIRST), ("current", SECOND)):
            _, again, _ = await command("rerun", before.id, "--version", chosen, "--wait", "--json")
            assert await instructions_of(desk, [{"run_id": again["id"]}]) == [text]
        _, table, _ = await command("whatif", before.id, "--json")
        assert "version" not in table["rows"][0]
        assert await instructions_of(desk, table["rows"]) == [FIRST]
        (tmp_path / "task.jsonl").write_text(json.dumps({"input": "Hi."}))
        desk.lab.model.script("nobody", lambda body, _: DONE)
        evaluated = ["eval", str(tmp_path / "task.jsonl"), "--agent", "support", "--yes", "--json", "--repeat", "2"]
        _, table, _ = await command(*evaluated, "--version", first[:8], "--version", "current")
        assert [(row["version"][:8], row.get("repetition", 1)) for row in table["rows"]] == [
            (version, number) for number in (1, 2) for version in (first[:8], "current")
        ]
        assert await instructions_of(desk, table["rows"]) == [FIRST, SECOND] * 2


async def test_a_version_that_there_is_not_is_said_in_a_sentence(desk: Desk) -> None:
    desk.write(FIRST)
    desk.write(SECOND, name="other")
    async with desk.worker() as files:
        run = await desk.run(DONE)
        python = await desk.at.run([DONE], agent="clerk")
        digest = files._registry.files.current["other"].file.digest
        (desk.folder / "labels.toml").write_text(f'[other]\nbest = "{digest}"')
        while not files.labels:
            await asyncio.sleep(0.05)
        for words, sentence in (
            (("--runs", run.id), "'best' is no label of the agent 'support' and no digest"),
            (("--agent", "support"), "'best' is no label of the agent 'support' and no digest"),
            (("--runs", python.id), "'best' is no version of the agent 'clerk': it is declared in Python"),
        ):
            code, _, error = await command("whatif", *words, "--version", "best")
            assert code == 2
            assert sentence in error
        for started in (("start", "support", "Hi."), ("rerun", run.id)):
            code, _, error = await command(*started, "--version", "best")
            assert code == 2
            assert "'best' is no label of the agent 'support'" in error
        _, table, _ = await command("whatif", run.id, "--version", digest, "--json")
        assert table["rows"][0]["outcome"] == "failed"
        assert "no digest of a version of it" in table["rows"][0]["error"]
        desk.lab.model.script(python.id, [DONE])
        _, table, _ = await command("whatif", python.id, "--version", "current", "--json")
        assert [(row["version"], row["outcome"]) for row in table["rows"]] == [("current", "same")]


async def test_the_cost_is_reserved_at_the_prices_of_the_version_s_model(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prices.json").write_text(json.dumps({"models": {"nobody": {"input": 1.0, "output": 1.0}}}))
    monkeypatch.setenv("MULLIGAN_PRICES", str(tmp_path / "prices.json"))
    first = hashlib.sha256(desk.write(FIRST).encode()).hexdigest()
    async with desk.worker():
        desk.lab.model.script("nobody", lambda body, _: DONE)
        handle = await desk.at.client.start_workflow(
            "AgentWorkflow", {"agent": "support", "prompt": "Hi."}, id=f"p-{uuid.uuid4().hex[:6]}",
            task_queue=desk.at.task_queue,
        )  # fmt: skip
        await handle.result()
        text = (desk.folder / "support.md").read_text().replace("openai:nobody", "openai:unpriced")
        (desk.folder / "support.md").write_text(text)
        while desk.said == []:
            await asyncio.sleep(0.05)
        _, table, _ = await command(
            "whatif",
            handle.id,
            "--version",
            first,
            "--version",
            "current",
            "--version",
            "0" * 9,
            "--max-cost",
            "1",
            "--json",
        )
    assert [row["outcome"] for row in table["rows"]] == ["same", "skipped", "skipped"]
    assert "the price of openai:unpriced is not known" in table["rows"][1]["error"]
    assert "no digest of a version of it" in table["rows"][2]["error"]
    assert [row["version"] for row in table["rows"]] == [first, "current", "0" * 9]


async def test_a_start_by_a_version_and_what_the_list_shows(desk: Desk) -> None:
    """The version is in the table if it fits: its label, or digits of it."""
    first = hashlib.sha256(desk.write(FIRST).encode()).hexdigest()
    async with desk.worker() as files:
        desk.write(SECOND)
        await desk.until_served(SECOND)
        (desk.folder / "labels.toml").write_text(f'[support]\nstable = "{first}"')
        while not files.labels:
            await asyncio.sleep(0.05)
        desk.lab.model.script("nobody", lambda body, _: DONE)
        unique = uuid.uuid4().hex[:6]
        ids = [f"r-{unique}-{number}" for number in range(2)]
        for run_id, version in zip(ids, (first[:9], "stable"), strict=True):
            code, _, _ = await command("start", "support", "Hi.", "--version", version, "--id", run_id, "--wait")
            assert code == 0
        _, text, _ = await command("list", "--agent", "support", "--limit", "2")
        heading, *lines = text.splitlines()
        assert heading.split() == ["id", "agent", "version", "status", "started", "seconds"]
        assert sorted(line.split()[:3] for line in lines) == [
            [ids[0], "support", first[:8]],
            [ids[1], "support", "stable"],
        ]
        long = f"r-{'x' * 60}-{uuid.uuid4().hex[:6]}"
        await command("start", "support", "Hi.", "--version", "current", "--id", long, "--wait")
        _, text, _ = await command("list", "--agent", "support", "--limit", "1")
        assert text.split()[:3] == ["id", "agent", "status"]
