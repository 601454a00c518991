"""Call the model for the next step: find the conversation, send the request, inspect the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from opentelemetry.trace import Span
from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers.inspect_answer import inspect_answer
from mulligan.activities.heartbeat import Heartbeat, attempt_was_abandoned, heartbeating, lost_attempts
from mulligan.activities.models.call_provider import call_provider
from mulligan.activities.models.live_text import LiveTextHeartbeats
from mulligan.activities.models.protocol import Reply, Request
from mulligan.activities.run_data.conversation_cache import CachedConversation
from mulligan.activities.run_data.find_conversation import conversation_of
from mulligan.activities.services import Services
from mulligan.agent import Agent
from mulligan.content import Media, media_of
from mulligan.errors import ModelRequestError
from mulligan.model_name import ModelName
from mulligan.observe import semconv
from mulligan.observe.spans import ChatAttempt, content_attributes
from mulligan.values import AssistantMessage, Message
from mulligan.wire.agent_facts import Definition
from mulligan.wire.model_call import CALL_MODEL, ModelAnswer, ModelCall


@dataclass(frozen=True)
class CallModelActivity:
    """The activity `call_model`."""

    services: Services

    @activity.defn(name=CALL_MODEL)
    async def call_model(self, request: ModelCall) -> ModelAnswer:
        """Call the model for the next step of a conversation.

        Raises:
            ModelRequestError, ModelUnavailableError: Temporal does not retry.
            ApplicationError: Temporal retries after the delay in the error; or this worker does not serve the agent.
        """
        services, context = self.services, request.where
        agent = await served_agent(services, context.agent)
        await self._open_spans(request)
        async with heartbeating() as heartbeat, AsyncExitStack() as stack:
            with self._span_if_unsent(request):
                definition = await services.definitions.find(request.definition, context)
                provider = services.providers.of(request.model)
                conversation = await stack.enter_async_context(conversation_of(request, provider, services, heartbeat))
            reply = await self._call_provider(request, agent, definition, conversation, heartbeat)
            answer = await inspect_answer(services, request, agent, definition, reply, conversation)
            conversation.extend([answer.message])
        # A settled call has its result already: the next model call takes it from this cache.
        for call, prepared in zip(answer.message.tool_calls, answer.prepared, strict=True):
            if prepared.text is not None:
                services.cache_result(context, call, prepared.text, prepared.error)
        return answer

    async def _open_spans(self, request: ModelCall) -> None:
        """Open the parent span of the step's spans, and write the spans of earlier attempts that were lost."""
        info, telemetry, lost = activity.info(), self.services.telemetry, lost_attempts()
        at = info.scheduled_time.timestamp()
        if info.attempt == 1 or lost:
            telemetry.open_group(request.where, request.step, at)
            await telemetry.wait_for_parent_spans()
        for attempt in lost:
            telemetry.lost_chat(request.where, self._attempt(request, attempt), start=at)

    @contextmanager
    def _span_if_unsent(self, request: ModelCall) -> Iterator[None]:
        """Write the span of this attempt if the block, which finds what to send, fails: the next attempt will not."""
        try:
            yield
        except BaseException:
            attempt = self._attempt(request, activity.info().attempt)
            with self.services.telemetry.chat(request.where, attempt, is_void=attempt_was_abandoned):
                raise

    def _attempt(self, request: ModelCall, attempt: int) -> ChatAttempt:
        return ChatAttempt(
            provider=self.services.providers.of(request.model).name,
            model=ModelName.parse(request.model).name,
            step=request.step,
            attempt=attempt,
            fallback=request.fallback,
        )

    async def _call_provider(
        self,
        request: ModelCall,
        agent: Agent,
        definition: Definition,
        conversation: CachedConversation,
        heartbeat: Heartbeat,
    ) -> Reply:
        telemetry, retry_budget = self.services.telemetry, self.services.retry_budget
        provider, model = conversation.provider, ModelName.parse(request.model).name
        endpoint = self.services.providers.endpoint_of(request.model)
        is_streamed = agent.model_settings.get("stream") is not False
        provider_request = Request(
            model=model,
            definition=definition,
            items=[item for items in conversation.items for item in items],
            messages=conversation.messages,
            settings=agent.model_settings,
            parallel_tool_calls=agent.parallel_tool_calls,
            calls_in_text=agent.calls_in_text,
            timeout=self.services.providers.timeout(request.model, request.timeout),
            summed_up=request.summed_up or 0,
            on_text=self._live_text(request, heartbeat) if is_streamed else None,
        )
        sent_at = await retry_budget.wait_until_allowed(request, heartbeat)
        try:
            attempt = self._attempt(request, activity.info().attempt)
            with telemetry.chat(request.where, attempt, is_void=attempt_was_abandoned) as span:
                reply = await call_provider(provider, provider_request, telemetry, span, endpoint)
                retry_budget.record_success(request)
                span.set_attributes(content_attributes(_new_media(provider_request.messages)))
                self._add_content(span, provider_request, reply)
                return reply
        except ModelRequestError:
            raise
        except Exception as error:
            # An endpoint's faulty answers have many forms (HTML instead of JSON, no choices): each is worth a retry.
            raise retry_budget.error_to_raise(request, error, heartbeat, sent_at) from error

    def _live_text(self, request: ModelCall, heartbeat: Heartbeat) -> Callable[[str], None] | None:
        """The function that sends the text so far to the run's followers; None where that is off."""
        seconds, attempt = self.services.live_text_seconds, activity.info().attempt
        if not seconds:
            return None
        return LiveTextHeartbeats(heartbeat, seconds, request.where.conversation, request.step, attempt).write

    def _add_content(self, span: Span, request: Request, reply: Reply) -> None:
        telemetry = self.services.telemetry
        if telemetry.content:
            messages = [message.model_dump(mode="json") for message in request.messages]
            telemetry.add_content(span, semconv.INPUT_MESSAGES, messages)
            calls = [call.model_dump(mode="json") for call in reply.calls]
            answer = [{"role": "assistant", "text": reply.text, "tool_calls": calls}]
            telemetry.add_content(span, semconv.OUTPUT_MESSAGES, answer)


def _new_media(messages: Sequence[Message]) -> list[Media]:
    """The images, files and audio since the model's last answer."""
    media: list[Media] = []
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            break
        media[:0] = media_of(message.content)
    return media
