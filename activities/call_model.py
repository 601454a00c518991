"""One step of the model: find the prefix, ask the provider, and look at each call it made, once."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta

from opentelemetry.trace import Span
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities import feedback
from activities import fit_answer as fit
from activities.definitions import QUERY_TIMEOUT, Definitions, this_workflow
from activities.heartbeat import Heart, beating
from activities.prefix_cache import Prefix, PrefixCache
from activities.prepare_call import duplicates, prepare
from activities.providers.protocol import Provider, Reply, Request, Unavailable
from activities.tool_runtime import ToolRuntime
from mulligan.agent import Agent, Registry
from mulligan.errors import ModelRequestError, ModelUnavailableError, ToolCallError
from mulligan.handoff import (
    CALL_MODEL,
    CONVERSATION_QUERY,
    ModelAnswer,
    ModelCall,
    Page,
    PageAsked,
    PreparedCall,
    tool_message,
)
from mulligan.telemetry import Telemetry
from mulligan.values import AssistantMessage, ToolCall

LONGEST_DELAY = 60.0
"""Seconds between two attempts at most, unless the endpoint asks for more by Retry-After."""

LONGEST_ID = 40
"""Characters of a call's id: the contract's 64 is more than OpenAI's Chat Completions take."""


class CallModelActivity:
    """The activity, with what the worker gives it."""

    def __init__(
        self,
        registry: Registry,
        providers: Mapping[str, Provider],
        definitions: Definitions,
        cache: PrefixCache,
        telemetry: Telemetry,
        runtime: ToolRuntime,
    ) -> None:
        self._registry = registry
        self._providers = providers
        self._definitions = definitions
        self._cache = cache
        self._telemetry = telemetry
        self._runtime = runtime

    @activity.defn(name=CALL_MODEL)
    async def call_model(self, order: ModelCall) -> ModelAnswer:
        """Ask the model for the next step of a conversation.

        Raises:
            ModelRequestError, ModelUnavailableError: not to be tried again.
            ApplicationError: to be tried again by Temporal, after the delay that it carries.
        """
        agent = self._registry.agents.get(order.where.agent)
        if agent is None:
            # As in a rolling deploy: another worker of the queue may have it.
            raise ApplicationError(f"This worker serves no agent {order.where.agent!r}.", type="AgentNotLoaded")
        kind, _, model = order.model.partition(":")
        provider = self._providers[kind]
        key = (activity.info().workflow_id or "", order.where.conversation)
        async with beating() as heart:
            prefix = await self._conversation(order, key, provider)
            try:
                reply = await self._ask(order, agent, provider, model, prefix, heart)
                calls = _with_own_ids(reply.calls, prefix.call_ids, order.step)
                long = fit.too_long(calls)
                message = AssistantMessage(
                    role="assistant",
                    text=fit.fit_text(reply),
                    tool_calls=[fit.fit_call(call) if n in long else call for n, call in enumerate(calls)],
                    provider_data=fit.fit_provider_data(reply),
                )
                prepared = await self._prepare_all(order, agent, reply, message.tool_calls, long)
                prefix.extend([message])
            finally:
                # After a failure too: the next attempt need not ask for all of it again.
                self._cache.put(key, prefix)
        for call, done in zip(message.tool_calls, prepared, strict=True):
            if done.error is not None:
                self._cache.hold(key, tool_message(call, done.text or "", done.error))
        return ModelAnswer(message=message, prepared=prepared, finish_reason=reply.finish_reason, usage=reply.usage)

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
            timeout=order.timeout,
        )
        attempt = activity.info().attempt
        try:
            with self._telemetry.chat(
                order.where, provider=provider.name, model=model, step=order.step, attempt=attempt
            ) as span:
                # The client's own timeout is for each read; this one is for the whole attempt.
                async with asyncio.timeout(order.timeout):
                    reply = await provider.complete(request)
                self._describe(span, request, reply)
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
        first = info.heartbeat_details[0] if info.heartbeat_details else now
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

    def _describe(self, span: Span, request: Request, reply: Reply) -> None:
        self._telemetry.answered(
            span,
            response_id=reply.response_id,
            model=reply.model,
            finish_reason=reply.finish_reason,
            usage=reply.usage,
        )
        if self._telemetry.content:
            shown = [message.model_dump(mode="json") for message in request.messages]
            self._telemetry.put_content(span, "gen_ai.input.messages", shown)
            calls = [call.model_dump(mode="json") for call in reply.calls]
            said = [{"role": "assistant", "text": reply.text, "tool_calls": calls}]
            self._telemetry.put_content(span, "gen_ai.output.messages", said)

    async def _prepare_all(
        self, order: ModelCall, agent: Agent, reply: Reply, calls: Sequence[ToolCall], too_long: set[int]
    ) -> list[PreparedCall]:
        """Look at each call once. Never raises: what is wrong with a call is told to the model, or fails the run."""
        twice = duplicates(reply.calls)
        prepared = []
        for index, call in enumerate(calls):
            started = time.time()
            try:
                if index in twice:
                    raise feedback.duplicate_call(call)
                if index in too_long:
                    raise feedback.too_long(call, len(reply.calls[index].arguments), fit.ARGUMENTS_BYTES)
                if reply.finish_reason == "length" and index == len(calls) - 1 and not _is_whole(call.arguments):
                    raise feedback.truncated_call(call)
                done = await prepare(call, agent, self._runtime)
            except ToolCallError as error:
                prepared.append(await self._told(order, agent, call, error, started))
            else:
                as_written = not done.repairs and _says_the_same(call.arguments, done.arguments)
                arguments = None if as_written else done.arguments
                prepared.append(PreparedCall(arguments=arguments, repairs=fit.fit_repairs(done.repairs)))
        return prepared

    async def _told(
        self, order: ModelCall, agent: Agent, call: ToolCall, error: ToolCallError, started: float
    ) -> PreparedCall:
        tool = agent.tool(call.name)
        told = await feedback.settle(error, agent, tool, order.on_invalid_tool_input, self._runtime)
        span = self._telemetry.tool_call(order.where, call, step=order.step, attempt=1, start=started)
        span.fail(
            error.kind,
            text=told.text,
            safe_text=told.safe_text,
            exception=told.exception,
            recovered=told.failure is None,
        )
        return PreparedCall(text=told.text, error=told.error, failure=told.failure)


def _with_own_ids(calls: Sequence[ToolCall], used: set[str], step: int) -> list[ToolCall]:
    """The calls, each with an id that is legal and its own in the whole conversation."""
    taken = set(used)
    own = []
    for index, call in enumerate(calls):
        legal = re.sub(r"[^a-zA-Z0-9_-]", "_", call.id)[:LONGEST_ID]
        call_id = legal or f"call_{step}_{index}"
        again = 0
        while call_id in taken:
            again += 1
            call_id = f"{(legal or 'call')[: LONGEST_ID - 16]}_{step}_{index}" + (f"_{again}" if again > 1 else "")
        taken.add(call_id)
        own.append(call.model_copy(update={"id": call_id}))
    return own


def _is_whole(arguments: str) -> bool:
    """Whether a JSON object has ended: then the cut came after it."""
    try:
        return isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        return False


def _says_the_same(raw: str, arguments: object) -> bool:
    return json.dumps(json.loads(raw), sort_keys=True) == json.dumps(arguments, sort_keys=True)
