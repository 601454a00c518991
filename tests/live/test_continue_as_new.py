"""Continue-as-new at a step boundary: the chain is one run to its user."""

from __future__ import annotations

import uuid

from temporalio.client import Client

from mulligan import connect
from mulligan.devserver import temporal_server
from mulligan.loading import load
from tests.live.conftest import DONE, Lab, call
from worker import running_worker

SOON = ["limit.historyCount.suggestContinueAsNew=60"]


async def test_a_chain_is_one_run(lab: Lab) -> None:
    """Steps, messages, usage, budget and trace go on; the model hears one conversation; no span is made twice."""
    steps = 25
    async with temporal_server(dynamic_config=SOON) as server:
        client: Client = await connect(server.address)
        at = Lab(client, lab.model, lab.otlp, lab.telemetry, f"chain-{uuid.uuid4().hex[:6]}")
        async with running_worker(client, load(["tests.support.shop"]), lab.telemetry, at.task_queue):
            turns = [call("clik") if n == 3 else call("search_orders", '{"customer": "Ada"}') for n in range(steps)]
            ran = await at.run([*turns, DONE], max_steps=100)
            first = client.get_workflow_handle(ran.id, run_id=ran.handle.first_execution_run_id)
            assert (await first.describe()).status.name == "CONTINUED_AS_NEW"  # type: ignore[union-attr]
            messages = await ran.handle.query("messages", args=[0, 1000])
    assert ran.result["status"] == "completed"
    assert (ran.result["steps"], ran.result["tool_calls"], ran.result["recovered_failures"]) == (steps + 1, steps, 1)
    assert len(ran.steps) == steps + 1
    assert messages["total"] == 2 * steps + 2
    assert ran.result["usage"]["input_tokens"] == 10 * (steps + 1)
    assert len(ran.requests) == steps + 1
    assert len(ran.requests[-1].json["messages"]) == 2 + 2 * steps
    assert len({span.span_id for span in ran.spans}) == len(ran.spans)
    names = [len(ran.spans_of(name)) for name in ("invoke_agent shop", "agent.finish", "ai.toolCall")]
    assert names == [1, 1, steps]
    assert len(ran.spans) == 2 * steps + 3
