"""`--agents` of the commands: what is wrong with a file stands on stderr, in /readyz and in `doctor`; versions and the schema."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from tests.support.command_fixtures import Run
from tests.support.command_server import PIPE, start_command

FILE = "---\nmodel: scripted:demo\ntools: [look_up]\n---\nYou are right.\n"
PARTS = ("--load", "tests.support.agent_file_parts")


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "support.md").write_text(FILE)
    return folder


@asynccontextmanager
async def worker(environment: dict[str, str], *options: str, **more: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A worker; yields the URL of its probes, and the lines of its stderr."""
    env = environment | {"MULLIGAN_HEALTH_ADDRESS": "127.0.0.1:0", "MULLIGAN_GRACE_SECONDS": "1"} | more
    process = await start_command("worker", *PARTS, "--task-queue", "files", *options, env=env, stderr=PIPE)
    lines: list[str] = []

    async def read() -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            lines.append(line.decode().rstrip())

    reading = asyncio.create_task(read())
    try:
        while not any("Serving" in line for line in lines):
            assert process.returncode is None, lines
            await asyncio.sleep(0.05)
        url = re.search(r"http://[\d.:]+", " ".join(lines))
        assert url
        yield url[0], lines
    finally:
        process.terminate()
        await process.wait()
        await reading


async def readiness(url: str) -> tuple[int, list[str]]:
    async with httpx2.AsyncClient() as client:
        answer = await client.get(f"{url}/readyz")
    return answer.status_code, answer.text.splitlines()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [(), ("--processes", "2")], ids=["one", "several"])
async def test_what_is_wrong_is_said_and_the_worker_stays_ready(
    processes: tuple[str, ...], environment: dict[str, str], agents: Path, mulligan: Run
) -> None:
    async with worker(environment, *processes, MULLIGAN_AGENTS=str(agents)) as (url, lines):
        assert any("Serving clerk, support on" in line for line in lines)
        while await readiness(url) != (200, ["ok"]):
            await asyncio.sleep(0.1)
        (agents / "support.md").write_text(FILE.replace("look_up", "look_op"))
        digest = hashlib.sha256(FILE.encode()).hexdigest()[:12]
        sentence = (
            f"warning: {agents}/support.md, line 3: no loaded module declares a tool named 'look_op'; they declare: look_up, "
            f"lost, wait. The version before ({digest}) is served."
        )
        while await readiness(url) != (200, ["ok", sentence]):
            await asyncio.sleep(0.1)
        while sentence not in lines:
            await asyncio.sleep(0.1)
        assert lines.count(sentence) == 1
        doctor = await mulligan("doctor", *PARTS, "--agents", str(agents), "--task-queue", "files", "--json")
        findings = [(each["check"], each["state"], each["text"]) for each in json.loads(doctor.out)]
        [(_, state, text)] = [each for each in findings if each[0] == "agent files"]
        assert (state, "not served" in text, f"Workers serve the version {digest}" in text) == ("problem", False, True)
        assert [state for check, state, _ in findings if check == "queue files"] == ["ok"], "it serves these agents"
        (agents / "support.md").write_text(FILE)
        while await readiness(url) != (200, ["ok"]):
            await asyncio.sleep(0.1)
        # A supervisor passes on what is wrong, and not that nothing is.
        while not processes and f"{agents}: nothing is wrong any more." not in lines:
            await asyncio.sleep(0.1)


async def test_the_doctor_reads_the_folder(mulligan: Run, agents: Path) -> None:
    right = await mulligan("doctor", *PARTS, "--agents", str(agents), "--json")
    findings = {each["check"]: each for each in json.loads(right.out)}
    assert findings["agent files"] == {"check": "agent files", "state": "ok", "text": f"{agents}: support"}
    (agents / "support.md").write_text("---\nmodel: scripted:demo\ncommand: [ls]\n---\n")
    wrong = await mulligan("doctor", *PARTS, "--agents", str(agents))
    assert wrong.code == 1
    said = " ".join(wrong.out.split())
    assert f'{agents}/support.md, line 3: "command" is not a field of an agent\'s file' in said
    assert "The agent 'support' is not served" in said


async def test_the_agents_command_lists_files_versions_and_the_schema(
    mulligan: Run, agents: Path, tmp_path: Path
) -> None:
    stored = {"MULLIGAN_CONTENT_DIR": str(tmp_path / "content"), "MULLIGAN_AGENTS": str(agents)}
    first, second = hashlib.sha256(FILE.encode()).hexdigest(), hashlib.sha256(f"{FILE}Now.".encode()).hexdigest()
    listed = json.loads((await mulligan("agents", *PARTS, "--json", **stored)).out)
    assert {each["name"]: each.get("version") for each in listed} == {"clerk": None, "support": first}
    (agents / "support.md").write_text(f"{FILE}Now.")
    (agents / "labels.toml").write_text(f'[support]\ncandidate = {{version = "{first[:10]}", share = "5%"}}')
    rows = json.loads((await mulligan("agents", *PARTS, "--versions", "--json", **stored)).out)
    assert [(row["agent"], row["version"], row["served"]) for row in rows] == [
        ("support", second, True), ("support", first, False),
    ]  # fmt: skip
    assert rows[1]["labels"] == [{"label": "candidate", "version": first, "share": "5%"}]
    text = (await mulligan("agents", *PARTS, "--versions", **stored)).out
    assert f"support  {first}" in text
    assert "candidate 5%" in text
    schema = json.loads((await mulligan("agents", "--schema")).out)
    assert schema["required"] == ["model"]
    assert schema["additionalProperties"] is False
    os.unlink(agents / "labels.toml")
    without = json.loads((await mulligan("agents", *PARTS, "--versions", "--json", "--agents", str(agents))).out)
    assert [row["version"] for row in without] == [second]


async def test_a_folder_that_is_not_there_is_refused(mulligan: Run, tmp_path: Path) -> None:
    outcome = await mulligan("worker", *PARTS, "--agents", str(tmp_path / "none"))
    assert outcome.code == 2
    assert f"The folder of agents {tmp_path}/none is not there" in " ".join(outcome.err.split())
