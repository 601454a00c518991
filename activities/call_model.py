"""One step of the model: find the conversation, ask the provider, and have its answer looked at."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from datetime import timedelta

from opentelemetry.trace import Span
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.definitions import QUERY_TIMEOUT, Definitions, this_workflow
from activities.heartbeat import Heart, attempt_before_was_lost, beating, given_up
from activities.prefix_cache import Key, Miss, Prefix, PrefixCache
from activities.providers.protocol import Provider, Reply, Request, Unavailable
from activities.take_answer import AnswerTaker
from mulligan import semconv
from mulligan.agent import Agent, Registry
from mulligan.errors import ModelRequestError, ModelUnavailableError
from mulligan.handoff import CALL_MODEL, CONVERSATION_QUERY, ModelAnswer, ModelCall, Page, PageAsked, tool_message
from mulligan.telemetry import Telemetry

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
            prefix, miss = self._cache.take(key, provider, order.whole, order.prefix)
            try:
                await self._conversation(order, key, prefix, miss)
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

    async def _conversation(self, order: ModelCall, key: Key, prefix: Prefix, miss: Miss | None) -> None:
        """Bring what the cache holds up to the whole: by what came with the call, then by asking the workflow."""
        held = len(prefix.messages)
        if order.new is not None and prefix.ref == order.prefix:
            prefix.extend(self._cache.resolve(key, order.new))
        is_whole = len(prefix.messages) == order.whole.count
        result = "hit" if is_whole else "partial" if prefix.messages else miss or "absent"
        asked = await self._ask_for_rest(order, prefix)
        if prefix.ref != order.whole:
            # A result that is held under its call's id may be another than the run's: one from before a reset, say.
            prefix.cut_back(held)
            result = "mismatch"
            asked += await self._ask_for_rest(order, prefix)
        self._telemetry.metrics.prefix_cache(result, asked)
        if prefix.ref != order.whole:
            prefix.cut_back(0)
            raise ApplicationError("The workflow has moved on while its messages were read.", type="StaleConversation")

    async def _ask_for_rest(self, order: ModelCall, prefix: Prefix) -> int:
        """Ask the workflow for the messages that are not there yet; returns their bytes as JSON."""
        asked = 0
        while (have := len(prefix.messages)) < order.whole.count:
            page = await this_workflow().query(
                CONVERSATION_QUERY,
                PageAsked(conversation=order.where.conversation, since=have, count=order.whole.count - have),
                result_type=Page,
                rpc_timeout=QUERY_TIMEOUT,
            )
            if not page.messages:
                break
            asked += prefix.extend(page.messages)
        return asked

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
        try:
            with self._telemetry.chat(
                order.where, provider=provider.name, model=model, step=order.step, attempt=attempt, is_void=given_up
            ) as span:
                # The client's own timeout is for each read; this one is for the whole attempt.
                async with asyncio.timeout(order.timeout):
                    reply = await provider.complete(request)
                self._describe(span, provider.name, request, reply)
                return reply
        except ModelRequestError:
            raise
        except TimeoutError as error:
            slow = Unavailable(f"no answer within {order.timeout:g} s")
            raise self._try_again(order, slow, heart) from error
        except Exception as error:
            # What an endpoint does wrong has no end of shapes (HTML for JSON, no choices): each is worth another try.
            raise self._try_again(order, error, heart) from error

    def _try_again(self, order: ModelCall, error: Exception, heart: Heart) -> ApplicationError:
        """The failure that Temporal retries, with the delay to wait; or the typed one when patience is spent."""
        info = activity.info()
        now = time.time()
        # The first failure's time rides in the heartbeat's details, which are there on the next attempt. Time that the
        # call waited for a worker is not the endpoint's fault and does not count.
        first = heart.details[0] if heart.details else now
        heart.say(first)
        status = error.status if isinstance(error, Unavailable) else None
        said = f"{error}" if isinstance(error, Unavailable) else f"{type(error).__name__}: {error}"
        asked = error.retry_after if isinstance(error, Unavailable) else None
        delay = asked if asked is not None else min(LONGEST_DELAY, 2.0 ** (info.attempt - 1))
        # Jitter upwards only: many runs that were told "in 5 s" must not all come back in the same instant.
        delay *= 1 + random.random() / 4  # noqa: S311 - not for secrets
        out_of_time = now + delay - first > order.patience
        out_of_attempts = order.attempts is not None and info.attempt >= order.attempts
        if out_of_time or out_of_attempts:
            return ModelUnavailableError(
                f"{order.model} was not to be had: {info.attempt} attempts in {now - first:.0f} s; the last: {said}"
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
