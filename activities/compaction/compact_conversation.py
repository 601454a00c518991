"""Compact a conversation: a model writes a summary of its older messages. A failed summary never fails the run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio import activity

from mulligan.activities.agent_not_served import served_agent
from mulligan.activities.answers.size_limits import fit_text
from mulligan.activities.answers.without_thoughts import without_thoughts
from mulligan.activities.compaction.summary_prompt import HEADING, instructions, transcript
from mulligan.activities.heartbeat import Heartbeat, attempt_was_abandoned, heartbeating, lost_attempts
from mulligan.activities.models.call_provider import call_provider
from mulligan.activities.models.protocol import Reply, Request
from mulligan.activities.run_data.find_conversation import conversation_of
from mulligan.activities.services import Services
from mulligan.errors import ModelRequestError, ModelUnavailableError
from mulligan.model_name import ModelName
from mulligan.observe import semconv
from mulligan.observe.captured_messages import input_messages, output_messages
from mulligan.observe.spans import ChatAttempt
from mulligan.provider_plugin import BUILT_IN
from mulligan.values import AssistantMessage, ErrorInfo, Message, Usage, UserMessage
from mulligan.wire.agent_facts import Definition
from mulligan.wire.compaction import COMPACT_CONVERSATION, CompactConversation, Compacted

BYTES_PER_TOKEN = 4
"""A rough estimate, the same as the workflow's."""
ANSWER_SETTINGS = frozenset(
    {
        *("response_format", "text", "stop", "max_tokens", "max_completion_tokens", "max_output_tokens", "logit_bias"),
        *("stop_sequences", "output_config", "response_mime_type", "response_schema", "response_json_schema"),
    }
)
"""Model settings for the form of the agent's answers. They do not apply to summaries."""


class NoSummary(Exception):
    """The model's answer is not a summary, and a retry would give a similar one."""

    def __init__(self, kind: str, message: str, usage: Usage) -> None:
        super().__init__(message)
        self.kind = kind
        self.usage = usage


@dataclass(frozen=True)
class CompactConversationActivity:
    """The activity `compact_conversation`."""

    services: Services

    @activity.defn(name=COMPACT_CONVERSATION)
    async def compact_conversation(self, request: CompactConversation) -> Compacted:
        """Request a summary of the older messages. A mistake of the model or its endpoint is in the result.

        Raises:
            ApplicationError: Temporal retries after the delay in the error; or this worker does not serve the agent.
        """
        services = self.services
        await served_agent(services, request.where)
        await services.budgets.check(request.where)
        scheduled = activity.info().scheduled_time.timestamp()
        for attempt in lost_attempts():
            services.telemetry.lost_chat(request.where, self._attempt(request, attempt), start=scheduled)
        async with heartbeating() as heartbeat:
            try:
                run_provider = services.providers.of(request.run_model)
                async with conversation_of(request, run_provider, services, heartbeat) as conversation:
                    compacted = await self._summarize(request, conversation.messages[: request.cut], heartbeat)
                await services.budgets.add(request.where, request.model, compacted.usage)
                return compacted
            except NoSummary as error:
                await services.budgets.add(request.where, request.model, error.usage)
                return Compacted(usage=error.usage, error=ErrorInfo(kind=error.kind, message=str(error)))
            except (ModelRequestError, ModelUnavailableError) as error:
                return Compacted(error=ErrorInfo(kind=type(error).__name__, message=error.message))

    async def _summarize(
        self, request: CompactConversation, messages: Sequence[Message], heartbeat: Heartbeat
    ) -> Compacted:
        services, model = self.services, ModelName.parse(request.model)
        provider, telemetry = services.providers.of(request.model), services.telemetry
        # In a thread: a transcript of some megabytes takes a while.
        text = await asyncio.to_thread(transcript, messages, request.compact_at * BYTES_PER_TOKEN)
        message = UserMessage(role="user", text=text)
        is_run_model = request.model == request.run_model
        settings = (await served_agent(services, request.where)).model_settings if is_run_model else {}
        provider_request = Request(
            model=model.name,
            definition=Definition(instructions=instructions(request.compact_at), tools=[]),
            items=provider.encode(message),
            messages=[message],
            settings=_summary_settings(settings),
            timeout=services.providers.timeout(request.model, request.timeout),
        )
        sent = await services.retry_budget.wait_until_allowed(request, heartbeat)
        try:
            attempt = self._attempt(request, activity.info().attempt)
            with telemetry.chat(request.where, attempt, is_void=attempt_was_abandoned) as span:
                endpoint = services.providers.endpoint_of(request.model)
                async with services.budgets.void_counted(request.where, request.model, provider_request):
                    reply = await call_provider(provider, provider_request, telemetry, span, endpoint)
                services.retry_budget.record_success(request)
                if telemetry.content:
                    telemetry.add_content(span, semconv.INPUT_MESSAGES, input_messages([message]))
                    answer = AssistantMessage(role="assistant", text=reply.text)
                    telemetry.add_content(span, semconv.OUTPUT_MESSAGES, output_messages(answer, reply.finish_reason))
                return Compacted(heading=HEADING, summary=_summary(reply, messages), usage=reply.usage)
        except (ModelRequestError, NoSummary):
            raise
        except Exception as error:
            # An endpoint's faulty answers have many forms: each is worth a retry.
            has_begun = provider_request.written.size > 0
            raise services.retry_budget.error_to_raise(request, error, heartbeat, sent, has_begun=has_begun) from error

    def _attempt(self, request: CompactConversation, attempt: int) -> ChatAttempt:
        provider = self.services.providers.of(request.model).name
        return ChatAttempt.of(request, attempt, provider=provider, compacted_messages=request.cut)


def _summary_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's settings, also those for one provider, without what is about the form of its answers."""
    return {
        name: _summary_settings(value) if name in BUILT_IN and isinstance(value, Mapping) else value
        for name, value in settings.items()
        if name not in ANSWER_SETTINGS
    }


def _summary(reply: Reply, messages: Sequence[Message]) -> str:
    """The summary that a reply contains.

    Raises:
        NoSummary: it contains none that can replace the messages.
    """
    # Some servers write a reasoning model's thoughts into its text.
    summary = fit_text(without_thoughts(reply.text).strip())
    if reply.finish_reason in ("refusal", "content_filter"):
        raise NoSummary("refused", "The model refused to sum the conversation up.", reply.usage)
    if not summary:
        raise NoSummary("empty_summary", "The model gave no summary.", reply.usage)
    if reply.finish_reason == "length":
        raise NoSummary("truncated_summary", "The summary was cut off by the length limit.", reply.usage)
    replaced = sum(len(message.model_dump_json().encode()) for message in messages)
    if (length := len(summary.encode())) >= replaced:
        message = f"The summary is {length:,} bytes long, and what it would replace {replaced:,}."
        raise NoSummary("long_summary", message, reply.usage)
    return summary
