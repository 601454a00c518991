"""What every way of calling a model does: the request to the provider, the spans of the attempt, and its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry.trace import Span
from temporalio import activity

from mulligan.activities.answers.inspect_answer import inspect_answer
from mulligan.activities.answers.text_calls import text_calls_of
from mulligan.activities.heartbeat import attempt_was_abandoned, lost_attempts
from mulligan.activities.models.estimated_usage import estimated_input, tokens_of
from mulligan.activities.models.protocol import Reply, Request
from mulligan.activities.request_draft import draft_of
from mulligan.activities.run_data.conversation_cache import CachedConversation
from mulligan.activities.run_data.shown_settings import shown_settings
from mulligan.activities.services import Services
from mulligan.activities.spending import attempt_key
from mulligan.agent import Agent
from mulligan.content import Media, media_of
from mulligan.model_name import ModelName
from mulligan.observe import semconv
from mulligan.observe.captured_messages import input_messages, output_messages
from mulligan.observe.spans import ChatAttempt, content_attributes
from mulligan.values import AssistantMessage, Message, Usage
from mulligan.wire.agent_facts import Definition
from mulligan.wire.live_text_in import live_text_in
from mulligan.wire.model_call import ModelAnswer, ModelCall
from mulligan.wire.request_labels import prompt_cache_key, safety_identifier
from mulligan.wire.run_context import RunContext


@dataclass(frozen=True)
class ModelAttempt:
    """The model call of a step, of which the running activity makes an attempt. `failed`: the attempts before its own."""

    services: Services
    request: ModelCall
    failed: int = 0

    def chat(self, attempt: int) -> ChatAttempt:
        """Attempt number `attempt` of the running activity, for its span."""
        request, number = self.request, self.failed + attempt
        provider = self.services.providers.of(request.model).name
        return ChatAttempt.of(request, number, provider=provider, fallback=request.fallback)

    async def open_spans(self) -> None:
        """Open the parent span of the step's spans, and write the spans of earlier attempts that were lost."""
        info, telemetry, request, lost = activity.info(), self.services.telemetry, self.request, lost_attempts()
        at = info.scheduled_time.timestamp()
        if lost or (info.attempt == 1 and not self.failed):
            await telemetry.open_group(request.where, request.step, at)
        for attempt in lost:
            telemetry.lost_chat(request.where, self.chat(attempt), start=at)

    @contextmanager
    def span_if_unsent(self) -> Iterator[None]:
        """Write the span of this attempt if the block, which finds what to send, fails: the next attempt will not."""
        try:
            yield
        except BaseException:
            attempt = self.chat(activity.info().attempt)
            with self.services.telemetry.chat(self.request.where, attempt, is_void=attempt_was_abandoned):
                raise

    def provider_request(
        self,
        agent: Agent,
        definition: Definition,
        conversation: CachedConversation,
    ) -> Request:
        """Build the request to the provider."""
        request, text_calls = self.request, text_calls_of(agent)
        labels = request.where.labels
        draft = draft_of(definition, conversation, request.features)
        return Request(
            model=ModelName.parse(request.model).name,
            definition=draft.definition,
            items=[item for items in draft.items for item in items],
            messages=draft.messages,
            settings=agent.model_settings,
            parallel_tool_calls=agent.parallel_tool_calls,
            call_as_text=text_calls.as_text if text_calls is not None else None,
            timeout=self.services.providers.timeout(request.model, request.timeout),
            prompt_cache_key=(labels.cache_key if labels else "") or _cache_key(request.where),
            safety_identifier=(labels.safety_identifier if labels else "")
            or safety_identifier(request.where.tenant, request.where.user),
            summarized_answers=request.summarized_answers or 0,
            unseen=draft.unseen,
            adapted=request.adapted,
            counted=conversation.counted,
        )

    async def take_answer(
        self,
        agent: Agent,
        definition: Definition,
        reply: Reply,
        conversation: CachedConversation,
        *,
        key: Sequence[object] = (),
    ) -> ModelAnswer:
        """Inspect the answer, and add it to the conversation in this worker's memory, and its cost to the tenant's budget.

        `key`: identifies the answer for the budget, where it may be read by several attempts.
        """
        request, usage, others = self.request, reply.usage, dict[str, Usage]()
        try:
            answer = await inspect_answer(self.services, request, agent, definition, reply, conversation)
            usage, others = answer.usage, answer.usage_of_repairs
        finally:
            budgets = self.services.budgets
            await budgets.add(request.where, request.model, usage, others, key=key)
            if reply.hosted_calls:
                names = [call.name for call in reply.hosted_calls]
                await budgets.add_hosted(request.where, request.model, names, key)
        if agent.model_settings or definition.settings:
            settings = shown_settings(agent.model_settings)
            answer.settings = settings if settings != definition.settings else None
        conversation.extend([answer.message])
        tokens, counted = answer.context_tokens, answer.usage
        tokens = counted.input_tokens + counted.output_tokens if tokens is None else tokens
        if tokens:
            conversation.counted = len(conversation.messages), tokens
        # A settled call has its result already: the next model call takes it from this cache.
        for call, prepared in zip(answer.message.tool_calls, answer.prepared, strict=True):
            if prepared.text is not None:
                self.services.cache_result(self.request.where, call, prepared.text, prepared.error)
        return answer

    async def count_lost(self, provider_request: Request) -> None:
        """Count an attempt that was lost with its worker while the model was writing: its text was sent in heartbeats."""
        lost = lost_attempts()
        if not lost or not self.services.budgets.is_limited(self.request.where.tenant):
            return
        text = live_text_in(activity.info().heartbeat_details)
        if text is not None and text.attempt in lost:
            output = tokens_of(text.start + len(text.text.encode()))
            usage = Usage(input_tokens=estimated_input(provider_request), output_tokens=output)
            key, request = attempt_key(text.attempt), self.request
            await self.services.budgets.add(request.where, request.model, usage, key=key, estimated=True)

    def add_content(self, span: Span, request: Request, reply: Reply) -> None:
        """Add which images and files the model got to its span, and the messages if spans may carry content."""
        span.set_attributes(content_attributes(_new_media(request.messages)))
        telemetry = self.services.telemetry
        if telemetry.content:
            telemetry.add_content(span, semconv.INPUT_MESSAGES, input_messages(request.messages))
            answer = AssistantMessage(role="assistant", text=reply.text, tool_calls=[*reply.calls])
            telemetry.add_content(span, semconv.OUTPUT_MESSAGES, output_messages(answer, reply.finish_reason))


def _cache_key(where: RunContext) -> str:
    return prompt_cache_key(activity.info().workflow_id or "", where.conversation, None)


def _new_media(messages: Sequence[Message]) -> list[Media]:
    """The images, files and audio since the model's last answer."""
    media: list[Media] = []
    for message in reversed(messages):
        if isinstance(message, AssistantMessage):
            break
        media[:0] = media_of(message.content)
    return media
