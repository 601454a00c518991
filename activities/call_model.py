"""Call the model for the next step: find the conversation, send the request, inspect the answer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.heartbeat import Heartbeat, attempt_was_abandoned, heartbeating
from mulligan.activities.model_attempt import ModelAttempt
from mulligan.activities.models.call_provider import call_provider
from mulligan.activities.models.live_text import LiveTextHeartbeats
from mulligan.activities.models.protocol import Reply
from mulligan.activities.run_data.conversation_cache import CachedConversation
from mulligan.activities.run_data.find_conversation import conversation_of
from mulligan.activities.services import Services
from mulligan.agent import Agent
from mulligan.errors import ModelRequestError
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
        agent = await served_agent(services, context)
        await services.budgets.check(context)
        attempt = ModelAttempt(services, request)
        await attempt.open_spans()
        async with heartbeating() as heartbeat, AsyncExitStack() as stack:
            with attempt.span_if_unsent():
                definition = await services.definitions.find(request.definition, context)
                provider = services.providers.of(request.model)
                conversation = await stack.enter_async_context(conversation_of(request, provider, services, heartbeat))
            reply = await self._call_provider(attempt, agent, definition, conversation, heartbeat)
            return await attempt.take_answer(agent, definition, reply, conversation)

    async def _call_provider(
        self,
        attempt: ModelAttempt,
        agent: Agent,
        definition: Definition,
        conversation: CachedConversation,
        heartbeat: Heartbeat,
    ) -> Reply:
        telemetry, retry_budget, request = self.services.telemetry, self.services.retry_budget, attempt.request
        is_streamed = agent.model_settings.get("stream") is not False
        provider_request = attempt.provider_request(
            agent, definition, conversation, on_text=self._live_text(request, heartbeat) if is_streamed else None
        )
        await attempt.count_lost(provider_request)
        endpoint = self.services.providers.endpoint_of(request.model)
        sent_at = await retry_budget.wait_until_allowed(request, heartbeat)
        try:
            chat = attempt.chat(activity.info().attempt)
            async with self.services.budgets.void_counted(request.where, request.model, provider_request):
                with telemetry.chat(request.where, chat, is_void=attempt_was_abandoned) as span:
                    reply = await call_provider(conversation.provider, provider_request, telemetry, span, endpoint)
                    retry_budget.record_success(request)
                    attempt.add_content(span, provider_request, reply)
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
