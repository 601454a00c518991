"""Questions of MCP servers in the middle of a call (the protocol's "elicitation"), as `Question`, and their answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mulligan.mcp import McpError
from mulligan.schema.cut_text import beginning
from mulligan.schema.schema_cost import check_size
from mulligan.wire.questions import Question, QuestionReply, Questions, Replies

if TYPE_CHECKING:
    from mcp.shared.exceptions import MCPError
    from mcp.types import ElicitRequestParams, ElicitResult, ErrorData, InputRequiredResult

MAX_TEXT_CHARS, MAX_URL_CHARS = 4_000, 4_000
MAX_SCHEMA_BYTES = 20_000
MAX_QUESTIONS = 10
"""Questions that a server may ask at once."""
MAX_ROUNDS = 10
"""How often a call may be continued with answers. A server that asks more would never end."""
MAX_STATE_BYTES = 200_000
"""Bytes of the state that a server wants back. It is twice in history for each round."""
Ask = Callable[[Question], Awaitable[QuestionReply]]


@dataclass(eq=False)
class CallInProgress:
    """A call that is being executed. `ask`: asks a person for it; None where nobody can be asked."""

    ask: Ask | None
    clock: asyncio.Timeout
    has_asked: bool = False

    async def ask_person(self, question: Question) -> QuestionReply:
        """Ask a person. The call's timeout measures the server, so its clock stops meanwhile."""
        assert self.ask is not None
        self.has_asked = True
        loop = asyncio.get_running_loop()
        deadline = self.clock.when()
        left = None if deadline is None else deadline - loop.time()
        self.clock.reschedule(None)
        try:
            return await self.ask(question)
        finally:
            if left is not None and not self.clock.expired():
                self.clock.reschedule(loop.time() + left)


_CALL: ContextVar[CallInProgress | None] = ContextVar("mcp_call", default=None)


class CallsInProgress:
    """The calls in progress of one session, and which of them asks."""

    def __init__(self) -> None:
        self._calls: set[CallInProgress] = set()

    @contextmanager
    def add(self, call: CallInProgress) -> Iterator[None]:
        """The call is in progress during the block."""
        self._calls.add(call)
        token = _CALL.set(call)
        try:
            yield
        finally:
            _CALL.reset(token)
            self._calls.discard(call)

    async def elicit(
        self,
        context: Any,  # noqa: ARG002 - the SDK calls it by this name
        params: ElicitRequestParams,
    ) -> ElicitResult | ErrorData:
        """Answer a server's request for a person's input: the SDK's `elicitation_callback`.

        Over HTTP, the SDK runs it in the context of the call that the request belongs to. Over stdio, a request does not
        say which call it belongs to: it is answered only if one call is in progress.
        """
        from mcp.types import INVALID_REQUEST, ElicitResult, ErrorData

        call = _CALL.get()
        if call not in self._calls:
            call = next(iter(self._calls)) if len(self._calls) == 1 else None
        if call is None or call.ask is None:
            reason = (
                "several calls are in progress, and it does not say which one asks" if self._calls else "no call asks"
            )
            return ErrorData(code=INVALID_REQUEST, message=f"No person can be asked: {reason}.")
        try:
            question = question_of("", params)
        except McpError as error:
            return ErrorData(code=INVALID_REQUEST, message=str(error))
        reply = await call.ask_person(question)
        return ElicitResult.model_validate(reply.model_dump(mode="json"))


def question_of(key: str, params: ElicitRequestParams) -> Question:
    """A server's request as a question.

    Raises:
        McpError: its schema is too large, or is not one.
    """
    text = beginning(params.message, MAX_TEXT_CHARS)
    if params.mode == "url":
        if len(params.url) > MAX_URL_CHARS:
            raise McpError("The question's URL is too long.")
        if not params.url.lower().startswith(("https://", "http://")):
            # Pages show it as a link: `javascript:` would run there with the rights of the person.
            raise McpError("The question's URL is not one of http or https.")
        return Question(key=key, text=text, url=params.url)
    schema = params.requested_schema
    try:
        check_size(schema)
        is_small = len(json.dumps(schema)) <= MAX_SCHEMA_BYTES
    except (TypeError, ValueError, RecursionError) as error:
        raise McpError(f"The question's schema cannot be used: {error}") from error
    if not is_small or not isinstance(schema.get("properties", {}), dict):
        raise McpError("The question's schema cannot be used: it is too large, or does not describe an object.")
    return Question(key=key, text=text, answer_schema=schema)


def questions_of(result: InputRequiredResult) -> Questions:
    """What a call needs to know to be continued.

    Raises:
        McpError: the server asks for something else than a person's input, or for too much.
    """
    requests = result.input_requests or {}
    if other := next((request.method for request in requests.values() if request.method != "elicitation/create"), None):
        raise McpError(f"The server asked for {other}, which is not offered to it.")
    if len(requests) > MAX_QUESTIONS:
        raise McpError(
            f"The server asked {len(requests)} questions at once; at most {MAX_QUESTIONS} are put to a person."
        )
    if len((result.request_state or "").encode()) > MAX_STATE_BYTES:
        raise McpError(f"The server's state of the call has more than {MAX_STATE_BYTES:,} bytes.")
    questions = [
        question_of(key, request.params) for key, request in requests.items() if request.method == "elicitation/create"
    ]
    return Questions(questions=questions, state=result.request_state)


def url_questions_of(error: MCPError) -> Questions:
    """The questions in a server's refusal that says that a person has to open a page first.

    Raises:
        MCPError: it is another error.
        McpError: the question's URL is too long.
    """
    from mcp.shared.exceptions import UrlElicitationRequiredError
    from mcp.types import URL_ELICITATION_REQUIRED

    if error.code != URL_ELICITATION_REQUIRED:
        raise error
    try:
        elicitations = UrlElicitationRequiredError.from_error(error.error).elicitations
    except ValueError:
        raise error from None
    if not elicitations:
        raise error
    return Questions(
        questions=[question_of(str(number), params) for number, params in enumerate(elicitations[:MAX_QUESTIONS])]
    )


def responses_of(replies: Replies) -> dict[str, Any]:
    """The replies as the SDK's input responses."""
    from mcp.types import ElicitResult

    return {key: ElicitResult.model_validate(reply.model_dump(mode="json")) for key, reply in replies.replies.items()}
