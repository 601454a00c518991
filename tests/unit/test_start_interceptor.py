"""What a client adds to the runs that it starts: the caller's trace and a summary, and references in place of bytes."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from temporalio.client import OutboundInterceptor, StartWorkflowInput

from mulligan.client.start_interceptor import StartInterceptor
from mulligan.run_input import RunInput
from mulligan.wire.run_context import AGENT_WORKFLOW, TRACE_HEADER
from tests.support.content_files import png


class Next(OutboundInterceptor):
    """What comes after it: the request to Temporal."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def start_workflow(self, input: StartWorkflowInput) -> Any:  # noqa: A002 - Temporal's name
        self.sent.append(input)
        return "the handle"


@pytest.fixture
def span() -> Iterator[str]:
    context = SpanContext(0xA0, 0xB0, is_remote=False, trace_flags=TraceFlags(1))
    with trace.use_span(NonRecordingSpan(context)):
        yield f"00-{0xA0:032x}-{0xB0:016x}-01"


async def started(*args: Any, workflow: str = AGENT_WORKFLOW, headers: Any = None, summary: str | None = None) -> Any:
    following = Next()
    begun = StartWorkflowInput.__new__(StartWorkflowInput)
    begun.workflow, begun.args, begun.headers, begun.static_summary = workflow, args, headers or {}, summary
    outbound: Any = StartInterceptor().intercept_client(cast(Any, following))
    assert await outbound.start_workflow(begun) == "the handle"
    [sent] = following.sent
    return sent


async def test_the_callers_trace_is_passed_on_unless_a_header_has_one(span: str) -> None:
    sent = await started(RunInput(agent="a", prompt="Go."), headers={"other": 1})
    assert sent.headers["other"] == 1
    assert span.encode() in sent.headers[TRACE_HEADER].data
    kept = await started(RunInput(agent="a", prompt="Go."), headers={TRACE_HEADER: "own"})
    assert kept.headers == {TRACE_HEADER: "own"}


async def test_without_a_trace_nothing_is_passed_on() -> None:
    assert (await started(RunInput(agent="a", prompt="Go."))).headers == {}


@pytest.mark.parametrize(
    ("given", "summary"),
    [
        (RunInput(agent="a", prompt="Go."), "a: Go."),
        ({"agent": "a", "prompt": "Go."}, "a: Go."),
        ({"agent": "a", "messages": [{"text": "Before."}, {"text": "Last."}]}, "a: Last."),
        ({"agent": "a", "messages": [1]}, "a"),
        ({"agent": "a", "prompt": 1}, "a"),
        ({"agent": 1}, None),
        ({"agent": ""}, None),
        ("text", None),
    ],
)
async def test_a_run_is_summarized_by_its_agent_and_task(given: Any, summary: str | None) -> None:
    """The workflow reports what is invalid."""
    sent = await started(given)
    assert sent.static_summary == summary
    assert (await started(given, summary="Own.")).static_summary == "Own."


async def test_other_workflows_are_left_alone() -> None:
    sent = await started({"agent": "a", "prompt": "Go."}, workflow="Orders")
    assert (sent.static_summary, sent.args) == (None, ({"agent": "a", "prompt": "Go."},))
    several = await started({"agent": "a"}, 2)
    assert (several.static_summary, several.args) == (None, ({"agent": "a"}, 2))


async def test_bytes_of_a_prompt_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a mapping, too. One that is no input stays as it is."""
    monkeypatch.setenv("MULLIGAN_CONTENT_DIR", str(tmp_path))
    image = {"type": "image", "media_type": "image/png", "data": base64.b64encode(png(5_000)).decode()}
    [run_input] = (await started({"agent": "a", "prompt": [image]})).args
    assert run_input.prompt[0].ref.startswith("sha256:")
    [in_message] = (await started({"agent": "a", "messages": [{"role": "user", "text": "", "content": [image]}]})).args
    assert in_message.messages[0].content[0].ref.startswith("sha256:")
    invalid = {"agent": "a", "prompt": [image], "unknown": 1}
    assert (await started(invalid)).args == [invalid]
