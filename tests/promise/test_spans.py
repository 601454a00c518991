"""The trace of a run: complete, connected, and without content unless that is enabled."""

from __future__ import annotations

import logging
import uuid

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.lab import DONE, Lab, call
from tests.support.openai_turn import Turn

SECRET = "sesame-4711"


async def test_all_spans_of_a_run_are_in_one_trace_below_one_root(lab: Lab) -> None:
    """With the names that Jaeger's GenAI view expects."""
    ran = await lab.run([call("clik"), call("click", '{"element": "#a"}'), DONE])
    [root] = ran.spans_of("invoke_agent shop")
    assert not root.parent_span_id
    assert root.status == "UNSET"
    assert root.attributes["gen_ai.conversation.id"] == ran.id
    assert root.resource["service.name"] == "mulligan-worker"
    assert {span.parent_span_id for span in ran.spans if span is not root} == {root.span_id}
    assert {span.trace_id for span in ran.spans} == {ran.result["trace_id"]}
    [finish] = ran.spans_of("agent.finish")
    assert finish.attributes["mulligan.status"] == "completed"
    assert finish.attributes["mulligan.recovered_failures"] == 1
    assert finish.attributes["mulligan.usage.input_tokens"] == ran.result["usage"]["input_tokens"]
    chat = next(span for span in ran.spans if span.name == f"chat {ran.id}")
    assert chat.attributes["gen_ai.provider.name"] == "openai"
    assert list(chat.attributes["gen_ai.response.finish_reasons"]) == ["tool_calls"]
    repaired = next(span for span in ran.spans_of("ai.toolCall") if span.status == "UNSET")
    assert list(repaired.attributes["mulligan.repairs"]) == ["fix"]
    assert repaired.attributes["gen_ai.tool.call.id"] == repaired.attributes["ai.toolCall.id"]


async def test_a_run_continues_the_trace_of_its_caller(lab: Lab) -> None:
    """By the `traceparent` of the input, or by the header of a client that has an open span."""
    parent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    ran = await lab.run([DONE], traceparent=parent)
    assert ran.result["trace_id"] == "ab" * 16
    assert ran.spans_of("invoke_agent shop")[0].parent_span_id == "cd" * 8
    with TracerProvider().get_tracer("test").start_as_current_span("caller") as span:
        handle = await lab.start([DONE])
    ran = await lab.look(handle)
    assert ran.result["trace_id"] == trace.format_trace_id(span.get_span_context().trace_id)


async def test_content_is_in_no_span_log_or_metric_unless_enabled(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """A secret in the prompt, the arguments and the results is searched for."""
    caplog.set_level(logging.INFO)
    script = [
        call("click", f'{{"selector": "{SECRET}"}}'),
        call("click", f'{{"selektor": "{SECRET}"}}'),
        call("click", f'{{"selector": {{"deep": "{SECRET}"}}}}'),
        call("click", f'{{"selector": "{SECRET}'),
        Turn(text=SECRET),
    ]
    ran = await lab.run(script, prompt=SECRET)
    assert ran.result["recovered_failures"] == 3
    output = f'{{"order": "{SECRET}", "amount": 1}}'
    wrong = [
        call("Refund", output),
        call("Refund", output),
        Turn(text=SECRET),
        call("Refund", '{"order": 7, "amount": 1}'),
    ]
    structured = await lab.run(wrong, agent="refund", prompt=SECRET)
    assert structured.result["recovered_failures"] == 3
    assert SECRET not in repr(ran.spans + structured.spans)
    assert SECRET not in repr(lab.otlp.metrics())
    assert SECRET not in caplog.text
    queue = f"open-{uuid.uuid4().hex[:6]}"
    telemetry = Telemetry(content=True)
    async with running_worker(lab.client, load(["tests.support.shop_agents"]), telemetry, queue):
        shown = await Lab(lab.client, lab.model, lab.otlp, telemetry, queue).run(script, prompt=SECRET)
    telemetry.shutdown()
    good = next(span for span in shown.spans_of("ai.toolCall") if span.status == "UNSET")
    assert SECRET in good.attributes["ai.toolCall.args"]
    assert SECRET in good.attributes["gen_ai.tool.call.result"]
    assert any(SECRET in span.attributes.get("gen_ai.input.messages", "") for span in shown.spans)
