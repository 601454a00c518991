"""What recorders of histories share: a worker on a server of its own, what people send to a run, and the file of a history."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle

from mulligan import connect
from mulligan.client.callback_tokens import RESPONSE, callback_tokens
from mulligan.devserver import temporal_server
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import LoadedModules, load
from mulligan.worker.wiring import running_worker
from tests.support.openai_server import OpenAIServer

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(__file__).parent / "histories"
QUEUE = "agents"
UPDATES, MODULE, CONTINUE_AFTER = "updates", "module", "continue_after"
"""Keys of a run that is recorded: what people do, what its worker loads, and the events after which it continues as new."""
NO_INPUT = ("turns", "api", UPDATES, MODULE, CONTINUE_AFTER)
MESSAGES = [("send_message", {"text": f"message {number}", "id": f"m{number}"}) for number in range(22)]
"""Enough of them for a run that waits to continue as new."""
Handle = WorkflowHandle[Any, Any]


def support(*names: str) -> LoadedModules:
    """Modules of tests/support."""
    return load([f"tests.support.{name}" for name in names])


@asynccontextmanager
async def serving(
    loaded: LoadedModules, continue_after: int | None = None, **environment: str
) -> AsyncIterator[tuple[Client, OpenAIServer]]:
    """A server, a scripted model, and a worker. `continue_after`: the events after which the server suggests to continue as
    new, which is in history: a limit of the worker is not, and would have to be the same in each replay.
    """
    suggests = [f"limit.historyCount.suggestContinueAsNew={continue_after}"] if continue_after else []
    async with temporal_server(dynamic_config=suggests) as server, OpenAIServer() as model:
        os.environ |= {**model.environment(), **environment}
        client = await connect(server.address, identity="recorder")
        async with running_worker(client, loaded, Telemetry(), QUEUE):
            yield client, model


async def start_run(client: Client, model: OpenAIServer, name: str, given: Mapping[str, Any]) -> Handle:
    """Start a run whose model answers by the script `turns`."""
    run_id = f"{name}-{uuid.uuid4().hex[:6]}"
    model.script(run_id, given["turns"])
    start = {"agent": "shop", "prompt": "Go.", "model": f"{given.get('api', 'openai-chat')}:{run_id}"}
    start |= {key: value for key, value in given.items() if key not in NO_INPUT}
    return await client.start_workflow("AgentWorkflow", start, id=run_id, task_queue=QUEUE)


async def run_and_save(
    client: Client, model: OpenAIServer, version: str, name: str, given: Mapping[str, Any]
) -> Handle:
    """Start a run, send its updates, and save its history when it has ended."""
    handle = await start_run(client, model, name, given)
    for update, argument in given.get(UPDATES, ()):
        if update == "response_ended_of":
            await say_ended(handle, model, argument["response"])
        else:
            await say(handle, update, argument)
    await asyncio.gather(handle.result(), return_exceptions=True)
    await save(client, handle.id, f"{version}-{name}")
    return handle


async def say(handle: Any, update: str, argument: dict[str, Any]) -> None:
    """Send an update once its call waits, or a cancellation once calls run. `asked`: only wait until the call waits."""
    if update == "cancel":
        while len((await handle.query("progress"))["running"]) < 2:
            await asyncio.sleep(0.2)
        await handle.cancel()
        return
    if update == "reminded":
        while await reminders(handle) < argument["times"]:
            await asyncio.sleep(0.2)
        return
    if update == "decide_first":
        argument, update = {**argument, "call_id": (await handle.query("pending"))[0]["call_id"]}, "decide"
    if update in ("complete", "waits"):
        while not await deferred(handle, argument["call_id"]):
            await asyncio.sleep(0.02)
        if update == "complete":
            await handle.execute_update(update, argument)
        return
    kind = "question" if update == "answer" else None
    while "call_id" in argument and not any(
        wait["call_id"] == argument["call_id"]
        and kind in (None, wait["kind"])
        and (argument.get("decision") != "deny" or wait["kind"] == "approval" or wait.get("can_deny"))
        for wait in await handle.query("pending")
    ):
        await asyncio.sleep(0.1)
    if update != "asked":
        await handle.execute_update(update, argument)


async def say_ended(handle: Any, model: OpenAIServer, number: int) -> None:
    """Say that the background response of that number has ended, as a webhook does."""
    while True:
        stored = model.background.of(handle.id)
        waits = (await handle.query("progress"))["waiting_for"] or {"detail": ""}
        if len(stored) > number and stored[number].id in waits["detail"]:
            break
        await asyncio.sleep(0.05)
    token = stored[number].request["metadata"]["mulligan"]
    call = await callback_tokens(lambda: handle._client).open(token, RESPONSE)
    assert call is not None
    fields = {"response_id": stored[number].id, "conversation": call.conversation, "trace_id": call.trace_id}
    await handle.execute_update("response_ended", fields)


async def reminders(handle: Any) -> int:
    """How many reminders the run has sent."""
    return sum(event["type"] == "reminder" for event in (await handle.query("events"))["events"])


async def deferred(handle: Any, call_id: str) -> bool:
    """Whether a deferred call waits."""
    steps = (await handle.query("steps"))["steps"]
    return any(call["id"] == call_id and call.get("deferred") for step in steps for call in step["tool_calls"])


async def save(client: Any, workflow_id: str, name: str, limits: Mapping[str, int] | None = None) -> None:
    """Write the history of each run of a chain to a file. `limits`: those that the recorder has changed, by the names in
    limits.py, where a replay decides by them.
    """
    changed = {"limits": dict(limits)} if limits else {}
    runs = [run async for run in client.list_workflows(f'WorkflowId = "{workflow_id}"')]
    for number, run in enumerate(sorted(runs, key=lambda run: run.start_time), 1):
        history = await client.get_workflow_handle(workflow_id, run_id=run.run_id).fetch_history()
        data = {"workflow_id": workflow_id, **changed, **json.loads(history.to_json(), object_hook=_without_folder)}
        file = FOLDER / (f"{name}.json" if len(runs) == 1 else f"{name}-{number}.json")
        # Names of task queues contain the name of the machine, stack traces its folders.
        text = json.dumps(data, indent=1)
        for ours, shown in ((f"@{socket.gethostname()}", "@recorder"), (f"{ROOT}/", ""), (sys.base_prefix, "python")):
            text = text.replace(ours, shown)
        file.write_text(text + "\n")


def _without_folder(value: dict[str, Any]) -> dict[str, Any]:
    """A payload without the folder of the checkout: lists of agents say where their files are. What else it is given stays."""
    data = value.get("data")
    if not isinstance(data, str) or f"{ROOT}/".encode() not in (decoded := base64.b64decode(data)):
        return value
    return {**value, "data": base64.b64encode(decoded.replace(f"{ROOT}/".encode(), b"")).decode()}
