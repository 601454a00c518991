"""Resuming runs that have ended: no call runs twice, and the provider accepts each request."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import zstandard
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import WorkflowAlreadyStartedError

from mulligan import InvalidRunInputError, error_of
from mulligan.client import read_run
from mulligan.client.connect import explain_unreadable_data
from mulligan.client.find_runs import describe_run
from mulligan.client.origins.resume_run import AlreadyResumedError, PromptNeededError, resume_run
from mulligan.client.origins.run_state import NoWorkerError, ResumeError, RunNotFoundError, RunOpenError
from mulligan.client.read_run import size_of_chain
from mulligan.devserver import DevServer
from mulligan.wire.compressed_input import MOST_BYTES
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from mulligan.workflows import limits
from tests.support.compaction_agents import PROMPT, READ, is_summing_up, reading
from tests.support.lab import DONE, Lab, Ran, call
from tests.support.large_payload_agent import noise, prose
from tests.support.openai_turn import Turn
from tests.support.shop_agents import RAN
from tests.support.temporal import connect_to, environment_of

ADA = '{"customer": "Ada"}'


async def resume_to_end(lab: Lab, ran_id: str, prompt: str | None = None, **how: Any) -> Ran:
    """Resume a run and wait for its end; `requests` are those of both runs."""
    ran = await lab.look(await resume_run(lab.client, ran_id, prompt, **how))
    ran.requests = lab.model.requests_of(ran_id)
    assert [request.refusal for request in ran.requests if request.refusal] == []
    return ran


def tool_results(ran: Ran) -> dict[str, str]:
    """The result of each call in the last model request of the run, by call id."""
    return {
        message["tool_call_id"]: message["content"]
        for message in ran.requests[-1].json["messages"]
        if message["role"] == "tool"
    }


async def test_a_run_out_of_steps_is_resumed_with_new_steps_and_a_link_to_the_old_run(lab: Lab) -> None:
    """It keeps the metadata; its memo and its root span name the old run."""
    turns = [call("search_orders", ADA), call("now"), DONE]
    callers = f"00-{uuid.uuid4().hex}-{'cd' * 8}-01"
    ran = await lab.run(turns, max_steps=1, metadata={"team": "a"}, traceparent=callers)
    assert ran.result["status"] == "max_steps"
    new = await resume_to_end(lab, ran.id, max_steps=5)
    assert (new.id, new.result["status"], new.result["steps"]) == (f"{ran.id}-resumed", "completed", 2)
    assert (RAN[ran.id], RAN[new.id]) == (
        [("search_orders", {"customer": "Ada", "limit": 10, "sort": "new"})],
        [("now", {})],
    )
    assert len(new.requests) == 3
    assert [m["role"] for m in new.requests[1].json["messages"]][1:] == ["user", "assistant", "tool"]
    [root], [before] = new.spans_of("invoke_agent shop"), ran.spans_of("invoke_agent shop")
    assert before.trace_id == callers.split("-")[1] != root.trace_id
    assert root.links == [(before.trace_id, before.span_id)]
    assert root.attributes["mulligan.resumed_from.workflow_id"] == ran.id
    assert root.attributes["mulligan.resumed_from.run_id"] == ran.handle.first_execution_run_id
    assert root.attributes["mulligan.metadata.team"] == "a"
    memo = await (await new.handle.describe()).memo()
    assert memo["resumed_from"]["id"] == ran.id
    with pytest.raises(AlreadyResumedError, match=f"continued before, .*: as '{new.id}'") as refused:
        await resume_run(lab.client, ran.id)
    assert refused.value.workflow_id == new.id
    again = await resume_to_end(lab, new.id, "Thanks.", model=f"openai-chat:{ran.id}")
    assert again.id == f"{ran.id}-resumed-2"


@pytest.mark.parametrize("end", ["terminate", "cancel"])
async def test_a_resumed_step_keeps_settled_results_and_runs_no_call_again(lab: Lab, tmp_path: Path, end: str) -> None:
    """Results are in the order of the calls. Calls without a result are reported to the model as lost."""
    cut = Turn(
        calls=[
            ("wait_for_file", "{}", "c1"),
            ("search_orders", ADA, "c2"),
            ("sarch", "{}", "c3"),
            ("wait_for_file", "{}", "c4"),
        ]
    )
    handle = await lab.start([call("now"), cut, DONE], metadata={"file": str(tmp_path / "never")})
    while (
        sum(
            c["result"] is not None
            for s in (await handle.query("steps", args=[0, 9]))["steps"]
            for c in s["tool_calls"]
        )
        < 3
    ):
        await asyncio.sleep(0.05)
    await (handle.terminate() if end == "terminate" else handle.cancel())
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    new = await resume_to_end(lab, handle.id)
    results = tool_results(new)
    assert list(results)[1:] == ["c1", "c2", "c3", "c4"]
    assert "Ada's" in results["c2"]
    assert "There is no tool `sarch`" in results["c3"]
    for lost in ("c1", "c4"):
        assert "was cut off: the run ended before its result was known. It may or may not have done" in results[lost]
    kinds = [
        m["error"] and m["error"]["kind"]
        for m in (await new.handle.query("messages", args=[0, 99]))["messages"]
        if m["role"] == "tool"
    ]
    assert kinds == [None, "tool_lost", None, "unknown_tool", "tool_lost"]
    assert [name for name, _ in RAN[handle.id] + RAN[new.id]] == ["now", "search_orders"]


FAILED_BY_POLICY = {
    "unknown tool": ("strict", Turn(calls=[("now", "{}", "c1"), ("nwo", "{}", "c2")]), "c2", "There is no tool `nwo`"),
    "a tool that raises": ("strict", Turn(calls=[("explode", "{}", "c1")]), "c1", "division by zero"),
    "an output that is not valid": ("strict_output", Turn(calls=[("Refund", '{"order": 7}', "c1")]), "c1", "amount"),
    "two outputs": ("strict_output", Turn(calls=[("Refund", '{"order": 7, "amount": 1}', "c1"), ("Exchange", '{"order": 7, "instead": "x"}', "c2")]), "c2", "one"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILED_BY_POLICY, ids=str)
async def test_a_run_failed_by_policy_resumes_with_the_error_as_the_result_of_its_call(lab: Lab, case: str) -> None:
    """So the model can correct the call that failed the run under `handle_errors=False`."""
    agent, turn, call_id, says = FAILED_BY_POLICY[case]
    right = call("Refund", '{"order": 7, "amount": 1}') if agent == "strict_output" else DONE
    ran = await lab.run([turn, right], agent=agent)
    assert ran.error is not None
    new = await resume_to_end(lab, ran.id)
    assert new.result["status"] == "completed"
    assert says in tool_results(new)[call_id]


async def test_a_run_failed_by_a_missing_output_resumes_with_the_error_as_a_user_message(lab: Lab) -> None:
    """The answer contained no call."""
    ran = await lab.run(
        [Turn(text="You get it back."), call("Refund", '{"order": 7, "amount": 1}')], agent="strict_output"
    )
    assert ran.error is not None
    new = await resume_to_end(lab, ran.id)
    assert new.result["output"] == {"order": 7, "amount": 1.0, "reason": "none given"}
    assert new.requests[-1].json["messages"][-1] == {"role": "user", "content": ran.error.message}


async def test_a_compacted_run_resumes_from_its_summary(lab: Lab) -> None:
    """Not from the log: no page is read twice, and the request is not lost."""
    queue = f"resume-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["tests.support.compaction_agents"]), lab.telemetry, queue):
        at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
        ran = await at.run(reading(12), agent="page_reader", prompt=PROMPT, max_steps=9)
        assert ran.result["status"] == "max_steps"
        assert any(is_summing_up(request.json) for request in ran.requests)
        before = len(ran.requests)
        new = await resume_to_end(at, ran.id, max_steps=50)
    assert new.result["output"] == "heron, after 12"
    assert [number for number, _ in READ[ran.id] + READ[new.id]] == list(range(1, 13))
    asked = [request for request in new.requests[before:] if not is_summing_up(request.json)]
    assert len(json.dumps(asked[0].json["messages"])) <= len(json.dumps(ran.requests[-1].json["messages"])) * 2
    assert "heron" in json.dumps(asked[0].json["messages"])


async def test_a_conversation_of_three_megabytes_is_resumed_compressed(lab: Lab) -> None:
    """Temporal would not accept it uncompressed; the worker fetches it in pages."""
    given = [{"role": "user", "text": prose(600_000, n)} for n in range(3)]
    queue = f"resume-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["tests.support.large_payload_agent"]), lab.telemetry, queue):
        at = Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue)
        ran = await at.run([call("give_prose", '{"size": 1300000}'), DONE], agent="large", messages=given, max_steps=1)
        new = await resume_to_end(at, ran.id)
    assert new.result["status"] == "completed"
    sent = new.requests[-1].json["messages"]
    assert [m["content"] for m in sent if m["role"] in ("user", "tool")][:3] == [m["text"] for m in given]
    assert list(tool_results(new).values()) == [prose(1_300_000)]


async def test_instructions_see_the_whole_of_a_compressed_input(lab: Lab) -> None:
    messages = [{"role": "user", "text": prose(400_000, n)} for n in range(4)]
    packed = zstandard.compress(json.dumps({"agent": "counts", "messages": messages}).encode())
    queue = f"resume-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["tests.support.input_count_agent"]), lab.telemetry, queue):
        lab.model.script("counts", [DONE])
        await lab.client.execute_workflow("AgentWorkflow", packed, id=queue, task_queue=queue)
    [request] = lab.model.requests_of("counts")
    assert request.json["messages"][0]["content"] == "4 messages, 1600000 characters"


BAD = {
    "a bomb": (zstandard.compress(b" " * (MOST_BYTES + 10)), "is more than 64,000,000 bytes"),
    "cut off": (zstandard.compress(noise(9_000).encode())[:2_000], "cannot be decompressed|is cut off"),
    "damaged": (b"(\xb5/\xfd" + b"\xff" * 50, "cannot be decompressed"),
    "not JSON": (zstandard.compress(b"hello"), "The run's input is not JSON"),
    "a run's state": (
        zstandard.compress(b'{"agent": "shop", "conversation": {}}'),
        '"conversation" is not a known field',
    ),
    "no state, no JSON": (b"\x00\x01", "The run's input is not JSON"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
async def test_bytes_that_are_no_valid_input_fail_the_run_with_a_sentence(lab: Lab, case: str) -> None:
    """Compressed or not."""
    data, says = BAD[case]
    with pytest.raises(WorkflowFailureError) as failed:
        await lab.client.execute_workflow("AgentWorkflow", data, id=f"bad-{uuid.uuid4().hex[:8]}", task_queue="agents")
    error = error_of(failed.value)
    assert isinstance(error, InvalidRunInputError)
    assert re.search(says, error.message)


async def test_resuming_a_run_that_cannot_be_resumed_is_refused_with_a_sentence(lab: Lab) -> None:
    """One sentence each."""
    with pytest.raises(RunNotFoundError, match="no run 'nobody'"):
        await resume_run(lab.client, "nobody")
    handle = await lab.start([Turn(text="done", delay=30)])
    with pytest.raises(RunOpenError, match="is open; stop it first"):
        await resume_run(lab.client, handle.id)
    await handle.terminate()
    ran = await lab.run([DONE, Turn(text="again")])
    with pytest.raises(PromptNeededError, match="has completed; give the agent's next task"):
        await resume_run(lab.client, ran.id)
    new = await resume_to_end(lab, ran.id, "Once more.", id=f"{ran.id}-more")
    assert new.result["output"] == "again"
    cut = await lab.run([Turn(text="It is", finish_reason="length"), Turn(text="noon")])
    with pytest.raises(PromptNeededError, match="ended with a message of the model"):
        await resume_run(lab.client, cut.id)
    own = await lab.client.start_workflow("TwoTurns", "x", id=f"own-{uuid.uuid4().hex[:6]}", task_queue="agents")
    await own.terminate()
    with pytest.raises(ResumeError, match="is a workflow of type TwoTurns"):
        await resume_run(lab.client, own.id)
    refused = await lab.client.start_workflow("AgentWorkflow", {"agent": 1}, id=own.id + "b", task_queue="agents")
    with pytest.raises(WorkflowFailureError):
        await refused.result()
    with pytest.raises(ResumeError, match="never began: its input was refused"):
        await resume_run(lab.client, refused.id)


async def test_a_run_that_no_worker_began_resumes_from_its_input(lab: Lab) -> None:
    """There is no state and no worker to query."""
    queue = f"resume-{uuid.uuid4().hex[:6]}"
    lab.model.script(queue, [DONE])
    given = {"agent": "shop", "prompt": "Go on.", "model": f"openai-chat:{queue}"}
    handle = await lab.client.start_workflow("AgentWorkflow", given, id=queue, task_queue=queue)
    await handle.terminate()
    new = await resume_to_end(lab, queue, task_queue="agents")
    assert new.result["status"] == "completed"
    assert new.requests[-1].json["messages"][-1] == {"role": "user", "content": "Go on."}


async def test_resuming_without_a_worker_raises_no_worker_error(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = read_run.ask_once.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", timedelta(seconds=1))
    queue = f"resume-{uuid.uuid4().hex[:6]}"
    async with running_worker(lab.client, load(["tests.support.shop_agents"]), lab.telemetry, queue):
        ran = await Lab(lab.client, lab.model, lab.otlp, lab.telemetry, queue).run([call("now"), DONE], max_steps=1)
    with pytest.raises(NoWorkerError, match=f"no worker of the task queue '{queue}' answers"):
        await resume_run(lab.client, ran.id)


async def test_the_last_run_of_a_chain_resumes_from_the_state_carried_over(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new run cannot have the id of the old one: an id is used once."""
    monkeypatch.setattr(limits, "CONTINUE_AS_NEW_EVENTS", 30)
    ran = await lab.run([*[call("now")] * 9, DONE], max_steps=9, metadata={"team": "a"})
    assert (await size_of_chain(lab.client, ran.id)).runs > 1
    with pytest.raises(WorkflowAlreadyStartedError):
        await resume_run(lab.client, ran.id, id=ran.id, max_steps=3)
    new = await resume_to_end(lab, ran.id, max_steps=3)
    assert (new.result["status"], new.result["steps"]) == ("completed", 1)
    assert len(tool_results(new)) == 9
    assert new.spans_of("invoke_agent shop")[0].attributes["mulligan.metadata.team"] == "a"


async def test_each_run_of_a_cron_reads_its_compressed_input(lab: Lab) -> None:
    """It has a `continued_run_id` like a run that continued as new, but its argument is an input, not a state."""
    run_id = f"cron-{uuid.uuid4().hex[:6]}"
    lab.model.script(run_id, [DONE])
    given = {"agent": "shop", "prompt": "Go.", "model": f"openai-chat:{run_id}"}
    packed = zstandard.compress(json.dumps(given).encode())
    handle = await lab.client.start_workflow(
        "AgentWorkflow", packed, id=run_id, task_queue="agents", cron_schedule="@every 1s"
    )
    while len(lab.model.requests_of(run_id)) < 2:
        await asyncio.sleep(0.05)
    # `mulligan list` reads the results: the first of the runs ended by starting the next one.
    runs: list[dict[str, Any]] = []
    while len(runs) < 2:
        found = lab.client.list_workflows(f'WorkflowId = "{run_id}"')
        runs = [await describe_run(lab.client, execution) async for execution in found]
    assert {run["status"] for run in runs} <= {"completed", "running"}
    await handle.terminate()


@pytest.mark.parametrize("end", ["terminate", "cancel"])
async def test_a_call_nobody_decided_on_is_reported_as_not_run_after_resuming(lab: Lab, end: str) -> None:
    """Messages of people are not lost."""
    turn = Turn(calls=[("refund", '{"order": 7, "amount": {"euros": 2}}', "c1"), ("nap", '{"seconds": 60}', "c2")])
    handle = await lab.start([turn, DONE], agent="desk")
    while not (await handle.query("pending") and ("nap", {"seconds": 60}) in RAN[handle.id]):
        await asyncio.sleep(0.02)
    await handle.execute_update("send_message", {"text": "Hurry."})
    await (handle.terminate() if end == "terminate" else handle.cancel())
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    new = await resume_to_end(lab, handle.id)
    assert tool_results(new)["c1"].startswith("`refund` was not run: nobody had decided on it when the run ended.")
    assert tool_results(new)["c2"].startswith("The call of `nap` was cut off")
    assert new.requests[-1].json["messages"][-1] == {"role": "user", "content": "Hurry."}


async def test_a_stopped_run_is_resumed_with_the_results_it_has(lab: Lab) -> None:
    """Each of its calls has a result already."""
    handle = await lab.start([call("refund", '{"order": 7, "amount": {"euros": 2}}'), DONE], agent="desk")
    while not await handle.query("pending"):
        await asyncio.sleep(0.02)
    await handle.execute_update("stop", {"reason": "lunch"})
    ran = await lab.look(handle)
    assert ran.result["status"] == "stopped"
    new = await resume_to_end(lab, ran.id)
    assert new.result["status"] == "completed"
    assert "stopped" in next(iter(tool_results(new).values()))


async def test_the_example_of_the_resume_page_runs_as_printed(
    lab: Lab, temporal: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resumes a run out of steps, and sends a new prompt to a completed one."""
    for name, value in environment_of(temporal).items():
        monkeypatch.setenv(name, value)
    text = (Path(__file__).parents[2] / "docs/resume.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    page: dict[str, Any] = {}
    exec(compile(block, "docs/resume.md", "exec", dont_inherit=True), page)
    cut = await lab.run([call("now"), DONE], max_steps=1)
    assert await page["go_on"](cut.id) == "done"
    whole = await lab.run([DONE, Turn(text="all is well")])
    assert await page["go_on"](whole.id) == "all is well"
    assert lab.model.requests_of(whole.id)[-1].json["messages"][-1]["content"] == "Check what you did."


async def test_an_encrypted_run_in_external_storage_is_resumed_with_the_workers_settings(
    lab: Lab, temporal: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without these settings the error says which is missing."""
    monkeypatch.setenv("MULLIGAN_ENCRYPTION_KEYS", f"n:{base64.b64encode(b'n' * 32).decode()}")
    monkeypatch.setenv("MULLIGAN_EXTERNAL_STORAGE", tmp_path.as_uri())
    queue = f"resume-{uuid.uuid4().hex[:6]}"
    client = await connect_to(temporal)
    async with running_worker(client, load(["tests.support.large_payload_agent"]), lab.telemetry, queue):
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, queue)
        given = [{"role": "user", "text": noise(900_000, n)} for n in range(3)]
        ran = await at.run([call("take", '{"text": "x"}'), DONE], agent="large", messages=given, max_steps=1)
        new = await resume_to_end(at, ran.id)
        assert new.result["status"] == "completed"
        memo = await (await new.handle.describe()).memo()
        assert memo["resumed_from"]["id"] == ran.id
        monkeypatch.delenv("MULLIGAN_ENCRYPTION_KEYS")
        with pytest.raises(Exception) as raised:
            await resume_run(await connect_to(temporal), ran.id, id="never")
        assert "MULLIGAN_ENCRYPTION_KEYS" in explain_unreadable_data(raised.value)
