"""Make a conversation shorter: find it, and have a model sum up its older messages. No summary never fails a run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from temporalio import activity
from temporalio.exceptions import ApplicationError

from mulligan.activities.answers.size_limits import fit_text
from mulligan.activities.heartbeat import Heartbeat, attempt_was_abandoned, heartbeating, previous_attempt_was_lost
from mulligan.activities.models.call_provider import call_provider
from mulligan.activities.models.protocol import Reply, Request
from mulligan.activities.models.summary_prompt import HEADING, instructions, transcript
from mulligan.activities.run_data.find_conversation import conversation_of
from mulligan.activities.services import Services
from mulligan.errors import ModelRequestError, ModelUnavailableError
from mulligan.model_name import ModelName
from mulligan.observe import semconv
from mulligan.observe.spans import ChatAttempt
from mulligan.values import ErrorInfo, Message, Usage, UserMessage
from mulligan.wire.agent_facts import Definition
from mulligan.wire.compaction_request import COMPACT_CONVERSATION, CompactConversation, Compacted

BYTES_PER_TOKEN = 4
"""A rough count, as the workflow makes it."""
ABOUT_ANSWERS = frozenset(
    {"response_format", "text", "stop", "max_tokens", "max_completion_tokens", "max_output_tokens", "logit_bias"}
)
"""Model settings that say what the agent's answers look like, and nothing of summaries."""


class NoSummary(Exception):
    """What the model said is no summary, and asked again it would say the like."""

    def __init__(self, kind: str, message: str, usage: Usage) -> None:
        super().__init__(message)
        self.kind = kind
        self.usage = usage


@dataclass(frozen=True)
class CompactConversationActivity:
    """The activity, with what the worker gives it."""

    services: Services

    @activity.defn(name=COMPACT_CONVERSATION)
    async def compact_conversation(self, order: CompactConversation) -> Compacted:
        """Have the older messages summed up. What the model or its endpoint does wrong is in the outcome.

        Raises:
            ApplicationError: to be tried again by Temporal, after the delay that it carries.
        """
        if previous_attempt_was_lost():
            self._say_lost(order)
        async with heartbeating() as heart:
            if order.where.agent not in self.services.registry.agents:
                # As in a rolling deploy: another worker of the queue may have it.
                raise ApplicationError(f"This worker serves no agent {order.where.agent!r}.", type="AgentNotLoaded")
            run_provider = self.services.providers[ModelName.parse(order.run_model).provider]
            try:
                async with conversation_of(order, run_provider, self.services) as prefix:
                    return await self._sum_up(order, prefix.messages[: order.cut], heart)
            except NoSummary as error:
                return Compacted(usage=error.usage, error=ErrorInfo(kind=error.kind, message=str(error)))
            except (ModelRequestError, ModelUnavailableError) as error:
                return Compacted(error=ErrorInfo(kind=type(error).__name__, message=error.message))

    async def _sum_up(self, order: CompactConversation, messages: Sequence[Message], heart: Heartbeat) -> Compacted:
        model = ModelName.parse(order.model)
        provider = self.services.providers[model.provider]
        # In a thread: of some megabytes it takes a while to write them down.
        shown = await asyncio.to_thread(transcript, messages, order.compact_at * BYTES_PER_TOKEN)
        message = UserMessage(role="user", text=shown)
        settings = (
            self.services.registry.agents[order.where.agent].model_settings if order.model == order.run_model else {}
        )
        request = Request(
            model=model.name,
            definition=Definition(instructions=instructions(order.compact_at), tools=[]),
            items=provider.encode(message),
            messages=[message],
            settings={name: value for name, value in settings.items() if name not in ABOUT_ANSWERS},
            timeout=order.timeout,
        )
        attempt = ChatAttempt(
            provider=provider.name,
            model=model.name,
            step=order.step,
            attempt=activity.info().attempt,
            compacted_messages=order.cut,
        )
        sent = await self.services.retry_budget.wait_until_allowed(order, heart)
        try:
            with self.services.telemetry.chat(order.where, attempt, is_void=attempt_was_abandoned) as span:
                reply = await call_provider(provider, request, self.services.telemetry, span)
                self.services.retry_budget.record_success(order)
                self.services.telemetry.add_content(span, semconv.INPUT_MESSAGES, [message.model_dump(mode="json")])
                self.services.telemetry.add_content(
                    span, semconv.OUTPUT_MESSAGES, [{"role": "assistant", "text": reply.text}]
                )
                return Compacted(heading=HEADING, summary=_summary(reply, messages), usage=reply.usage)
        except (ModelRequestError, NoSummary):
            raise
        except Exception as error:
            # What an endpoint does wrong has no end of shapes: each is worth another try.
            raise self.services.retry_budget.error_to_raise(order, error, heart, sent) from error

    def _say_lost(self, order: CompactConversation) -> None:
        info = activity.info()
        model = ModelName.parse(order.model)
        lost = ChatAttempt(
            provider=self.services.providers[model.provider].name,
            model=model.name,
            step=order.step,
            attempt=info.attempt - 1,
            compacted_messages=order.cut,
        )
        self.services.telemetry.lost_chat(order.where, lost, start=info.scheduled_time.timestamp())


def _summary(reply: Reply, messages: Sequence[Message]) -> str:
    """The summary.

    Raises:
        NoSummary: what the model said is none.
    """
    # Some servers give a reasoning model's thoughts as a part of its text.
    summary = fit_text(reply.text.rpartition("</think>")[2].strip())
    if reply.finish_reason in ("refusal", "content_filter"):
        raise NoSummary("refused", "The model refused to sum the conversation up.", reply.usage)
    if not summary:
        raise NoSummary("empty_summary", "The model gave no summary.", reply.usage)
    if reply.finish_reason == "length":
        raise NoSummary("truncated_summary", "The summary was cut off by the length limit.", reply.usage)
    replaced = sum(len(message.model_dump_json().encode()) for message in messages)
    if (length := len(summary.encode())) >= replaced:
        told = f"The summary is {length:,} bytes long, and what it would replace {replaced:,}."
        raise NoSummary("long_summary", told, reply.usage)
    return summary
