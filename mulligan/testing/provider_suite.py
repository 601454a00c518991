"""Tests that every provider must pass: its author subclasses `ProviderSuite` and describes a test endpoint.

class TestAcme(ProviderSuite):
    def open_endpoint(self):
        return acme_endpoint()  # an async context manager that yields a FakeEndpoint
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import pytest

from mulligan.activities.models.protocol import (
    AnswersInBackground,
    AnswersInBatches,
    Provider,
    Reply,
    Request,
    Unavailable,
)
from mulligan.errors import ModelRequestError
from mulligan.values import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from mulligan.wire.agent_facts import Definition, ToolDefinition

SECONDS = 30.0
"""For one check. A provider that hangs fails its test."""
MOST_TOKENS = 10**12
UNKNOWN_CALLS = (
    ToolCall(id="call_1", name="no_such_tool", arguments='{"q": "x"}'),
    ToolCall(id="call_2", name="search", arguments='{"q": "unfinished'),
)
"""A tool that does not exist, and arguments that are not JSON: the run corrects both, if it gets them unchanged."""
CONVERSATION: tuple[Message, ...] = (
    UserMessage(role="user", text='Größe? ☃ \u2028 "quoted" \\ {}'),
    AssistantMessage(role="assistant", text="Wait.", tool_calls=list(UNKNOWN_CALLS)),
    ToolMessage(role="tool", call_id="call_1", name="no_such_tool", text="There is no such tool."),
    ToolMessage(role="tool", call_id="call_2", name="search", text="The arguments are not JSON."),
    AssistantMessage(
        role="assistant",
        text="",
        tool_calls=[ToolCall(id="odd id/ü" * 7, name="odd name!", arguments="")],
        provider_data={"another-provider": {"secret": "of another provider"}},
    ),
    ToolMessage(role="tool", call_id="odd id/ü" * 7, name="odd name!", text=""),
    AssistantMessage(role="assistant", text="Done."),
    UserMessage(role="user", text="Again."),
)
"""What occurs in runs: parallel calls, recovered failures, ids and data of another provider, an empty result."""


@dataclass(frozen=True, kw_only=True)
class FakeAnswer:
    """What the endpoint sends for the next request.

    Args:
        text: The answer's text. If the request asks for streaming, in several pieces.
        calls: Its tool calls, to be sent exactly as they are.
        input_tokens: The usage, which may be impossible (negative, or very large): then it is sent as it is.
        output_tokens: As input_tokens.
        is_cut_off: Whether the answer ends because of the token limit.
    """

    text: str = ""
    calls: Sequence[ToolCall] = ()
    input_tokens: int = 7
    output_tokens: int = 3
    is_cut_off: bool = False


class FakeEndpoint(Protocol):
    """An endpoint that the author of a provider controls, and the provider that is its client.

    Attributes:
        provider: The provider; its requests go to this endpoint.
        model: The model to ask for.
    """

    provider: Provider
    model: str

    def answer(self, answer: FakeAnswer) -> None:
        """Answer all further requests like this.

        Args:
            answer: What to send.
        """
        ...

    def fail(self, status: int, retry_after: float | None = None) -> None:
        """Answer all further requests with an error in the provider's form.

        Args:
            status: The HTTP status.
            retry_after: Seconds, for the header Retry-After; None: without it.
        """
        ...

    def hang(self) -> None:
        """Do not answer any further request."""
        ...

    def send_garbage(self) -> None:
        """Answer all further requests with status 200 and a body that is none of the provider's answers."""
        ...


class ProviderSuite:
    """The tests. They need no plugin of pytest; each opens an endpoint of its own.

    Attributes:
        has_http: Whether the provider sends requests. If False, the tests of failures, usage and cancellation are skipped.
    """

    has_http: bool = True

    def open_endpoint(self) -> AbstractAsyncContextManager[FakeEndpoint]:
        """Open an endpoint: a new one at each call. Implement it."""
        raise NotImplementedError("ProviderSuite.open_endpoint: return an async context manager of a FakeEndpoint.")

    def test_encoding_is_pure_and_leaves_the_beginning_unchanged(self) -> None:
        """A message is encoded to equal items each time, whatever was encoded or asked before, and is not changed."""

        async def check(endpoint: FakeEndpoint) -> None:
            encode = endpoint.provider.encode
            first = [encode(message) for message in CONVERSATION]
            unchanged = copy.deepcopy(first)
            endpoint.answer(FakeAnswer(text="ok"))
            await _ask(endpoint, CONVERSATION)
            again = [encode(message.model_copy(deep=True)) for message in reversed(CONVERSATION)][::-1]
            assert first == unchanged, "complete or encode changed items that were encoded before"
            assert again == unchanged, "encode is not a function of the message alone"
            assert "of another provider" not in repr(first), "encode sends the provider_data of another provider"
            for message in CONVERSATION:
                before = message.model_dump_json()
                encode(message)
                assert message.model_dump_json() == before, "encode changed its message"

        self._run(check)

    def test_a_text_is_answered_with_its_usage(self) -> None:
        """The text is unchanged, and the answer ended by itself."""

        async def check(endpoint: FakeEndpoint) -> None:
            endpoint.answer(FakeAnswer(text="Grüße, ☃."))
            reply = await _ask(endpoint)
            assert (reply.text, list(reply.calls), reply.finish_reason) == ("Grüße, ☃.", [], "stop")
            if self.has_http:
                assert (reply.usage.input_tokens, reply.usage.output_tokens) == (7, 3)

        self._run(check)

    def test_calls_are_what_the_model_wrote(self) -> None:
        """Names of unknown tools, invalid arguments and ids are not corrected, dropped or refused."""

        async def check(endpoint: FakeEndpoint) -> None:
            endpoint.answer(FakeAnswer(calls=UNKNOWN_CALLS))
            pieces: list[str] = []
            for on_text in (None, pieces.append):
                reply = await _ask(endpoint, on_text=on_text)
                assert list(reply.calls) == list(UNKNOWN_CALLS)
                assert reply.finish_reason == "tool_calls"

        self._run(check)

    def test_streamed_pieces_are_the_text_of_the_reply(self) -> None:
        """`on_text` gets the text in pieces, in their order, on the event loop's thread."""

        async def check(endpoint: FakeEndpoint) -> None:
            endpoint.answer(FakeAnswer(text="one two three ☃"))
            pieces: list[str] = []
            threads = set()

            def on_text(piece: str) -> None:
                pieces.append(piece)
                threads.add(threading.get_ident())

            reply = await _ask(endpoint, on_text=on_text)
            assert reply.text == "one two three ☃"
            assert "".join(pieces) in ("", reply.text)  # a provider that cannot stream sends no piece
            assert threads <= {threading.get_ident()}

        self._run(check)

    def test_an_answer_that_is_cut_off_says_so(self) -> None:
        """The finish reason is `length`: the run tells the model to continue with less."""
        self._needs_http()

        async def check(endpoint: FakeEndpoint) -> None:
            endpoint.answer(FakeAnswer(text="unfinish", is_cut_off=True))
            assert (await _ask(endpoint)).finish_reason == "length"

        self._run(check)

    @pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
    def test_a_refused_request_is_not_retried(self, status: int) -> None:
        """ModelRequestError: the next model of the list is called at once, and otherwise the run fails."""
        self._needs_http()

        async def check(endpoint: FakeEndpoint) -> None:
            endpoint.fail(status)
            with pytest.raises(ModelRequestError):
                await _ask(endpoint)

        self._run(check)

    @pytest.mark.parametrize("status", [408, 429, 500, 503])
    def test_an_endpoint_that_is_down_or_limits_us_is_unavailable(self, status: int) -> None:
        """Unavailable, with the status and the time that the endpoint asks to wait; the provider does not wait itself."""
        self._needs_http()

        async def check(endpoint: FakeEndpoint) -> None:
            endpoint.fail(status, retry_after=90.0)
            with pytest.raises(Unavailable) as raised:
                await _ask(endpoint)
            assert (raised.value.status, raised.value.retry_after) == (status, 90.0)

        self._run(check)

    def test_an_answer_that_cannot_be_read_is_unavailable(self) -> None:
        """Check that such an answer is retried: gateways send pages of HTML while they start."""
        self._needs_http()

        async def check(endpoint: FakeEndpoint) -> None:
            endpoint.send_garbage()
            with pytest.raises(Unavailable):
                await _ask(endpoint)

        self._run(check)

    @pytest.mark.parametrize("tokens", [-5, 10**30])
    def test_an_impossible_usage_is_bounded(self, tokens: int) -> None:
        """Tokens are added up and multiplied with prices: none may be negative, or above 10^12."""
        self._needs_http()

        async def check(endpoint: FakeEndpoint) -> None:
            endpoint.answer(FakeAnswer(text="ok", input_tokens=tokens, output_tokens=tokens))
            counts = (await _ask(endpoint)).usage.model_dump().values()
            assert all(0 <= count <= MOST_TOKENS for count in counts if isinstance(count, int))

        self._run(check)

    def test_a_request_can_be_cancelled_and_the_provider_used_afterwards(self) -> None:
        """A run that is stopped cancels its request; others share the provider."""
        self._needs_http()

        async def check(endpoint: FakeEndpoint) -> None:
            endpoint.hang()
            task = asyncio.create_task(_ask(endpoint))
            await asyncio.sleep(0.2)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=5)
            assert done, "complete goes on after it was cancelled"
            assert task.cancelled(), "complete swallowed its cancellation"
            endpoint.answer(FakeAnswer(text="ok"))
            assert (await _ask(endpoint)).text == "ok"

        self._run(check)

    def test_requests_of_many_runs_may_be_open_at_once(self) -> None:
        """A worker has one provider for all of its runs."""

        async def check(endpoint: FakeEndpoint) -> None:
            endpoint.answer(FakeAnswer(text="ok"))
            assert [reply.text for reply in await asyncio.gather(*(_ask(endpoint) for _ in range(8)))] == ["ok"] * 8

        self._run(check)

    def test_a_part_that_it_has_is_whole(self) -> None:
        """`background` and `batch` are None, or have all that the run uses."""

        async def check(endpoint: FakeEndpoint) -> None:
            for name, protocol in (("background", AnswersInBackground), ("batch", AnswersInBatches)):
                part = getattr(endpoint.provider, name, None)
                needed = [] if part is None else [each for each in dir(protocol) if not each.startswith("_")]
                missing = [each for each in needed if not hasattr(part, each)]
                assert not missing, f"{name}: {', '.join(missing)} missing"

        self._run(check)

    def test_it_can_be_closed_before_its_first_request_and_twice(self) -> None:
        """A worker closes each provider once it stops, whatever happened before."""

        async def check(endpoint: FakeEndpoint) -> None:
            await endpoint.provider.close()
            await endpoint.provider.close()

        self._run(check)

    def _needs_http(self) -> None:
        if not self.has_http:
            pytest.skip("This provider sends no requests.")

    def _run(self, check: Callable[[FakeEndpoint], Awaitable[None]]) -> None:
        async def run() -> None:
            async with asyncio.timeout(SECONDS), self.open_endpoint() as endpoint:
                try:
                    await check(endpoint)
                finally:
                    await endpoint.provider.close()

        asyncio.run(run())


async def _ask(
    endpoint: FakeEndpoint,
    messages: Sequence[Message] = (UserMessage(role="user", text="Go."),),
    on_text: Callable[[str], None] | None = None,
) -> Reply:
    """Send one request as a run does."""
    provider = endpoint.provider
    search = ToolDefinition(
        name="search", description="Search.", parameters={"type": "object", "properties": {"q": {"type": "string"}}}
    )
    return await provider.complete(
        Request(
            model=endpoint.model,
            definition=Definition(instructions="Be kind.", tools=[search]),
            items=[item for message in messages for item in provider.encode(message)],
            messages=messages,
            timeout=SECONDS,
            on_text=on_text,
        )
    )
