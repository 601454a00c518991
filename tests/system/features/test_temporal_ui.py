"""What Temporal's UI shows of a run, read through the API that the UI uses."""

from __future__ import annotations

import asyncio
import base64
import uuid
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import EventType, IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client, WorkflowFailureError
from temporalio.converter import DataConverter

from mulligan import RunInput, UserMessage, connect, resume_run
from mulligan.client.find_runs import RunQuery, find_runs
from mulligan.devserver import DevServer
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.promise.test_people import REFUND, pending
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn

SECRET_PROMPT, SECRET_ARGUMENT = "open sesame 0815", "sesame-street"
KEY = f"ui:{base64.b64encode(b'u' * 32).decode()}"
KINDS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: "activity",
    EventType.EVENT_TYPE_MARKER_RECORDED: "local activity",
    EventType.EVENT_TYPE_TIMER_STARTED: "timer",
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: "sub-run",
}


async def details_of(handle: Any) -> str:
    """The current details, by the query that the UI sends."""
    return str((await handle.query("__temporal_workflow_metadata")).current_details)


async def summaries_of(lab: Lab, handle: Any) -> list[tuple[str, str]]:
    """The summaries in the history, by the kind of what they summarize."""
    history = await handle.fetch_history()
    found = []
    for event in history.events:
        if event.event_type in KINDS and event.HasField("user_metadata"):
            [summary] = await lab.client.data_converter.decode([event.user_metadata.summary])
            found.append((KINDS[event.event_type], summary))
    return found


async def test_each_way_to_start_a_run_gives_it_a_summary(lab: Lab) -> None:
    """The agent and the prompt's first line. A run that was resumed, or started with messages, has one too."""
    handle = await lab.start([DONE], prompt="\n  Where is\torder 7?\nIt is late.")
    await handle.result()
    assert await (await handle.describe()).static_summary() == "shop: Where is order 7?"
    lab.model.script("resumed", [DONE, DONE])
    resumed = await resume_run(lab.client, handle.id, "And order 8?", model="openai-chat:resumed")
    await resumed.result()
    assert await (await resumed.describe()).static_summary() == "shop: And order 8?"
    lab.model.script("given", [DONE])
    given = RunInput(
        agent="shop",
        messages=[UserMessage(role="user", text="Hello \u202e\x1b[31m" + "é" * 200)],
        model="openai-chat:given",
    )
    of_messages = await lab.client.start_workflow(
        "AgentWorkflow", given, id=f"given-{uuid.uuid4().hex[:6]}", task_queue="agents"
    )
    await of_messages.result()
    summary = await (await of_messages.describe()).static_summary()
    assert summary is not None
    assert summary.startswith("shop: Hello")
    assert summary.isprintable()
    assert len(summary.encode()) < 220


async def test_a_summary_that_the_caller_set_is_kept(lab: Lab) -> None:
    lab.model.script("own-summary", [DONE])
    handle = await lab.client.start_workflow(
        "AgentWorkflow",
        {"agent": "shop", "prompt": "Go.", "model": "openai-chat:own-summary"},
        id=f"own-{uuid.uuid4().hex[:6]}",
        task_queue="agents",
        static_summary="mine",
    )
    await handle.result()
    assert await (await handle.describe()).static_summary() == "mine"


async def test_history_says_which_step_which_model_and_which_tool_each_activity_is(lab: Lab) -> None:
    ran = await lab.run([call("now"), call("hang_thread"), call("flaky"), DONE])
    model = ran.id
    assert await summaries_of(lab, ran.handle) == [
        ("activity", "shop"),
        ("activity", f"step 1: {model}"),
        ("activity", "now"),
        ("activity", f"step 2: {model}"),
        ("activity", "hang_thread"),
        ("activity", f"step 3: {model}"),
        ("activity", "flaky"),
        ("activity", f"step 4: {model}"),
        ("local activity", "completed"),
    ]


async def test_a_call_that_waits_is_in_the_details_and_its_timer_and_decision_in_the_history(lab: Lab) -> None:
    """The details say what the query `progress` says. A run that a client of any kind has started has them."""
    run_id = f"ui-{uuid.uuid4().hex[:6]}"
    lab.model.script(run_id, [call("refund", REFUND, "t3"), call("hasty", "{}", "t4"), DONE])
    plain = await Client.connect(lab.client.service_client.config.target_host, namespace=lab.client.namespace)
    handle = await plain.start_workflow(
        "AgentWorkflow",
        {"agent": "desk", "prompt": "Refund `order` 7 ![x](http://x.test/)", "model": f"openai-chat:{run_id}"},
        id=run_id,
        task_queue="agents",
    )
    handle = lab.client.get_workflow_handle(run_id)
    await pending(handle)
    progress = await handle.query("progress")
    assert progress["waiting_for"]["detail"].endswith(f"mulligan approve {run_id} t3")
    details = await details_of(handle)
    assert details.splitlines() == [
        "**Agent** `desk` · step 1 of 50 · waiting",
        "",
        "```",
        progress["waiting_for"]["detail"],
        't3: refund {"order": 7, "amount": {"euros": 12.5}}',
        "```",
        "",
        "**Task** `Refund 'order' 7 ![x](http://x.test/)`",
        "",
        f"**Usage** {progress['usage']['input_tokens']} input and {progress['usage']['output_tokens']} output tokens"
        " · 1 tool call · 0 recovered failures",
    ]
    await handle.execute_update("decide", {"call_id": "t3", "decision": "approve"})
    await handle.result()
    ended = await details_of(handle)
    assert ended.startswith("**Agent** `desk` · step 3 of 50 · completed")
    assert "```" not in ended
    found = await summaries_of(lab, handle)
    assert ("local activity", "refund: approve") in found
    assert ("timer", "time limit of the approval: hasty") in found
    assert ("local activity", "hasty: timeout") in found


async def test_a_workflow_of_ones_own_shows_its_agents_unless_it_sets_details_itself(lab: Lab) -> None:
    """It runs in Temporal's sandbox, and has two agents."""
    run_id = f"own-{uuid.uuid4().hex[:8]}"
    lab.model.script(run_id, [DONE, DONE])
    lab.model.script(run_id + "-b", [DONE])
    models = [f"openai-chat:{run_id}", f"openai:{run_id}-b"]
    handle = await lab.client.start_workflow("TwoTurns", models, id=run_id, task_queue="agents")
    await handle.result()
    details = await details_of(handle)
    assert [line.split(" · ")[0] for line in details.splitlines() if line.startswith("**Agent**")] == [
        "**Agent** `asked`",
        "**Agent** `shop`",
    ]


async def test_a_run_that_continued_as_new_still_says_its_task_in_its_details(
    lab: Lab, chain_server: DevServer
) -> None:
    """Temporal drops the static summary when a run continues as new, and no client or workflow can set it again."""
    client = await connect(chain_server.address)
    at = Lab(client, lab.model, lab.otlp, lab.telemetry, "ui")
    async with running_worker(client, load(["tests.support.shop_agents"]), lab.telemetry, "ui"):
        handle = await at.start([call("now")] * 12 + [DONE], prompt="Where is order 7?", max_steps=20)
        await handle.result()
        newest = client.get_workflow_handle(handle.id)
        assert (await newest.describe()).run_id != handle.first_execution_run_id
        assert "**Task** `Where is order 7?`" in await details_of(newest)
        assert await attributes_of(newest) == {"MulliganAgent": "shop", "MulliganStatus": "completed"}
        first = client.get_workflow_handle(handle.id, run_id=handle.first_execution_run_id)
        assert await (await first.describe()).static_summary() == "shop: Where is order 7?"


async def attributes_of(handle: Any) -> dict[str, Any]:
    """The search attributes of a run that are Mulligan's."""
    found = (await handle.describe()).typed_search_attributes
    return {pair.key.name: pair.value for pair in found if pair.key.name.startswith("Mulligan")}


async def until_listed(client: Client, status: str, agent: str, run_id: str, *, is_listed: bool = True) -> list[str]:
    """The ids that `mulligan list` prints, once the run is among them or no longer is: the server's lists lag behind."""
    while True:
        page = await find_runs(client, RunQuery(status=status, agent=agent, sub_agents=True), limit=1_000)
        ids = [run["id"] for run in page.runs]
        if (run_id in ids) is is_listed:
            return ids
        await asyncio.sleep(0.1)


async def upserts_of(handle: Any) -> int:
    events = (await handle.fetch_history()).events
    return sum(event.event_type == EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES for event in events)


async def test_search_attributes_say_the_agent_and_the_status_and_change_only_with_it(lab: Lab) -> None:
    """Each change is an event of about 200 bytes: two for a run, and two more for each time that it only waits for people."""
    twice = Turn(calls=[("refund", REFUND, "t1"), ("refund", REFUND, "t2")])
    handle = await lab.start([call("now"), twice, call("now"), DONE], agent="desk")
    waiting = await pending(handle, 2)
    await until_listed(lab.client, "waiting", "desk", handle.id)
    assert await attributes_of(handle) == {"MulliganAgent": "desk", "MulliganStatus": "waiting"}
    await handle.execute_update("decide", {"call_id": waiting[0]["call_id"], "decision": "approve"})
    while not [each for each in (await handle.query("steps"))["steps"][-1]["tool_calls"] if each["result"]]:
        await asyncio.sleep(0.02)
    assert (await attributes_of(handle))["MulliganStatus"] == "waiting"
    await handle.execute_update("decide", {"call_id": waiting[1]["call_id"], "decision": "approve"})
    await handle.result()
    assert await attributes_of(handle) == {"MulliganAgent": "desk", "MulliganStatus": "completed"}
    assert await upserts_of(handle) == 6  # it worked on the first call while the second one waited
    ran = await lab.run([call("now")] * 5 + [DONE], max_steps=2)
    assert await attributes_of(ran.handle) == {"MulliganAgent": "shop", "MulliganStatus": "max_steps"}
    assert await upserts_of(ran.handle) == 2


async def test_a_run_that_fails_or_is_cancelled_says_so_in_its_status(lab: Lab) -> None:
    failed = await lab.run([call("clik")], agent="strict")
    assert (await attributes_of(failed.handle))["MulliganStatus"] == "failed"
    handle = await lab.start([call("refund", REFUND)], agent="desk")
    await pending(handle)
    await handle.cancel()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    assert (await attributes_of(handle))["MulliganStatus"] == "cancelled"


@pytest.mark.parametrize("registered", [{}, {"MulliganAgent": "INT", "MulliganStatus": "TEXT"}], ids=["none", "others"])
async def test_where_the_server_has_no_such_attributes_runs_work_without_them(
    lab: Lab, registered: dict[str, str]
) -> None:
    """Also if there are others of these names. Setting one would fail the workflow task again and again."""
    name = f"bare-{uuid.uuid4().hex[:6]}"
    kept = Duration(seconds=86_400)
    await lab.client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=kept), retry=True
    )
    if registered:
        types = {each: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind}") for each, kind in registered.items()}
        await lab.client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(namespace=name, search_attributes=types), retry=True
        )
    client = await connect(lab.client.service_client.config.target_host, namespace=name)
    async with running_worker(client, load(["tests.support.people_agents"]), lab.telemetry, "agents"):
        at = Lab(client, lab.model, lab.otlp, lab.telemetry)
        handle = await at.start([call("refund", REFUND, "t1"), DONE], agent="desk")
        await pending(handle)
        assert await until_listed(client, "waiting", "desk", handle.id) == [handle.id]
        await handle.execute_update("decide", {"call_id": "t1", "decision": "approve"})
        assert (await handle.result())["status"] == "completed"
        assert await until_listed(client, "waiting", "desk", handle.id, is_listed=False) == []
        assert await attributes_of(handle) == {}
        assert await upserts_of(handle) == 0


async def test_a_workflow_of_ones_own_keeps_its_search_attributes_to_itself(lab: Lab) -> None:
    run_id = f"own-{uuid.uuid4().hex[:8]}"
    lab.model.script(run_id, [DONE, DONE])
    lab.model.script(run_id + "-b", [DONE])
    models = [f"openai-chat:{run_id}", f"openai:{run_id}-b"]
    handle = await lab.client.start_workflow("TwoTurns", models, id=run_id, task_queue="agents")
    await handle.result()
    assert await upserts_of(handle) == 0


@pytest.mark.parametrize("keys", ["", KEY], ids=["open", "encrypted"])
async def test_summaries_and_details_of_an_encrypted_run_are_encrypted(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """What a client without the key reads contains neither the prompt nor the names of tools and models."""
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", keys)
    client = await lab.another_client()
    queue = f"ui-{uuid.uuid4().hex[:6]}"
    async with running_worker(client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, queue)
        turns = [call("click", f'{{"selector": "{SECRET_ARGUMENT}"}}'), call("hang_thread"), DONE]
        handle = await at.start(turns, prompt=SECRET_PROMPT)
        await handle.result()
        assert await (await handle.describe()).static_summary() == f"shop: {SECRET_PROMPT}"
        await until_listed(client, "completed", "shop", handle.id)
        assert SECRET_PROMPT in await details_of(handle)
        without_key = await Client.connect(
            lab.client.service_client.config.target_host,
            namespace=lab.client.namespace,
            data_converter=DataConverter.default,
        )
        seen = without_key.get_workflow_handle(handle.id)
        # Temporal never encrypts search attributes, so the agent's name is not in one.
        agent = {} if keys else {"MulliganAgent": "shop"}
        assert await attributes_of(seen) == {**agent, "MulliganStatus": "completed"}
        described = (await seen.describe()).raw_description.SerializeToString()
        history = b"".join(event.SerializeToString() for event in (await seen.fetch_history()).events)
        model = handle.id.encode()
        if keys:
            with pytest.raises(Exception, match="encoding"):
                await details_of(seen)
        for secret in (SECRET_PROMPT.encode(), SECRET_ARGUMENT.encode(), b"click", b"hang_thread", b"step 1: " + model):
            assert (secret in described + history) is not bool(keys), secret


async def test_no_summary_is_longer_than_temporal_takes_even_if_it_is_encrypted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal's limit is 400 bytes for the payload; a start or a workflow task that exceeds it is refused."""
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", f"{'k' * 64}:{base64.b64encode(b'u' * 32).decode()}")
    client = await lab.another_client()
    queue = f"ui-{uuid.uuid4().hex[:6]}"
    async with running_worker(client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, queue)
        ran = await at.run([Turn(calls=[("now", "{}", None)]), DONE], prompt='𝕏"\\' * 500)
        history = await ran.handle.fetch_history()
        sizes = [event.user_metadata.summary.ByteSize() for event in history.events if event.HasField("user_metadata")]
        assert len(sizes) >= 5
        assert max(sizes) <= 400
