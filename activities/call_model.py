"""One step of the model: find the conversation, ask the provider, and have its answer looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opentelemetry.trace import Span
from temporalio import activity
from temporalio.exceptions import ApplicationError

from mulligan.activities.answers.inspect_answer import AnswerInspector
from mulligan.activities.heartbeat import Heartbeat, attempt_was_abandoned, heartbeating, previous_attempt_was_lost
from mulligan.activities.models.call_provider import call_provider
from mulligan.activities.models.live_text import LiveTextHeartbeats
from mulligan.activities.models.protocol import Provider, Reply, Request
from mulligan.activities.run_data.conversation_cache import CachedConversation
from mulligan.activities.run_data.find_conversation import conversation_of
from mulligan.activities.services import Services
from mulligan.agent import Agent
from mulligan.errors import ModelRequestError
from mulligan.model_name import ModelName
from mulligan.observe import semconv
from mulligan.observe.spans import ChatAttempt
from mulligan.wire.agent_facts import Definition
from mulligan.wire.model_call import CALL_MODEL, ModelAnswer, ModelCall


@dataclass(frozen=True)
class CallModelActivity:
    """The activity, with what the worker gives it."""

    services: Services

    @activity.defn(name=CALL_MODEL)
    async def call_model(self, order: ModelCall) -> ModelAnswer:
        """Ask the model for the next step of a conversation.

        Raises:
            ModelRequestError, ModelUnavailableError: not to be tried again.
            ApplicationError: to be tried again by Temporal, after the delay that it carries.
        """
        parsed = ModelName.parse(order.model)
        provider, model = self.services.providers[parsed.provider], parsed.name
        await self._open_spans(order, provider, model)
        async with heartbeating() as heart:
            agent = self.services.registry.agents.get(order.where.agent)
            if agent is None:
                # As in a rolling deploy: another worker of the queue may have it.
                raise ApplicationError(f"This worker serves no agent {order.where.agent!r}.", type="AgentNotLoaded")
            definition = await self.services.definitions.find(order.definition, order.where)
            async with conversation_of(order, provider, self.services) as prefix:
                reply = await self._ask(order, agent, definition, provider, model, prefix, heart)
                inspector = AnswerInspector(self.services)
                answer = await inspector.take(order, agent, definition, reply, prefix.messages, prefix.call_ids)
                prefix.extend([answer.message])
        for call, done in zip(answer.message.tool_calls, answer.prepared, strict=True):
            if done.text is not None:
                self.services.cache_result(order.where, call, done.text, done.error)
        return answer

    async def _open_spans(self, order: ModelCall, provider: Provider, model: str) -> None:
        """What the trace needs before this attempt's own span: the parent of its steps, and an attempt that was lost."""
        info = activity.info()
        at = info.scheduled_time.timestamp()
        if info.attempt == 1 or previous_attempt_was_lost():
            self.services.telemetry.open_group(order.where, order.step, at)
            await self.services.telemetry.wait_for_parent_spans()
        if previous_attempt_was_lost():
            lost = ChatAttempt(
                provider=provider.name,
                model=model,
                step=order.step,
                attempt=info.attempt - 1,
                fallback=order.fallback,
            )
            self.services.telemetry.lost_chat(order.where, lost, start=at)

    async def _ask(
        self, order: ModelCall, agent: Agent, definition: Definition, provider: Provider, model: str,
        prefix: CachedConversation, heart: Heartbeat,
    ) -> Reply:  # fmt: skip
        request = Request(
            model=model,
            definition=definition,
            items=[item for items in prefix.items for item in items],
            messages=prefix.messages,
            settings=agent.model_settings,
            parallel_tool_calls=agent.parallel_tool_calls,
            calls_in_text=agent.calls_in_text,
            timeout=order.timeout,
            summed_up=order.summed_up or 0,
            on_text=None if agent.model_settings.get("stream") is False else self._told_to_watchers(order, heart),
        )
        attempt = ChatAttempt(
            provider=provider.name,
            model=model,
            step=order.step,
            attempt=activity.info().attempt,
            fallback=order.fallback,
        )
        sent = await self.services.retry_budget.wait_until_allowed(order, heart)
        try:
            with self.services.telemetry.chat(order.where, attempt, is_void=attempt_was_abandoned) as span:
                reply = await call_provider(provider, request, self.services.telemetry, span)
                self.services.retry_budget.record_success(order)
                self._put_content(span, request, reply)
                return reply
        except ModelRequestError:
            raise
        except Exception as error:
            # What an endpoint does wrong has no end of shapes (HTML for JSON, no choices): each is worth another try.
            raise self.services.retry_budget.error_to_raise(order, error, heart, sent) from error

    def _told_to_watchers(self, order: ModelCall, heart: Heartbeat) -> Callable[[str], None] | None:
        if not self.services.live_text_seconds:
            return None
        attempt = activity.info().attempt
        return LiveTextHeartbeats(
            heart, self.services.live_text_seconds, order.where.conversation, order.step, attempt
        ).write

    def _put_content(self, span: Span, request: Request, reply: Reply) -> None:
        if self.services.telemetry.content:
            shown = [message.model_dump(mode="json") for message in request.messages]
            self.services.telemetry.add_content(span, semconv.INPUT_MESSAGES, shown)
            calls = [call.model_dump(mode="json") for call in reply.calls]
            said = [{"role": "assistant", "text": reply.text, "tool_calls": calls}]
            self.services.telemetry.add_content(span, semconv.OUTPUT_MESSAGES, said)
