"""A feature of a user's own, as the page shows it: outside of the tree, added to a worker by `--load`."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle

from mulligan.client.read_run import read_steps, size_of_chain
from mulligan.devserver import DevServer
from tests.support.command_fixtures import ROOT, Run
from tests.support.temporal import connect_to

SMALL_HISTORIES = "from mulligan.workflows import limits\nlimits.CONTINUE_AS_NEW_EVENTS = 10\n"
WAITING = """
from mulligan import Agent, Call, Say, Script, tool
{imports}

@tool(needs_approval=True)
def ask_clerk() -> str:
    '''Ask the clerk.'''
    return "The key is sk-1."

waiting = Agent(name="waiting", model="scripted:clerk", tools=[ask_clerk], features=[{features}])
clerk = Script("clerk", [Say(calls=[Call("ask_clerk")]), Say("The key is sk-1.")])
"""


def example() -> str:
    """The example of the page, with its line breaks."""
    [code] = re.findall(r"```python\n(\"{3}`NoSecrets`.*?)```", (ROOT / "docs/features.md").read_text(), re.DOTALL)
    return str(code)


def module(folder: Path, name: str, text: str) -> None:
    folder.joinpath(f"{name}.py").write_text(text)


async def worker(folder: Path, environment: dict[str, str], *modules: str) -> asyncio.subprocess.Process:
    """`mulligan worker` in the folder, with the modules that stand there."""
    loads = [word for name in modules for word in ("--load", name)]
    program = str(Path(sys.executable).parent / "mulligan")
    process = await asyncio.create_subprocess_exec(
        program, "worker", *loads, env=environment, cwd=folder, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    while (line := (await process.stderr.readline()).decode()).startswith("warning: "):
        pass
    assert "Serving" in line, line
    return process


async def end(process: asyncio.subprocess.Process) -> str:
    process.terminate()
    _, said = await process.communicate()
    return said.decode()


@pytest.fixture
def own_queue(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of commands whose workers are those of one test."""
    return environment | {"MULLIGAN_TASK_QUEUE": tmp_path.name, "PYTHONPATH": ""}


def test_the_example_has_at_most_60_lines() -> None:
    assert len(example().splitlines()) <= 60


async def test_the_example_refuses_an_answer_and_ends_the_turn_over_continue_as_new(
    own_queue: dict[str, str], mulligan: Run, temporal: DevServer, tmp_path: Path
) -> None:
    """Without the state that is carried over, each answer would be the first that is refused."""
    module(tmp_path, "no_secrets", example())
    module(tmp_path, "small_histories", SMALL_HISTORIES)
    process = await worker(tmp_path, own_queue, "no_secrets", "small_histories")
    name = f"{tmp_path.name}-own"
    ran = await mulligan("start", "support", "Which key?", "--id", name, "--wait", "--json", **own_queue)
    assert ran.code == 1, ran
    result = json.loads(ran.out)["result"]
    client = await connect_to(temporal)
    handle = client.get_workflow_handle(name)
    steps, messages = await asyncio.gather(read_steps(client, handle), handle.query("messages", args=[0, 100]))
    assert (result["status"], result["steps"], result["output"]) == ("refused", 2, None)
    assert [step["text"] for step in steps] == ["The key is sk-1.", "I mean sk-2."]
    assert (steps[0]["error"]["kind"], result["recovered_failures"]) == ("secret", 1)
    assert [each["text"] for each in messages["messages"]][2] == "Answer without the secret."
    assert (await size_of_chain(client, name)).runs == 2
    await end(process)


async def test_a_run_waits_for_a_worker_that_has_its_feature(
    own_queue: dict[str, str], mulligan: Run, temporal: DevServer, tmp_path: Path
) -> None:
    """One that lacks it fails the workflow task with a sentence, and does not go on as if there were no feature."""
    module(tmp_path, "no_secrets", example())
    imports = "from no_secrets import NoSecrets"
    module(tmp_path, "waiting", WAITING.format(imports=imports, features="NoSecrets(refusals=0)"))
    module(tmp_path, "older", WAITING.format(imports="", features=""))
    having = await worker(tmp_path, own_queue, "waiting")
    name = f"{tmp_path.name}-waits"
    started = await mulligan("start", "waiting", "Which key?", "--id", name, **own_queue)
    assert started.code == 0, started.err
    handle = (await connect_to(temporal)).get_workflow_handle(name)
    while not (pending := (await handle.query("pending"))):
        await asyncio.sleep(0.1)
    await end(having)

    lacking = await worker(tmp_path, own_queue, "older")
    await handle.signal("wake")
    while not (failed := await failures_of_tasks(handle)):
        await asyncio.sleep(0.1)
    assert "'no_secrets', which this worker does not have; load its module (--load)" in failed[0]
    await end(lacking)
    having = await worker(tmp_path, own_queue, "waiting")
    approved = await mulligan("approve", name, pending[0]["call_id"], **own_queue)
    assert approved.code == 0, approved.err
    result = await handle.result()
    assert (result["status"], result["steps"]) == ("refused", 2)
    await end(having)


async def failures_of_tasks(handle: WorkflowHandle[Any, Any]) -> list[str]:
    events = [event async for event in handle.fetch_history_events()]
    return [
        event.workflow_task_failed_event_attributes.failure.message
        for event in events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]
