"""With keys set, no content is readable in the server's database; everything else works as before."""

from __future__ import annotations

import asyncio
import base64
import uuid
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.workflowservice.v1 import RespondActivityTaskCompletedByIdRequest
from temporalio.client import Client, WorkflowFailureError, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.common import RawValue

from mulligan import InvalidRunInputError, connect, error_of
from mulligan.devserver import temporal_server
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call
from tests.support.own_worker import BOTH_KINDS, serving

SECRET = "sesame-0815"
OLD, NEW = (f"{name}:{base64.b64encode(name.encode() * 32).decode()}" for name in "on")


@pytest.mark.parametrize("keys", ["", f"{NEW},{OLD}"], ids=["open", "encrypted"])
async def test_with_keys_no_content_is_readable_in_the_database(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """The file and its write-ahead log are searched as bytes for prompts, arguments, results, answers, errors and failures."""
    file = tmp_path / "temporal.db"
    async with temporal_server(db=file) as server:
        monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", keys)
        client = await connect(server.address)
        async with running_worker(client, load(["tests.support.shop_agents"]), lab.telemetry, "agents"):
            at = Lab(client, lab.model, lab.otlp, lab.telemetry)
            said = [call("click", f'{{"selector": "{SECRET}"}}'), call("click", f'{{"s": "{SECRET}"}}'), DONE]
            ran = await at.run(said, prompt=SECRET, metadata={"note": SECRET})
            assert ran.calls[0]["result"]["text"] == f"clicked {SECRET}"
            assert ran.result["recovered_failures"] == 1
            failed = await at.run([call("clik", f'{{"s": "{SECRET}"}}')], agent="strict", prompt=SECRET)
            assert type(failed.error).__name__ == "UnknownToolError"
            assert getattr(failed.error, "raw_arguments", "") == f'{{"s": "{SECRET}"}}'
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("temporal.db*"))
    assert (SECRET.encode() in kept) is not bool(keys)
    assert b"AgentWorkflow" in kept


@BOTH_KINDS
async def test_a_run_goes_on_when_the_encryption_key_is_rotated(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """The next worker has the new key first and the old one second."""
    go, queue = tmp_path / "go", f"rotated-{kind}"
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", OLD)
    one = Lab(await lab.another_client(), lab.model, lab.otlp, lab.telemetry, queue)
    handle = await one.start([call("now"), call("wait_for_file"), DONE], metadata={"file": str(go)})
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", f"{NEW},{OLD}")
    client = await lab.another_client()
    two = Lab(client, lab.model, lab.otlp, lab.telemetry, queue)
    async with serving(kind, client, ["tests.support.shop_agents"], lab.telemetry, queue):
        go.touch()
        ran = await two.look(client.get_workflow_handle(handle.id))
    assert [each["result"]["text"] for each in ran.calls] == ["noon", "it is there"]


ENCODING = {b"binary/encrypted"}


def payloads_in(message: Any, skip: str = "") -> list[Any]:
    """All payloads of a protobuf message, but those of headers, search attributes and the SDK's own markers."""
    if message.DESCRIPTOR.full_name == "temporal.api.common.v1.Payload":
        return [message]
    skipped = {"header", "search_attributes", "marker_recorded_event_attributes", skip}
    found = []
    for field, value in message.ListFields():
        if field.message_type is None or field.name in skipped:
            continue
        if field.message_type.GetOptions().map_entry:
            found += [p for each in value.values() if hasattr(each, "ListFields") for p in payloads_in(each)]
        elif field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED:
            found += [p for each in value for p in payloads_in(each)]
        else:
            found += payloads_in(value)
    return found


async def test_a_strict_worker_runs_everything_that_is_encrypted_for_its_workflow_and_nothing_else(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Sub-agents, updates, signals, queries, memos, continue-as-new and failures are readable where they belong. Plain
    payloads, and those of another workflow, are refused without failing a workflow task."""
    plain = lab.client
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", NEW)
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_STRICT", "true")
    client, queue = await lab.another_client(), f"strict-{uuid.uuid4().hex[:6]}"
    modules = ["tests.support.shop_agents", "tests.support.sub_agent_teams", "tests.support.people_agents"]
    async with running_worker(client, load(modules), lab.telemetry, queue):
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, queue)
        ran = await at.run([call("researcher", '{"prompt": "x"}', "one"), DONE], agent="lead", prompt=SECRET)
        assert ran.calls[0]["result"]["text"] == "found: x"
        # Every payload is encrypted, and bound to the workflow in whose history it is, or to the child that it is for.
        # Only the summary of the child was encrypted by the SDK for its parent.
        of_child = {
            p.metadata["encryption-workflow"] for p in await history_of(client, f"{ran.id}/one", skip="user_metadata")
        }
        of_run = await history_of(client, ran.id)
        assert {p.metadata["encoding"] for p in of_run} == ENCODING
        assert len(of_child) == 1
        assert len({p.metadata["encryption-workflow"] for p in of_run} - of_child) == 1
        assert (await (await client.get_workflow_handle(ran.id).describe()).memo())["agent"] == "lead"
        [listed] = [each async for each in client.list_workflows(f'WorkflowId = "{ran.id}"')]
        assert (await listed.memo())["agent"] == "lead"

        token = context.attach(baggage.set_baggage("customer", SECRET))
        go = tmp_path / "go"
        waiting = await at.start([call("wait_for_file"), DONE], metadata={"file": str(go)})
        context.detach(token)
        started = (await waiting.fetch_history()).events[0]
        assert SECRET.encode() not in started.SerializeToString()
        while (await waiting.query("progress")).get("running") != ["wait_for_file"]:
            await asyncio.sleep(0.05)
        with pytest.raises(WorkflowUpdateFailedError):
            await plain.get_workflow_handle(waiting.id).execute_update("send_message", {"text": "not encrypted"})
        await plain.get_workflow_handle(waiting.id).signal("stop", "not encrypted")
        await waiting.execute_update("send_message", {"text": "encrypted"})
        go.touch()
        stopped = await at.look(waiting)
        assert stopped.result["status"] == "stopped"
        assert [each["result"]["text"] for each in stopped.calls] == ["it is there"]

        moved = (await history_of(client, ran.id))[0]
        for given, reason in (
            ({"agent": "shop", "prompt": "x"}, "is not encrypted, but MULLIGAN_ENCRYPTION_STRICT is set."),
            (RawValue(moved), "was encrypted for another workflow."),
        ):
            handle = await plain.start_workflow(
                "AgentWorkflow", given, id=f"run-{uuid.uuid4().hex[:8]}", task_queue=queue
            )
            with pytest.raises(WorkflowFailureError) as failed:
                await asyncio.wait_for(client.get_workflow_handle(handle.id).result(), 90)
            error = error_of(failed.value)
            assert isinstance(error, InvalidRunInputError)
            assert reason in str(error)


async def history_of(client: Any, workflow_id: str, skip: str = "") -> list[Any]:
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    return [payload for event in history.events for payload in payloads_in(event, skip)]


def encrypted(key_id: bytes, data: bytes) -> RawValue:
    return RawValue(Payload(metadata={"encoding": b"binary/encrypted", "encryption-key-id": key_id}, data=data))


async def test_data_that_cannot_be_decrypted_fails_only_the_request_that_brought_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage under the name of a key that the worker has, or that has no encryption's form, is refused at once wherever
    somebody sends it: no workflow task fails."""
    plain = lab.client
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", NEW)
    client, queue = await lab.another_client(), f"garbage-{uuid.uuid4().hex[:6]}"
    garbage = [encrypted(b"n", b"x" * 60), encrypted(b"n", b""), encrypted(b"\xff;", b"x" * 60)]
    async with running_worker(client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, queue)
        handle = await at.start([call("wait_for_file", id="c1"), DONE], metadata={"file": "/never"})
        outside = plain.get_workflow_handle(handle.id)
        for each in garbage:
            with pytest.raises(WorkflowUpdateFailedError):
                await asyncio.wait_for(outside.execute_update("send_message", each), 90)
            with pytest.raises(WorkflowQueryFailedError):
                await asyncio.wait_for(outside.query("messages", each), 90)
        # Of a key that no worker has: the sender is told. A start or a signal would wait for a worker with the key.
        with pytest.raises(WorkflowUpdateFailedError):
            await asyncio.wait_for(outside.execute_update("send_message", encrypted(b"other", b"x" * 60)), 90)
        await complete_by_hand(plain, handle.id, garbage[0].payload)
        ran = await asyncio.wait_for(handle.result(), 90)
        assert ran["status"] == "completed"
        [step] = (await handle.query("steps"))["steps"][:1]
        assert step["tool_calls"][0]["result"]["error"]["kind"] == "tool_lost"
        await outside_stop(at, plain, garbage[0])
        for each in garbage:
            started = await plain.start_workflow(
                "AgentWorkflow", each, id=f"run-{uuid.uuid4().hex[:8]}", task_queue=queue
            )
            with pytest.raises(WorkflowFailureError) as failed:
                await asyncio.wait_for(client.get_workflow_handle(started.id).result(), 90)
            assert isinstance(error_of(failed.value), InvalidRunInputError)
            await assert_no_task_failed(plain, started.id)
        await assert_no_task_failed(plain, handle.id)


async def complete_by_hand(client: Client, workflow_id: str, result: Payload) -> None:
    """Complete the run's open activity, as `temporal activity complete` does."""
    [activity] = (await client.get_workflow_handle(workflow_id).describe()).raw_description.pending_activities
    await client.workflow_service.respond_activity_task_completed_by_id(
        RespondActivityTaskCompletedByIdRequest(
            namespace=client.namespace, workflow_id=workflow_id, activity_id=activity.activity_id,
            result=Payloads(payloads=[result]),
        ),
        retry=True,
    )  # fmt: skip


async def outside_stop(at: Lab, plain: Client, reason: RawValue) -> None:
    """A signal has no answer: `stop` stops the run, without the reason that cannot be read."""
    handle = await at.start([call("wait_for_file"), DONE], metadata={"file": "/dev/null"})
    await plain.get_workflow_handle(handle.id).signal("stop", reason)
    ran = await asyncio.wait_for(handle.result(), 90)
    assert ran["status"] in ("stopped", "completed")
    await assert_no_task_failed(plain, handle.id)


async def assert_no_task_failed(client: Client, workflow_id: str) -> None:
    history = await client.get_workflow_handle(workflow_id).fetch_history()
    assert not [each for each in history.events if each.HasField("workflow_task_failed_event_attributes")]
