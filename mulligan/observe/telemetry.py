"""Writes the spans of a run, by the definitions in `spans.py`.

No span is written in workflow code, where a replay would write it again. Ids are derived from the run and the call: each
span knows its parent's id, and a span that is written again is the same span.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import Span

from mulligan.observe import otlp, semconv, spans
from mulligan.observe.captured_messages import system_instructions, tool_definitions
from mulligan.observe.forwarded_spans import ForwardedSpans
from mulligan.observe.metrics import UNKNOWN_TOOL, Metrics
from mulligan.observe.span_export import ParentSpans, otlp_processor
from mulligan.observe.spans import ChatAttempt, SpanDefinition, SpanFailure, ToolCallAttempt, TracedTurn
from mulligan.observe.tool_call_span import ToolCallSpan, add_content, mark_failed, nanoseconds
from mulligan.observe.trace_ids import DerivedIds, begins_group, context_of, use_ids
from mulligan.schema.error_text import error_text, type_name
from mulligan.values import Decision, ToolCall, Usage
from mulligan.wire.run_context import RunContext
from mulligan.wire.run_end import FinishRun
from mulligan.wire.tool_call import CallRequest

_SHORT = 1e-3
"""Seconds. Jaeger warns of spans whose duration is zero."""


class Telemetry:
    """Writes the spans and the metrics of this process. Without an OTLP endpoint or a `processor` it does nothing.

    Args:
        processors: Further processors of the spans.
        content: Whether spans carry prompts, arguments and results; as the environment says if None.
        exports: Whether spans and metrics are exported by OTLP; as the environment says if None.
        metrics: The metrics; those that the environment asks for if None.
        forwarded: Sends the spans to the supervisor of this process, in place of an export by OTLP.
    """

    def __init__(
        self,
        *processors: SpanProcessor,
        content: bool | None = None,
        exports: bool | None = None,
        metrics: Metrics | None = None,
        forwarded: ForwardedSpans | None = None,
    ) -> None:
        self.content = otlp.captures_content() if content is None else content
        self.metrics = Metrics(exports=exports) if metrics is None else metrics
        self._provider: TracerProvider | None = None
        self._parents: ParentSpans | None = None
        exports = otlp.is_configured() if exports is None else exports
        if exports or processors:
            ids = DerivedIds()
            self._provider = TracerProvider(resource=otlp.resource(), id_generator=ids, shutdown_on_exit=False)
            for processor in processors:
                self._provider.add_span_processor(processor)
            if exports:
                exporting = forwarded or otlp_processor()
                self._parents = exporting
                self._provider.add_span_processor(exporting)
        source = self._provider or trace.NoOpTracerProvider()
        self._tracer = source.get_tracer("mulligan", otlp.own_version())

    async def wait_for_parent_spans(self) -> None:
        """Wait shortly until `invoke_agent` and `agent.steps` are exported, if the collector answers: no child lacks its
        parent.
        """
        if self._parents is not None:
            await self._parents.wait_for_parent_spans()

    def flush(self) -> None:
        """Export now what has ended."""
        self.metrics.flush()
        if self._provider is not None:
            self._provider.force_flush()

    def shutdown(self) -> None:
        """Export what is left, spans first, and stop."""
        if self._provider is not None:
            self._provider.shutdown()
        self.metrics.shutdown()

    def open_run(
        self, run: TracedTurn, *, at: float, instructions: str = "", tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """Write the run's `invoke_agent` span, a millisecond long, and return its traceparent.

        `instructions`, `tools`: what each request of the run has, for a span that may carry content.

        `at`: seconds since the epoch, the same on each attempt. If a worker is killed after the export, the next attempt
        then writes the very same span, and Jaeger shows it once.
        """
        definition = spans.invoke_agent(run)
        span = self._start(definition, at)
        if self.content and instructions:
            add_content(span, semconv.SYSTEM_INSTRUCTIONS, system_instructions(instructions))
        if self.content and tools:
            add_content(span, semconv.TOOL_DEFINITIONS, tool_definitions(tools))
        span.end(nanoseconds(at + _SHORT))
        written = span.get_span_context()
        flags = 1 if written.trace_flags.sampled or not written.is_valid else 0
        return f"00-{definition.trace_id:032x}-{definition.span_id:016x}-{flags:02x}"

    def finish_run(self, finished: FinishRun, workflow_type: str) -> None:
        """Write `agent.finish`: how the run ended."""
        self.metrics.record_run(finished.steps, agent=finished.where.agent, status=finished.status, cost=finished.cost)
        span = self._start(spans.agent_finish(finished.where.trace, finished, workflow_type))
        if finished.error_type:
            mark_failed(span, spans.finish_failure(finished.error_type))
        span.end()

    async def open_group(self, context: RunContext, step: int, at: float) -> None:
        """Write the `agent.steps` span of the hundred steps that begin with `step`, if one does, and wait for its export.

        `at`: as for `open_run`.
        """
        if begins_group(step):
            self._write_short(spans.agent_steps(context.trace, step), at)
            await self.wait_for_parent_spans()

    def record_evaluation(
        self, workflow_id: str, first_run_id: str, trace_id: str, function: str, scores: Mapping[str, float]
    ) -> None:
        """Write `agent.evaluation`: what a score function has said of a run, an event for each name."""
        span = self._start(spans.agent_evaluation(workflow_id, first_run_id, trace_id, function))
        for name, value in scores.items():
            span.add_event(semconv.EVALUATION_RESULT, {semconv.EVALUATION_NAME: name, semconv.EVALUATION_SCORE: value})
        span.end()

    @contextmanager
    def chat(
        self,
        context: RunContext,
        attempt: ChatAttempt,
        *,
        is_void: Callable[[], bool] = lambda: False,
        start: float | None = None,
    ) -> Iterator[Span]:
        """The `chat` span of an attempt that the block makes; an exception of the block is recorded and raised again.

        `is_void`, called at the end: whether another attempt writes the span of this one, which is then not exported.
        `start`: when the attempt began, in seconds since the epoch; now if None.
        """
        span = self._start(spans.chat(context.trace, attempt), start)
        passed = 0.0 if start is None else max(0.0, time.time() - start)
        began, error_kind = time.monotonic() - passed, None
        try:
            with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            error_kind = getattr(error, "kind", type_name(error))
            mark_failed(span, SpanFailure(kind=error_kind, text=error_text(error), exception=error_kind))
            raise
        finally:
            if not is_void():
                span.end()
            seconds = time.monotonic() - began
            self.metrics.record_model_call(
                seconds, provider=attempt.provider or "", model=attempt.model, error=error_kind
            )

    def failed_chat(self, context: RunContext, attempt: ChatAttempt, error: Exception, *, start: float) -> None:
        """Write the span of an attempt that began at `start` and has failed by `error`."""
        with suppress(type(error)), self.chat(context, attempt, start=start):
            raise error

    def lost_chat(self, context: RunContext, attempt: ChatAttempt, *, start: float) -> None:
        """Write the span of an attempt whose worker died, or stopped answering, before it could write it."""
        span = self._start(spans.chat(context.trace, attempt), start)
        text = "Its worker died, or stopped answering."
        mark_failed(span, SpanFailure(kind=semconv.WORKER_LOST, text=text, exception=semconv.WORKER_LOST))
        span.end()

    def add_server(self, span: Span, address: str, port: int) -> None:
        """Add the host and port that the request of a `chat` span is sent to."""
        span.set_attributes({semconv.SERVER_ADDRESS: address, semconv.SERVER_PORT: port})

    def add_response(
        self,
        span: Span,
        *,
        provider: str,
        requested: str,
        response_id: str,
        model: str,
        finish_reason: str,
        usage: Usage,
    ) -> None:
        """Add the provider's response to the `chat` span, and count its tokens. `requested`: the model of the request."""
        self.metrics.count_tokens(usage, provider=provider, model=requested)
        response = spans.chat_response(response_id=response_id, model=model, finish_reason=finish_reason, usage=usage)
        span.set_attributes(response)

    def add_hosted_work(self, span: Span, calls: Sequence[str], reason: str) -> None:
        """Add the calls that the provider carried out to the `chat` span, and why it refused or withheld the answer."""
        span.set_attributes(spans.hosted_work(calls, reason))

    def add_content(self, span: Span, attribute: str, value: Any) -> None:
        """Set an attribute to content, if spans may carry content."""
        if self.content:
            add_content(span, attribute, value)

    def tool_call(
        self,
        context: RunContext,
        attempt: ToolCallAttempt,
        *,
        arguments: Any = None,
        start: float | None = None,
        is_known: bool = True,
    ) -> ToolCallSpan:
        """Start the span of one attempt of a tool call.

        Args:
            context: The run.
            attempt: The attempt.
            arguments: The validated arguments; those that the model wrote if None.
            start: Seconds since the epoch; now if None.
            is_known: Whether there is a tool, or an output, of that name. The metrics have no series of their own for a
                name that the model invented.
        """
        span = self._start(spans.tool_call(context.trace, attempt), start)
        for attribute in (semconv.AI_ARGS, semconv.TOOL_ARGUMENTS):
            self.add_content(span, attribute, attempt.call.arguments if arguments is None else arguments)
        if attempt.decision is not None:
            self._add_reason(span, attempt.decision)
        tool = attempt.call.name if is_known else UNKNOWN_TOOL

        def count(seconds: float, error: str | None, recovered: bool) -> None:
            self.metrics.record_tool_call(seconds, agent=context.agent, tool=tool, error=error, recovered=recovered)

        return ToolCallSpan(span, time.time() if start is None else start, captures_content=self.content, count=count)

    def call_span(
        self, request: CallRequest, *, arguments: Any = None, start: float | None = None, **fields: Any
    ) -> ToolCallSpan:
        """Start the span of an attempt of the call that an activity works for: the first one unless `attempt` says another.

        Args:
            request: The activity's input.
            arguments: As of `tool_call`.
            start: As of `tool_call`.
            fields: Other fields of `ToolCallAttempt`, and those of the input that are to be replaced.
        """
        of_request = {name: getattr(request, name) for name in ("call", "step", "repaired_by", "decision")}
        attempt = ToolCallAttempt(**{"attempt": 1} | of_request | fields)
        return self.tool_call(request.where, attempt, arguments=arguments, start=start)

    def record_request(
        self, context: RunContext, call: ToolCall, *, step: int, kind: str, at: float, question: int = 0
    ) -> None:
        """Write `agent.request`: a call begins to wait for a person. How long it waits is on its `agent.decision`."""
        self._write_short(spans.agent_request(context.trace, call, step=step, kind=kind, question=question), at)

    def record_decision(
        self, context: RunContext, call: ToolCall, *, step: int, decision: Decision, question: int | None = None
    ) -> None:
        """Write `agent.decision`: what a person decided on a call."""
        at = spans.decision_time(decision)
        definition = spans.agent_decision(context.trace, call, step=step, decision=decision, question=question or 0)
        span = self._start(definition, at)
        self._add_reason(span, decision)
        span.end(nanoseconds(at + _SHORT))

    @contextmanager
    def span(self, context: RunContext, name: str, *key: object, **attributes: spans.AttributeValue) -> Iterator[None]:
        """A span below the run's own, for an activity of somebody's own feature. `key` tells it apart from others."""
        span = self._start(spans.of_feature(context.trace, name, key, attributes))
        with trace.use_span(span, end_on_exit=True):
            yield

    @contextmanager
    def undo(self, context: RunContext, call: ToolCall, *, step: int, attempt: int, number: int) -> Iterator[None]:
        """The `agent.undo` span of an attempt that the block makes; an exception of the block is recorded and raised again.

        `number`: of the undo among those of the run.
        """
        span = self._start(spans.agent_undo(context.trace, call, step=step, attempt=attempt, number=number))
        try:
            with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:
            kind = getattr(error, "kind", type_name(error))
            mark_failed(span, SpanFailure(kind=kind, text=spans.cut(error_text(error)), exception=type_name(error)))
            raise
        finally:
            span.end()

    def _add_reason(self, span: Span, decision: Decision) -> None:
        if decision.reason:
            self.add_content(span, semconv.DECISION_REASON, decision.reason)

    def _write_short(self, definition: SpanDefinition, at: float) -> Span:
        span = self._start(definition, at)
        span.end(nanoseconds(at + _SHORT))
        return span

    def _start(self, definition: SpanDefinition, start: float | None = None) -> Span:
        context = context_of(definition.parent)
        if self._provider is None:
            return trace.get_current_span(context)  # spans of users' own providers join the run's trace
        with use_ids(definition.span_id, definition.trace_id):
            return self._tracer.start_span(
                definition.name,
                context,
                definition.kind,
                attributes=definition.attributes,
                links=definition.links,
                start_time=None if start is None else nanoseconds(start),
            )
