"""Traces over OTLP: set-up, every span, and the one place with the names of spans and attributes.

No span is made in workflow code (a replay would make it again). Ids are derived from the run and the call, so a retried
activity exports the same span, not a second one. Names follow OpenTelemetry's GenAI conventions (1.41).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import version
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from mulligan import otlp
from mulligan.handoff import FinishRun, Where
from mulligan.metrics import UNKNOWN_TOOL, Metrics
from mulligan.values import ToolCall, Usage

INVOKE_AGENT, AGENT_FINISH, TOOL_CALL = "invoke_agent", "agent.finish", "ai.toolCall"
OPERATION, PROVIDER, ERROR_TYPE = "gen_ai.operation.name", "gen_ai.provider.name", "error.type"
STEP, ATTEMPT, RECOVERED, REPAIRS = "mulligan.step", "mulligan.attempt", "mulligan.recovered", "mulligan.repairs"
MENDS = "mulligan.mends"
LONGEST_TEXT = 4_096
"""Characters of an error's text, or of content, on a span: backends drop or cut what is longer."""

_PROPAGATOR = TraceContextTextMapPropagator()
_span_id: ContextVar[int | None] = ContextVar("span_id", default=None)
_trace_id: ContextVar[int | None] = ContextVar("trace_id", default=None)


class _DerivedIds(RandomIdGenerator):
    """Ids that the caller has chosen; random ones for spans of users' own code."""

    def generate_span_id(self) -> int:
        return _span_id.get() or super().generate_span_id()

    def generate_trace_id(self) -> int:
        return _trace_id.get() or super().generate_trace_id()


def derive(bits: int, *parts: object) -> int:
    """An id that is the same whenever the same thing is recorded again. Never 0, which OpenTelemetry calls invalid."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode(errors="replace")).digest()
    return int.from_bytes(digest[: bits // 8], "big") or 1


class Telemetry:
    """The spans of this process, and its metrics. Without an OTLP endpoint (or a processor of one's own) it does nothing."""

    def __init__(
        self,
        *processors: SpanProcessor,
        content: bool | None = None,
        exports: bool | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.content = otlp.captures_content() if content is None else content
        self.metrics = Metrics(exports=exports) if metrics is None else metrics
        self._provider: TracerProvider | None = None
        exports = otlp.is_configured() if exports is None else exports
        if exports or processors:
            ids = _DerivedIds()
            self._provider = TracerProvider(resource=otlp.resource(), id_generator=ids, shutdown_on_exit=False)
            for processor in processors:
                self._provider.add_span_processor(processor)
            if exports:
                self._provider.add_span_processor(BatchSpanProcessor(otlp.span_exporter(), schedule_delay_millis=1_000))
        source = self._provider or trace.NoOpTracerProvider()
        self._tracer = source.get_tracer("mulligan", version("mulligan"))

    def flush(self) -> None:
        """Export what is finished, now."""
        self.metrics.flush()
        if self._provider is not None:
            self._provider.force_flush()

    def shutdown(self) -> None:
        """Export what is left, spans first, and stop."""
        if self._provider is not None:
            self._provider.shutdown()
        self.metrics.shutdown()

    def open_run(
        self, *, workflow_id: str, run_id: str, first_run_id: str, conversation: str, turn: int, agent: str,
        parent: str | None, metadata: Mapping[str, str],
    ) -> str:  # fmt: skip
        """Export the run's `invoke_agent` span, at once and short; returns the traceparent that all others hang on."""
        context = _context(parent)
        outer = trace.get_current_span(context).get_span_context()
        trace_id = outer.trace_id if outer.is_valid else derive(128, "trace", workflow_id, first_run_id)
        span_id = derive(64, "run", workflow_id, first_run_id, conversation, turn)
        with _chosen(span_id, trace_id):
            span = self._tracer.start_span(f"{INVOKE_AGENT} {agent}", context, SpanKind.INTERNAL)
        span.set_attributes(
            {
                OPERATION: INVOKE_AGENT,
                "gen_ai.agent.name": agent,
                "gen_ai.conversation.id": workflow_id,
                "temporal.workflow_id": workflow_id,
                "temporal.run_id": run_id,
                **{f"mulligan.metadata.{key}": value for key, value in metadata.items()},
            }
        )
        span.end()
        flags = 1 if span.get_span_context().trace_flags.sampled or not span.get_span_context().is_valid else 0
        return f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"

    def finish_run(self, finished: FinishRun) -> None:
        """Export `agent.finish`: what the run came to."""
        self.metrics.run(finished.steps, agent=finished.where.agent, status=finished.status)
        span = self._start(AGENT_FINISH, finished.where, SpanKind.INTERNAL, "finish", finished.turn)
        span.set_attributes(
            {
                "mulligan.status": finished.status,
                "mulligan.steps": finished.steps,
                "mulligan.recovered_failures": finished.recovered_failures,
                **_usage(finished.usage),
            }
        )
        if finished.error_type:
            span.set_attribute(ERROR_TYPE, finished.error_type)
            span.set_status(Status(StatusCode.ERROR, finished.error_type))
        span.end()

    @contextmanager
    def chat(
        self, where: Where, *, provider: str, model: str, step: int, attempt: int, mends: str = ""
    ) -> Iterator[Span]:
        """The span of one attempt of a model call; `mends`: the call it mends. What it raises is recorded and goes on."""
        span = self._start(f"chat {model}", where, SpanKind.CLIENT, "chat", step, attempt, *filter(None, [mends]))
        span.set_attributes(
            {OPERATION: "chat", PROVIDER: provider, "gen_ai.request.model": model, STEP: step, ATTEMPT: attempt}
        )
        if mends:
            span.set_attribute(MENDS, mends)
        began, failed = time.monotonic(), None
        try:
            with trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
                yield span
        except BaseException as error:
            failed = type(error).__name__
            _fail(span, failed, str(error), failed)
            raise
        finally:
            span.end()
            self.metrics.model_call(time.monotonic() - began, provider=provider, model=model, error=failed)

    def answered(
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
        """Put what the provider said about its answer on the `chat` span, and count its tokens."""
        self.metrics.tokens(usage, provider=provider, model=requested)
        span.set_attributes(
            {
                "gen_ai.response.finish_reasons": [finish_reason],
                **({"gen_ai.response.id": response_id} if response_id else {}),
                **({"gen_ai.response.model": model} if model else {}),
                **_usage(usage),
            }
        )

    def put_content(self, span: Span, name: str, value: Any) -> None:
        """Put content on a span, if that was asked for."""
        if self.content and span.is_recording():
            span.set_attribute(name, _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))

    def tool_call(
        self, where: Where, call: ToolCall, *, step: int, attempt: int,
        repaired_by: Sequence[str] = (), arguments: Any = None, start: float | None = None, is_known: bool = True,
    ) -> ToolCallSpan:  # fmt: skip
        """Start the span of one attempt of a tool call. `start`: seconds since the epoch, now where None.

        `is_known`: whether there is a tool, or an output, of that name; a name that a model made up is not counted by.
        """
        span = self._start(TOOL_CALL, where, SpanKind.INTERNAL, "tool", call.id, step, attempt, start=start)
        span.set_attributes(
            {
                "ai.toolCall.name": _cut(call.name),
                "ai.toolCall.id": call.id,
                OPERATION: "execute_tool",
                "gen_ai.tool.name": _cut(call.name),
                "gen_ai.tool.call.id": call.id,
                "gen_ai.tool.type": "function",
                STEP: step,
                ATTEMPT: attempt,
                RECOVERED: False,
                REPAIRS: list(repaired_by),
            }
        )
        for name in ("ai.toolCall.args", "gen_ai.tool.call.arguments"):
            self.put_content(span, name, call.arguments if arguments is None else arguments)
        counted_as = call.name if is_known else UNKNOWN_TOOL
        return ToolCallSpan(self, span, where.agent, counted_as, time.time() if start is None else start)

    def _start(self, name: str, where: Where, kind: SpanKind, *key: object, start: float | None = None) -> Span:
        with _chosen(derive(64, where.trace, *key)):
            return self._tracer.start_span(
                name, _context(where.trace), kind, start_time=None if start is None else int(start * 1e9)
            )


class ToolCallSpan:
    """One attempt of a tool call, open until it is told how it went. One that is never told is never exported."""

    def __init__(self, telemetry: Telemetry, span: Span, agent: str, tool: str, start: float) -> None:
        self._telemetry = telemetry
        self.span = span
        self._agent, self._tool, self._start = agent, tool, start

    def succeed(self, text: str) -> None:
        """The tool gave a result. The status stays unset, as OpenTelemetry asks of success."""
        for name in ("ai.toolCall.result", "gen_ai.tool.call.result"):
            self._telemetry.put_content(self.span, name, text)
        self._end(None, recovered=False)

    def fail(self, kind: str, *, text: str, safe_text: str, exception: str, recovered: bool) -> None:
        """It went wrong. `text` is what the model was told; `safe_text` the part of it that quotes no input."""
        shown = text if self._telemetry.content else safe_text
        self.span.set_attributes({RECOVERED: recovered, "ai.toolCall.error": _cut(shown)})
        _fail(self.span, kind, _cut(shown), exception)
        self._end(kind, recovered=recovered)

    def _end(self, error: str | None, *, recovered: bool) -> None:
        self.span.end()
        took = time.time() - self._start
        self._telemetry.metrics.tool_call(took, agent=self._agent, tool=self._tool, error=error, recovered=recovered)

    def fail_attempt(self, kind: str, text: str, exception: str) -> None:
        """This attempt went wrong, and the model is not told: another attempt follows, or the run ends."""
        self.fail(kind, text=text, safe_text=text, exception=exception, recovered=False)


def _fail(span: Span, kind: str, text: str, exception: str) -> None:
    span.set_attribute(ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR, text))
    # Not record_exception: it writes a stack trace, whose lines may quote values that are nobody's business.
    span.add_event("exception", {"exception.type": exception, "exception.message": text})


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }


def _cut(text: str) -> str:
    return (
        text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + f"… ({len(text) - LONGEST_TEXT} more characters)"
    )


def _context(traceparent: str | None) -> Context:
    return _PROPAGATOR.extract({"traceparent": traceparent} if traceparent else {}, context=Context())


@contextmanager
def _chosen(span_id: int, trace_id: int | None = None) -> Iterator[None]:
    span_token, trace_token = _span_id.set(span_id), _trace_id.set(trace_id)
    try:
        yield
    finally:
        _span_id.reset(span_token)
        _trace_id.reset(trace_token)
