"""MulliganPlugin adds agents to an existing client and worker."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import re
import sys
import uuid
import zlib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio import activity, workflow
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowFailureError
from temporalio.common import VersioningBehavior
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverterWithEncodedAttributes,
    DefaultPayloadConverter,
    PayloadCodec,
)
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer, Worker, WorkerDeploymentConfig, WorkerDeploymentVersion
from temporalio.worker import _worker as sdk_worker

from mulligan import (
    Agent,
    Call,
    DeclarationError,
    DurableAgent,
    MulliganPlugin,
    RunInput,
    Say,
    Script,
    data_converter,
    tool,
)
from mulligan.client.settings import Settings
from mulligan.devserver import DevServer
from mulligan.wire.agent_facts import DEFINITION_QUERY
from mulligan.worker import temporal_plugin
from mulligan.worker.group import WorkerStoppedError
from mulligan.worker.plugin_worker import OWN_OPTIONS
from tests.support.temporal import connect_to, environment_of

ROOT = Path(__file__).parents[2]
SCRIPT = Script("clerk", [Say(calls=[Call("stock", {"item": "lamp"})]), Say("There are 3 lamps.")])


@tool
async def stock(item: str) -> int:
    """Count what is in stock."""
    return len(item) - 1


clerk = Agent(name="clerk", model="scripted:clerk", tools=[stock])


class Letter(BaseModel):
    text: str


@activity.defn
async def send(letter: Letter) -> Letter:
    return Letter(text=f"sent: {letter.text}")


@activity.defn
def stamp(text: str) -> str:
    return f"{text}!"


@workflow.defn
class Theirs:
    """A workflow of the existing application, which now calls an agent too."""

    @workflow.run
    async def run(self, prompt: str) -> Letter:
        result = await DurableAgent("clerk").run(prompt)
        letter = Letter(text=str(result.output))
        return await workflow.execute_activity(send, letter, start_to_close_timeout=timedelta(seconds=20))


@workflow.defn
class Fails:
    @workflow.run
    async def run(self) -> None:
        raise ApplicationError("a secret reason")


class Zipped(PayloadCodec):
    """A codec of the existing application."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload(metadata={"encoding": b"binary/zipped"}, data=zlib.compress(each.SerializeToString()))
            for each in payloads
        ]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [
            Payload.FromString(zlib.decompress(each.data)) if each.metadata["encoding"] == b"binary/zipped" else each
            for each in payloads
        ]


class Counting(Interceptor):
    """An interceptor of the existing application."""

    started: list[str]

    def __init__(self) -> None:
        self.started = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002
        counting = self

        class Outbound(OutboundInterceptor):
            async def start_workflow(self, input: StartWorkflowInput) -> Any:  # noqa: A002
                counting.started.append(input.workflow)
                return await super().start_workflow(input)

        return Outbound(next)


def plugin() -> MulliganPlugin:
    return MulliganPlugin(agents=[clerk], scripts=[SCRIPT])


async def connected(server: DevServer, *plugins: MulliganPlugin, **options: Any) -> Client:
    return await Client.connect(server.address, namespace=server.namespace, plugins=plugins or [plugin()], **options)


def an_id() -> str:
    return f"plugin-{uuid.uuid4().hex[:8]}"


async def test_agents_run_on_a_worker_beside_its_own_workflows_and_activities(temporal: DevServer) -> None:
    """A workflow with an activity, pydantic values and an agent, and another agent run alone."""
    client = await connected(temporal)
    queue = an_id()
    async with Worker(client, task_queue=queue, workflows=[Theirs], activities=[send]):
        letter = await client.execute_workflow(Theirs.run, "How many lamps?", id=an_id(), task_queue=queue)
        alone = RunInput(agent="clerk", prompt="How many lamps?")
        handle = await client.start_workflow("AgentWorkflow", alone, id=an_id(), task_queue=queue)
        result = await handle.result()
    assert letter == Letter(text="sent: There are 3 lamps.")
    assert (result["status"], result["output"], result["tool_calls"]) == ("completed", "There are 3 lamps.", 1)
    replayer = Replayer(workflows=[Theirs], plugins=[plugin()])
    await replayer.replay_workflow(await handle.fetch_history())


async def test_the_plugin_keeps_the_codec_failure_converter_and_interceptors_of_the_client(temporal: DevServer) -> None:
    """Checked in the payloads and failures that the server has."""
    counting = Counting()
    theirs = DataConverter(payload_codec=Zipped(), failure_converter_class=DefaultFailureConverterWithEncodedAttributes)
    client = await connected(temporal, data_converter=theirs, interceptors=[counting])
    queue = an_id()
    async with Worker(client, task_queue=queue, workflows=[Theirs, Fails], activities=[send]):
        handle = await client.start_workflow(Theirs.run, "How many lamps?", id=an_id(), task_queue=queue)
        assert (await handle.result()).text == "sent: There are 3 lamps."
        failed = await client.start_workflow(Fails.run, id=an_id(), task_queue=queue)
        with pytest.raises(WorkflowFailureError) as caught:
            await failed.result()
    assert str(caught.value.cause) == "a secret reason"
    assert counting.started == ["Theirs", "Fails"]
    [start, *_] = (await handle.fetch_history()).events
    sent = start.workflow_execution_started_event_attributes.input.payloads[0]
    assert sent.metadata["encoding"] == b"binary/zipped"
    assert b"a secret reason" not in b"".join(
        event.SerializeToString() for event in (await failed.fetch_history()).events
    )


async def test_several_workers_and_plugins_in_one_process_do_not_disturb_each_other(temporal: DevServer) -> None:
    """Two workers of one client, and one of another plugin whose agent has the same name."""
    other = Script("clerk", [Say("I do not count.")])
    clients = [await connected(temporal), await connected(temporal, MulliganPlugin(agents=[clerk], scripts=[other]))]
    queues = [an_id() for _ in range(3)]

    async def outcome(client: Client, queue: str) -> Any:
        given = {"agent": "clerk", "prompt": "How many lamps?"}
        return (await client.execute_workflow("AgentWorkflow", given, id=an_id(), task_queue=queue))["output"]

    async with (
        Worker(clients[0], task_queue=queues[0], workflows=[Theirs], activities=[send]),
        Worker(clients[1], task_queue=queues[2]),
    ):
        async with Worker(clients[0], task_queue=queues[1]):
            assert await outcome(clients[0], queues[1]) == "There are 3 lamps."
        # One worker has ended; the others still run.
        outcomes = await asyncio.gather(outcome(clients[0], queues[0]), outcome(clients[1], queues[2]))
    assert list(outcomes) == ["There are 3 lamps.", "I do not count."]


async def test_agents_run_in_a_temporal_test_environment(temporal: DevServer) -> None:
    """The client of `WorkflowEnvironment` has the plugin."""
    async with WorkflowEnvironment.from_client(await connected(temporal)) as environment:
        queue = an_id()
        async with Worker(environment.client, task_queue=queue, workflows=[Theirs], activities=[send]):
            letter = await environment.client.execute_workflow(Theirs.run, "?", id=an_id(), task_queue=queue)
    assert letter.text == "sent: There are 3 lamps."


async def test_the_plugin_loads_agents_workflows_and_activities_of_modules_once(temporal: DevServer) -> None:
    """Activities may be `def` functions. A workflow that the worker lists itself is not registered twice."""
    module = sys.modules[__name__].__name__
    client = await connected(temporal, MulliganPlugin(load=[module], scripts=[]))
    queue = an_id()
    async with Worker(client, task_queue=queue, workflows=[Theirs]) as worker:
        config = worker.config(active_config=True)
        assert [each.__name__ for each in config["workflows"]].count("Theirs") == 1
        assert {"send", "stamp"} <= {each.__name__ for each in config["activities"]}
        assert (await client.execute_workflow(Theirs.run, "?", id=an_id(), task_queue=queue)).text.startswith("sent")


class OfTheirOwn(CompositePayloadConverter):
    def __init__(self) -> None:
        super().__init__(*DefaultPayloadConverter.default_encoding_payload_converters)


async def test_a_payload_converter_that_may_not_carry_our_values_is_refused(temporal: DevServer) -> None:
    with pytest.raises(DeclarationError, match=r"payload converter .*OfTheirOwn may not support Mulligan's values"):
        await connected(temporal, data_converter=DataConverter(payload_converter_class=OfTheirOwn))
    derived = type("Derived", (data_converter.payload_converter_class,), {})
    converter = dataclasses.replace(DataConverter.default, payload_converter_class=derived)
    client = await connected(temporal, data_converter=converter)
    assert client.data_converter.payload_converter_class is derived


async def test_a_plugin_serves_a_folder_of_agents_as_its_files_are(temporal: DevServer, tmp_path: Path) -> None:
    """With what loaded modules declare; a change is served, and what is wrong leaves the version before in service."""
    file = tmp_path / "porter.md"
    text = "---\nmodel: scripted:clerk\ntools: [stock]\n---\n"
    file.write_text(f"{text}You are the first.")
    folder = MulliganPlugin(agents=tmp_path, load=[__name__])
    client, queue = await connected(temporal, folder), an_id()

    async def instructions() -> str:
        run = RunInput(agent="porter", prompt="How many lamps?")
        handle = await client.start_workflow("AgentWorkflow", run, id=an_id(), task_queue=queue)
        assert (await handle.result())["output"] == "There are 3 lamps."
        return str((await handle.query(DEFINITION_QUERY, "0"))["instructions"])

    async with Worker(client, task_queue=queue, identity="me"):
        assert await instructions() == "You are the first."
        file.write_text(f"{text}You are the second.")
        while await instructions() != "You are the second.":
            await asyncio.sleep(0.1)
        file.write_text("---\nmodel: 7\n---\n")
        await asyncio.sleep(1.5)
        assert await instructions() == "You are the second."
    with pytest.raises(DeclarationError, match="is not there; create it"):
        MulliganPlugin(agents=str(tmp_path / "none"))


async def test_a_second_plugin_on_one_worker_is_refused(temporal: DevServer) -> None:
    """Its activities would have the same names. The error says what to do."""
    client = await connected(temporal, plugin(), MulliganPlugin(agents=[clerk]))
    with pytest.raises(DeclarationError, match="this worker has a MulliganPlugin already"):
        Worker(client, task_queue=an_id())


async def test_the_plugin_sets_the_heartbeat_interval_for_live_text(
    temporal: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same setting as for `mulligan worker`, a little shorter; a shorter interval of the worker itself is kept."""
    monkeypatch.setenv("MULLIGAN_LIVE_TEXT_SECONDS", "0.5")
    client = await connected(temporal)
    given: list[dict[str, Any]] = [{}, {"max_heartbeat_throttle_interval": timedelta(seconds=0.1)}]
    workers = [Worker(client, task_queue=an_id(), **options) for options in given]
    throttles = [each.config(active_config=True)["max_heartbeat_throttle_interval"] for each in workers]
    assert throttles == [timedelta(seconds=0.4), timedelta(seconds=0.1)]


async def test_a_worker_is_warned_of_what_it_lacks_and_of_settings_that_it_does_not_read(
    temporal: DevServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A deploy would cancel what runs. A grace time, and the limits of model calls, are no reason for a warning."""
    client = await connected(temporal)
    Worker(client, task_queue="brief")
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: the worker of task queue 'brief' has no graceful_shutdown_timeout, so a deploy ")
    monkeypatch.setenv("MULLIGAN_MAX_MODEL_CALLS_PER_SECOND", "0.2")
    Worker(client, task_queue="patient", graceful_shutdown_timeout=timedelta(seconds=30))
    assert not capsys.readouterr().err
    monkeypatch.setenv("MULLIGAN_MAX_CONCURRENT_ACTIVITIES", "7")
    Worker(client, task_queue="limited", graceful_shutdown_timeout=timedelta(seconds=30))
    assert capsys.readouterr().err == (
        "warning: MULLIGAN_MAX_CONCURRENT_ACTIVITIES has no effect on a worker with MulliganPlugin; use "
        "Worker(max_concurrent_activities=…).\n"
    )


def test_the_settings_that_a_worker_with_the_plugin_does_not_read_are_arguments_of_a_worker() -> None:
    for name, argument in OWN_OPTIONS.items():
        assert name in Settings.model_fields
        if found := re.search(r"^Worker\((\w+)=…\)$", argument):
            assert found[1] in inspect.signature(Worker).parameters


NAMED: list[dict[str, Any]] = [
    {"build_id": "shop-7"},
    {"deployment_config": WorkerDeploymentConfig(WorkerDeploymentVersion("shop", "7"), use_worker_versioning=False)},
]


@pytest.mark.parametrize("options", NAMED, ids=["build id", "deployment"])
async def test_the_workers_beside_one_with_a_build_id_have_it_and_compute_none(
    temporal: DevServer, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """The SDK would compile all loaded modules and hash them, and block the event loop meanwhile for seconds."""
    monkeypatch.setattr(sdk_worker, "load_default_build_id", lambda: pytest.fail("computed a build id"))
    monkeypatch.setenv("MULLIGAN_MAX_CONCURRENT_MODEL_CALLS", "2")
    client, queue = await connected(temporal), an_id()
    grace = timedelta(seconds=1)
    async with Worker(client, task_queue=queue, graceful_shutdown_timeout=grace, **options):
        given = {"agent": "clerk", "prompt": "How many lamps?"}
        result = await client.execute_workflow("AgentWorkflow", given, id=an_id(), task_queue=queue)
    assert result["output"] == "There are 3 lamps."


async def test_a_plugin_says_why_its_workers_are_not_ready(temporal: DevServer) -> None:
    """For the readiness check of the program."""
    agents = plugin()
    client = await connected(temporal, agents)
    assert await agents.unready() == "no worker runs"
    async with Worker(client, task_queue=an_id(), graceful_shutdown_timeout=timedelta(seconds=1)):
        while await agents.unready():
            await asyncio.sleep(0.01)
        [running] = agents._workers.values()
        assert running.group is not None
        for monitor in running.group.monitors[:2]:
            monitor.reason = f"not polling {monitor.task_type} tasks"
        assert await agents.unready() == "not polling workflow tasks; not polling activity tasks"
    assert await agents.unready() == "no worker runs"


def test_every_worker_in_docs_and_examples_has_a_grace_time() -> None:
    """Without it, a deploy cancels what runs. In a diff, what is taken away does not count."""
    pages = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "examples").rglob("*.py"),
        Path(temporal_plugin.__file__),
    ]
    calls = [
        (page.name, call)
        for page in pages
        for call in re.findall(
            r"(?<!def )\bWorker\((?:[^()]|\([^()]*\))*\)", re.sub(r"(?m)^-  .*$", "", page.read_text())
        )
        if re.match(r"Worker\(\s*client", call)
    ]
    assert {name for name, _ in calls} >= {"existing-worker.md", "temporal_plugin.py"}
    assert [name for name, call in calls if "graceful_shutdown_timeout" not in call] == []


def test_wrong_arguments_of_the_plugin_are_refused_with_a_sentence() -> None:
    with pytest.raises(DeclarationError, match=r"load='shop' is a text; give a list"):
        MulliganPlugin(load="shop")
    with pytest.raises(DeclarationError, match=r"there is no module 'nowhere\.at_all'"):
        MulliganPlugin(load=["nowhere.at_all"])


async def test_the_application_of_the_existing_worker_page_runs_as_printed(temporal: DevServer, tmp_path: Path) -> None:
    page = (ROOT / "docs/existing-worker.md").read_text()
    code, deployment = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = code.replace("        graceful_shutdown", "        deployment_config=deployment,\n        graceful_shutdown")
    (tmp_path / "app.py").write_text(f"{deployment}\n{code}")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "app.py", cwd=tmp_path, env=os.environ | environment_of(temporal),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    printed = out.decode().splitlines()
    assert printed == ["sent: Your order is on its way.", "completed Your order is on its way."]
    assert all(f"`{line}`" in page for line in printed)


@pytest.mark.parametrize("served", ["with a queue of its own agents", "versioned"])
async def test_the_worker_stops_when_functions_that_hang_leave_no_thread(temporal: DevServer, served: str) -> None:
    """Its run fails with the reason, after what ran has ended; so its process ends as after a fatal error of its polls."""
    queue, plugin = f"threads-{uuid.uuid4().hex[:6]}", MulliganPlugin(agents=[clerk], scripts=[SCRIPT])
    version = WorkerDeploymentVersion(queue, "1")
    versioned = {
        "deployment_config": WorkerDeploymentConfig(
            version, use_worker_versioning=True, default_versioning_behavior=VersioningBehavior.PINNED
        )
    }
    options: dict[str, Any] = versioned if served == "versioned" else {}
    worker = Worker(await connect_to(temporal), task_queue=queue, plugins=[plugin], **options)
    running = asyncio.create_task(worker.run())
    while not worker.is_running:
        await asyncio.sleep(0.01)
    [parts] = plugin._workers.values()
    parts._activities._services.runtime.bounds.on_used_up("no threads left: 128 functions still run")
    with pytest.raises(WorkerStoppedError, match="no threads left: 128 functions still run"):
        await running
    assert worker.is_shutdown
