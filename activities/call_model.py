"""Call the model for the next step: find the conversation, send the request, inspect the answer."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, replace

from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers.written_calls import WrittenCalls
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
        services, request, retry_budget = self.services, attempt.request, self.services.retry_budget
        with ExitStack() as stack:
            provider_request = attempt.provider_request(agent, definition, conversation)
            if services.live_pace is not None and agent.model_settings.get("stream") is not False:
                stack.enter_context(services.live_pace.counted(activity.client()))
                calls = WrittenCalls(request, services.tools.of_run(agent, definition), conversation)
                place = (request.where.conversation, request.step, activity.info().attempt)
                live = LiveTextHeartbeats(heartbeat, services.live_pace, *place, describe=calls.last_of)
                stack.enter_context(live.published(services.live))
                provider_request = replace(provider_request, on_text=live.write, on_call=live.write_call)
            await attempt.count_lost(provider_request)
            endpoint = services.providers.endpoint_of(request.model)
            sent_at = await retry_budget.wait_until_allowed(request, heartbeat)
            try:
                chat = attempt.chat(activity.info().attempt)
                async with services.budgets.void_counted(request.where, request.model, provider_request):
                    with services.telemetry.chat(request.where, chat, is_void=attempt_was_abandoned) as span:
                        reply = await call_provider(
                            conversation.provider, provider_request, services.telemetry, span, endpoint
                        )
                        retry_budget.record_success(request)
                        attempt.add_content(span, provider_request, reply)
                        return reply
            except ModelRequestError:
                raise
            except Exception as error:
                # An endpoint's faulty answers have many forms (HTML instead of JSON, no choices): each is worth a retry.
                has_begun = provider_request.written.size > 0
                raise retry_budget.error_to_raise(request, error, heartbeat, sent_at, has_begun=has_begun) from error
