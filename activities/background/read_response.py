"""Background responses of a provider: create one, read it, end it. The workflow waits in between (docs/background.md)."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.background.background_text import BackgroundText, ReadText
from mulligan.activities.heartbeat import Heartbeat, attempt_was_abandoned, heartbeating
from mulligan.activities.model_attempt import ModelAttempt
from mulligan.activities.models.call_provider import record_reply
from mulligan.activities.models.checked_reply import checked_id
from mulligan.activities.models.estimated_usage import estimated_input, tokens_of
from mulligan.activities.models.openai._openai_usage import openai_usage
from mulligan.activities.models.protocol import AnswersInBackground, CreatedResponse, Reply, Request, Unavailable
from mulligan.activities.run_data.find_conversation import conversation_of
from mulligan.activities.services import Services
from mulligan.client.callback_tokens import RESPONSE, call_of
from mulligan.errors import ModelRequestError
from mulligan.observe.spans import ChatAttempt
from mulligan.schema.error_text import error_text, type_name
from mulligan.values import ErrorInfo, Usage
from mulligan.wire.background import (
    END_RESPONSE,
    METADATA,
    READ_RESPONSE,
    START_RESPONSE,
    EndResponse,
    ReadResponse,
    ResponseState,
    StartedResponse,
    StartResponse,
)
from mulligan.wire.event_types import TextCursor

_log = logging.getLogger(__name__)
CREATE_TIMEOUT, READ_TIMEOUT, END_TIMEOUT = 60.0, 45.0, 10.0
"""Seconds for the request that creates a response, that reads it, and that cancels or deletes it."""
WITHDRAW_TIMEOUT = 10.0
"""Seconds that a cancelled activity waits for the response that it was creating, so that it does not run on unknown."""
VISIBLE_AFTER = 60.0
"""Seconds after its creation in which a response that the provider does not find is read again."""
METADATA_CHARS = 512
"""OpenAI's limit of a value in the metadata."""
MOST_STATUS_CHARS = 100
NOT_FOUND = 404


class _EndedResponse(Exception):
    """A response that the run has ended, for its span. `kind`: its `error.type`."""

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__(error.message)
        self.kind = error.kind


@dataclass(frozen=True)
class BackgroundResponseActivities:
    """The activities `start_response`, `read_response` and `end_response`."""

    services: Services

    @property
    def all(self) -> list[Callable[..., Any]]:
        """The activities that a worker registers."""
        return [self.start_response, self.read_response, self.end_response]

    @activity.defn(name=START_RESPONSE)
    async def start_response(self, request: StartResponse) -> StartedResponse:
        """Create the response that answers a step's model call.

        Raises:
            ModelRequestError, ModelUnavailableError: Temporal does not retry.
            ApplicationError: Temporal retries after the delay in the error; or this worker does not serve the agent.
        """
        services, where = self.services, request.where
        agent = await served_agent(services, where)
        await services.budgets.check(where)
        attempt = ModelAttempt(services, request, request.failed)
        await attempt.open_spans()
        async with heartbeating() as heartbeat:
            with attempt.span_if_unsent():
                definition = await services.definitions.find(request.definition, where)
                provider = self._provider(request.model)
                async with conversation_of(
                    request, services.providers.of(request.model), services, heartbeat
                ) as conversation:
                    provider_request = attempt.provider_request(agent, definition, conversation)
            timeout = min(provider_request.timeout, CREATE_TIMEOUT)
            limited = replace(provider_request, timeout=timeout)
            is_streamed = services.live_pace is not None and agent.model_settings.get("stream") is not False
            created = await self._create(request, attempt, provider, limited, heartbeat, is_streamed)
        return StartedResponse(
            id=str(created.response["id"]),
            status=str(created.response.get("status"))[:MOST_STATUS_CHARS],
            attempt=request.failed + activity.info().attempt,
            cursor=None if created.sequence is None else TextCursor(sequence=created.sequence),
            input_tokens=estimated_input(provider_request) if services.budgets.is_limited(where.tenant) else 0,
        )

    async def _create(
        self,
        request: StartResponse,
        attempt: ModelAttempt,
        provider: AnswersInBackground,
        limited: Request,
        heartbeat: Heartbeat,
        is_streamed: bool,
    ) -> CreatedResponse:
        services = self.services
        metadata = await self._metadata(request)
        sent_at, started = await services.retry_budget.wait_until_allowed(request, heartbeat), time.time()
        try:
            creating = provider.start_in_background(limited, key=_key(request), metadata=metadata, streamed=is_streamed)
            created = await _to_its_end(provider, asyncio.ensure_future(creating))
            checked_id(created.response.get("id"), "a background response")
        except Exception as error:
            chat = attempt.chat(activity.info().attempt)
            services.telemetry.failed_chat(request.where, chat, error, start=started)
            if isinstance(error, ModelRequestError):
                raise
            raise services.retry_budget.error_to_raise(request, error, heartbeat, sent_at) from error
        services.retry_budget.record_success(request)
        return created

    async def _metadata(self, request: StartResponse) -> dict[str, str]:
        """The metadata by which a webhook finds the run. Without it, the response is found by polls alone."""
        call = call_of(request.where, activity.info().workflow_id or "", "")
        try:
            token = await self.services.callback_tokens.seal(call, RESPONSE)
        except RPCError:
            _log.warning("No webhook will find the run: the key of its token cannot be read.")
            return {}
        return {METADATA: token} if len(token) <= METADATA_CHARS else {}

    @activity.defn(name=READ_RESPONSE)
    async def read_response(self, request: ReadResponse) -> ResponseState:
        """Read a response; if it has ended, inspect its answer and write the span of its attempt.

        Before that, the text that the model is writing is sent to the run's followers, where live text is on.

        Raises:
            ModelRequestError: the provider refuses to show it, or it has failed and would fail again.
            ApplicationError: this worker does not serve the agent; or Temporal retries.
        """
        await served_agent(self.services, request.where)
        provider, telemetry = self._provider(request.model), self.services.telemetry
        chat = ModelAttempt(self.services, request).chat(request.attempt)
        async with heartbeating() as heartbeat:
            text = await self._read_text(request, provider, heartbeat)
            try:
                response = await provider.background_response(request.id, "get", READ_TIMEOUT)
            except ModelRequestError as error:
                if error.status == NOT_FOUND and time.time() - request.started < VISIBLE_AFTER:
                    return _state("unknown", error)
                telemetry.failed_chat(request.where, chat, error, start=request.started)
                if error.status == NOT_FOUND:
                    return _state("expired", error)
                raise
            except Exception as error:  # noqa: BLE001 - the run's patience and time limit count, not this activity's attempts
                return _state("unknown", error)
            if response.get("status") in ("queued", "in_progress"):
                running, writing = str(response["status"]), text.is_writing
                return ResponseState(status="running", detail=running, cursor=text.cursor, is_writing=writing)
            return await self._take(request, provider, response, heartbeat)

    async def _read_text(self, request: ReadResponse, provider: AnswersInBackground, heartbeat: Heartbeat) -> ReadText:
        pace = self.services.live_pace
        if request.cursor is None or pace is None:
            return ReadText(request.cursor)
        with pace.counted(activity.client()):
            return await BackgroundText(request, request.cursor, heartbeat, pace, self.services.live).read(provider)

    async def _take(
        self, request: ReadResponse, provider: AnswersInBackground, response: dict[str, Any], heartbeat: Heartbeat
    ) -> ResponseState:
        """The state of a response that has ended."""
        services, attempt = self.services, ModelAttempt(self.services, request)
        agent = await served_agent(services, request.where)
        definition = await services.definitions.find(request.definition, request.where)
        of_model = services.providers.of(request.model)
        async with conversation_of(request, of_model, services, heartbeat) as conversation:
            provider_request = attempt.provider_request(agent, definition, conversation)
            try:
                reply = self._reply(request, provider, provider_request, response)
            except ModelRequestError:
                raise
            except Exception as error:  # noqa: BLE001 - an endpoint's faulty answers have many forms
                return _state("failed", error)
            answer = await attempt.take_answer(agent, definition, reply, conversation, key=(request.id,))
        return ResponseState(status="completed", answer=answer)

    def _reply(
        self, request: ReadResponse, provider: AnswersInBackground, sent: Request, response: dict[str, Any]
    ) -> Reply:
        """The reply in a response that has ended, and the span of its attempt, with the reply or the failure."""
        attempt, telemetry = ModelAttempt(self.services, request), self.services.telemetry
        endpoint = self.services.providers.endpoint_of(request.model)
        chat = attempt.chat(request.attempt)
        with telemetry.chat(request.where, chat, is_void=attempt_was_abandoned, start=request.started) as span:
            if endpoint is not None and (server := endpoint.server()) is not None:
                telemetry.add_server(span, *server)
            if response.get("status") == "cancelled":
                raise Unavailable("the response was cancelled at the provider")
            reply = record_reply(
                self.services.providers.of(request.model), sent, provider.reply_of(response), telemetry, span
            )
            attempt.add_content(span, sent, reply)
            return reply

    @activity.defn(name=END_RESPONSE)
    async def end_response(self, request: EndResponse) -> None:
        """Delete a response at the provider, after cancelling it if nobody needs it any more.

        Raises:
            ApplicationError: the provider cannot be reached, and Temporal retries; or this worker does not serve the agent.
        """
        services = self.services
        await served_agent(services, request.where)
        provider = self._provider(request.model)
        if request.error is not None and activity.info().attempt == 1:
            name = services.providers.of(request.model).name
            chat = ChatAttempt.of(request, request.attempt, provider=name, fallback=request.fallback)
            services.telemetry.failed_chat(request.where, chat, _EndedResponse(request.error), start=request.started)
        try:
            if request.cancel:
                await self._count(request, await _cancelled(provider, request.id))
            await provider.background_response(request.id, "delete", END_TIMEOUT)
        except ModelRequestError as error:
            if error.status != NOT_FOUND:
                _log.warning("The response %s stays at the provider: %s", request.id, error.message)
        except Unavailable as error:
            raise ApplicationError(str(error), type="ModelUnavailable") from error

    async def _count(self, request: EndResponse, response: dict[str, Any]) -> None:
        """Add the cost of a response that nobody reads to the tenant's budget: as the provider counts it, or by estimate."""
        usage = openai_usage(response)
        if not usage.total_tokens:
            usage = Usage(input_tokens=request.input_tokens, output_tokens=tokens_of(request.written))
        budgets = self.services.budgets
        await budgets.add(request.where, request.model, usage, key=(request.id,), estimated=True)

    def _provider(self, model: str) -> AnswersInBackground:
        provider = self.services.providers.background_of(model)
        if provider is None:
            raise ApplicationError(
                f"This worker cannot call {model}: it does not know the endpoint.", type="ModelUnavailable"
            )
        return provider


async def _cancelled(provider: AnswersInBackground, response_id: str) -> dict[str, Any]:
    """Cancel a response, and return it: as it is if it has ended meanwhile, empty if the provider has forgotten it."""
    try:
        return await provider.cancel_background_response(response_id, END_TIMEOUT)
    except ModelRequestError:
        with suppress(ModelRequestError):
            return await provider.background_response(response_id, "get", END_TIMEOUT)
    return {}


async def _to_its_end(provider: AnswersInBackground, creating: asyncio.Future[CreatedResponse]) -> CreatedResponse:
    """The created response. If the activity is cancelled meanwhile, the response is used, or withdrawn: none is lost."""
    try:
        return await asyncio.shield(creating)
    except asyncio.CancelledError:
        details = activity.cancellation_details()
        async with asyncio.timeout(WITHDRAW_TIMEOUT):
            created = await creating
        if details is not None and details.worker_shutdown:
            return created
        response = created.response
        with suppress(ModelRequestError, Unavailable):
            await provider.cancel_background_response(str(response.get("id")), END_TIMEOUT)
            await provider.background_response(str(response.get("id")), "delete", END_TIMEOUT)
        raise


def _key(request: StartResponse) -> str:
    """The idempotency key: the same for each attempt to create the same response, after a worker's death too."""
    info, where = activity.info(), request.where
    place = (request.step, request.fallback, request.number, request.conversation.digest)
    parts = (info.namespace, info.workflow_id, where.trace, where.conversation, *place)
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:32]


def _state(status: Any, error: Exception) -> ResponseState:
    message = (
        str(error) if isinstance(error, ModelRequestError | Unavailable) else f"{type_name(error)}: {error_text(error)}"
    )
    retry_after = error.retry_after if isinstance(error, Unavailable) else None
    return ResponseState(
        status=status, error=ErrorInfo(kind=type(error).__name__, message=message), retry_after=retry_after
    )
