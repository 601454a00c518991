"""One step of the model: find the conversation, ask the provider, and have its answer looked at."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from datetime import timedelta

from opentelemetry.trace import Span
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.definitions import QUERY_TIMEOUT, Definitions, this_workflow
from activities.endpoint_limits import WAIT_HERE, EndpointLimits
from activities.heartbeat import Heart, attempt_before_was_lost, beating, given_up
from activities.prefix_cache import Prefix, PrefixCache
from activities.providers.protocol import Provider, Reply, Request, Unavailable
from activities.take_answer import AnswerTaker
from mulligan import semconv
from mulligan.agent import Agent, Registry
from mulligan.errors import ModelRequestError, ModelUnavailableError
from mulligan.handoff import CALL_MODEL, CONVERSATION_QUERY, ModelAnswer, ModelCall, Page, PageAsked, tool_message
from mulligan.telemetry import Telemetry

TOO_MANY_REQUESTS = 429
LONGEST_DELAY = 60.0
"""Seconds between two attempts at most, unless the endpoint asks for more by Retry-After."""


class CallModelActivity:
    """The activity, with what the worker gives it."""

    def __init__(
        self,
        registry: Registry,
        providers: Mapping[str, Provider],
        definitions: Definitions,
        cache: PrefixCache,
        telemetry: Telemetry,
        taker: AnswerTaker,
    ) -> None:
        self._registry = registry
        self._providers = providers
        self._definitions = definitions
        self._cache = cache
        self._telemetry = telemetry
        self._taker = taker
        self._limits = EndpointLimits()

    @activity.defn(name=CALL_MODEL)
    async def call_model(self, order: ModelCall) -> ModelAnswer:
        """Ask the model for the next step of a conversation.

        Raises:
            ModelRequestError, ModelUnavailableError: not to be tried again.
            ApplicationError: to be tried again by Temporal, after the delay that it carries.
        """
        kind, _, model = order.model.partition(":")
        provider = self._providers[kind]
        key = (activity.info().workflow_id or "", order.where.conversation)
        await self._open_spans(order, provider, model)
        async with beating() as heart:
            agent = self._registry.agents.get(order.where.agent)
            if agent is None:
                # As in a rolling deploy: another worker of the queue may have it.
                raise ApplicationError(f"This worker serves no agent {order.where.agent!r}.", type="AgentNotLoaded")
            prefix = await self._conversation(order, key, provider)
            try:
                reply = await self._ask(order, agent, provider, model, prefix, heart)
                answer = await self._taker.take(order, agent, reply, prefix.messages, prefix.call_ids)
                prefix.extend([answer.message])
            finally:
                # After a failure too: the next attempt need not ask for all of it again.
                self._cache.put(key, prefix)
        for call, done in zip(answer.message.tool_calls, answer.prepared, strict=True):
            if done.text is not None:
                self._cache.hold(key, tool_message(call, done.text, done.error))
        return answer

    async def _open_spans(self, order: ModelCall, provider: Provider, model: str) -> None:
        """What the trace needs before this attempt's own span: the parent of its steps, and an attempt that was lost."""
        info = activity.info()
        at = info.scheduled_time.timestamp()
        if info.attempt == 1 or attempt_before_was_lost():
            self._telemetry.open_group(order.where, order.step, at)
            await self._telemetry.parents_sent()
        if attempt_before_was_lost():
            lost = info.attempt - 1
            self._telemetry.lost_chat(
                order.where, provider=provider.name, model=model, step=order.step, attempt=lost, start=at
            )

    async def _conversation(self, order: ModelCall, key: tuple[str, str], provider: Provider) -> Prefix:
        """The whole conversation: what the cache holds, what came with the call, and what the workflow is asked for."""
        prefix = self._cache.take(key, provider, order.whole, order.prefix) or Prefix(provider)
        if order.new is not None and prefix.ref == order.prefix:
            prefix.extend(self._cache.resolve(key, order.new))
        while (have := len(prefix.messages)) < order.whole.count:
            page = await this_workflow().query(
                CONVERSATION_QUERY,
                PageAsked(conversation=order.where.conversation, since=have, count=order.whole.count - have),
                result_type=Page,
                rpc_timeout=QUERY_TIMEOUT,
            )
            if not page.messages:
                break
            prefix.extend(page.messages)
        if prefix.ref != order.whole:
            raise ApplicationError("The workflow has moved on while its messages were read.", type="StaleConversation")
        return prefix

    async def _ask(
        self, order: ModelCall, agent: Agent, provider: Provider, model: str, prefix: Prefix, heart: Heart
    ) -> Reply:
        request = Request(
            model=model,
            definition=await self._definitions.find(order.definition, order.where),
            items=[item for items in prefix.items for item in items],
            messages=prefix.messages,
            settings=agent.model_settings,
            parallel_tool_calls=agent.parallel_tool_calls,
            calls_in_text=agent.calls_in_text,
            timeout=order.timeout,
        )
        attempt = activity.info().attempt
        await self._turn(order, heart)
        sent = self._limits.now()
        try:
            with self._telemetry.chat(
                order.where, provider=provider.name, model=model, step=order.step, attempt=attempt, is_void=given_up
            ) as span:
                # The client's own timeout is for each read; this one is for the whole attempt.
                async with asyncio.timeout(order.timeout):
                    reply = await provider.complete(request)
                self._limits.answered(order.model)
                self._describe(span, provider.name, request, reply)
                return reply
        except ModelRequestError:
            raise
        except TimeoutError as error:
            slow = Unavailable(f"no answer within {order.timeout:g} s")
            raise self._try_again(order, slow, heart, sent) from error
        except Exception as error:
            # What an endpoint does wrong has no end of shapes (HTML for JSON, no choices): each is worth another try.
            raise self._try_again(order, error, heart, sent) from error

    async def _turn(self, order: ModelCall, heart: Heart) -> None:
        """Wait until an endpoint that limits this worker may be asked; where that takes long, leave the worker for it."""
        delay = await self._limits.turn(order.model)
        if delay is None:
            return
        first, failures = _failed(heart)
        if order.attempts is not None:
            # Temporal counts attempts: one that asked nothing must not be one of the few that the agent allows.
            await asyncio.sleep(min(delay, WAIT_HERE))
        elif time.time() + delay - first <= order.patience:
            heart.say(first, failures)
            raise ApplicationError(
                f"{order.model} limits this worker: not asked now, again in {delay:.0f} s",
                type="ModelLimited",
                category=ApplicationErrorCategory.BENIGN,
                next_retry_delay=timedelta(seconds=delay),
            )
        # Else its patience is over before its turn: it asks once more, rather than to fail without an answer.

    def _try_again(self, order: ModelCall, error: Exception, heart: Heart, sent: float) -> ApplicationError:
        """The failure that Temporal retries, with the delay to wait; or the typed one when patience is spent."""
        info = activity.info()
        now = time.time()
        first, failures = _failed(heart)
        heart.say(first, failures + 1)
        status = error.status if isinstance(error, Unavailable) else None
        said = f"{error}" if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"
        asked = error.retry_after if isinstance(error, Unavailable) else None
        if asked is not None:
            # Jitter upwards only: never before the time that was asked for.
            delay = asked * random.uniform(1, 1.25)  # noqa: S311 - not for secrets
        else:
            # Each round spreads over as long as it waits, so that runs that failed together drift apart.
            delay = min(LONGEST_DELAY, 2.0 ** min(failures, 10)) * random.uniform(0.5, 1.5)  # noqa: S311
        if status == TOO_MANY_REQUESTS or asked is not None:
            delay = self._limits.limited(order.model, sent=sent, retry_after=asked, backoff=delay)
        out_of_time = now + delay - first > order.patience
        out_of_attempts = order.attempts is not None and info.attempt >= order.attempts
        if out_of_time or out_of_attempts:
            return ModelUnavailableError(
                f"{order.model} was not to be had: {failures + 1} attempts in {now - first:.0f} s; the last: {said}"
            )
        return ApplicationError(
            said,
            {"status": status},
            type="ModelUnavailable",
            next_retry_delay=timedelta(seconds=delay),
        )

    def _describe(self, span: Span, provider: str, request: Request, reply: Reply) -> None:
        self._telemetry.answered(
            span,
            provider=provider,
            requested=request.model,
            response_id=reply.response_id,
            model=reply.model,
            finish_reason=reply.finish_reason,
            usage=reply.usage,
        )
        if self._telemetry.content:
            shown = [message.model_dump(mode="json") for message in request.messages]
            self._telemetry.put_content(span, semconv.INPUT_MESSAGES, shown)
            calls = [call.model_dump(mode="json") for call in reply.calls]
            said = [{"role": "assistant", "text": reply.text, "tool_calls": calls}]
            self._telemetry.put_content(span, semconv.OUTPUT_MESSAGES, said)


def _failed(heart: Heart) -> tuple[float, int]:
    """When the call was first not answered, and how often it has asked in vain.

    They ride in the heartbeat's details, which are there on the next attempt. Time that the call waited for a worker is
    not the endpoint's fault and does not count, nor does an attempt that asked nothing.
    """
    first = heart.details[0] if heart.details else time.time()
    failures = heart.details[1] if len(heart.details) > 1 else activity.info().attempt - 1
    return first, failures
