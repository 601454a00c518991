"""What the model was sent in a step, as it was sent: instructions, tools, messages and settings."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, JsonValue
from temporalio.client import Client

from mulligan.activities.request_draft import RequestDraft, draft_of
from mulligan.activities.run_data.conversation_cache import CachedConversation
from mulligan.client.content_store import MissingContentError, configured_content_store
from mulligan.client.origins.run_state import ResumeError, describe_existing, read_run_state
from mulligan.client.start_run import read_input
from mulligan.client.unless_missing import unless_missing
from mulligan.context_view.sent_call import SentCall, find_sent_call
from mulligan.model_name import ModelName
from mulligan.provider_plugin import settings_of
from mulligan.schema.optional_field import optional_field
from mulligan.values import Message
from mulligan.wire.agent_facts import Definition, OutputFormat
from mulligan.wire.conversation_ref import ConversationRef
from mulligan.wire.resume_page import ForkState
from mulligan.workflows.conversation.records import ConversationSummary


class ContextError(ResumeError):
    """What the model was sent cannot be shown. The message says why."""


class NoSuchStepError(ContextError):
    """The run has no such step, or the model was not called for it yet."""


class ModelContext(BaseModel):
    """What the model was sent in a step.

    `tools`: each with `name`, `description` and `parameters`, and those that the provider runs itself as its API takes them.
    """

    step: int
    model: str
    """`provider:NAME`: the last one that was called for the step."""
    instructions: str
    tools: list[dict[str, JsonValue]]
    messages: list[Message]
    settings: dict[str, JsonValue]
    """The agent's `model_settings` for this provider, without secrets."""
    output: OutputFormat | None = optional_field()
    """The format of the answer, where the provider constrains it."""
    deferred: list[str] = optional_field([])
    """The names of tools that the model had not found yet. A provider that can defer tools gets these, too, marked."""
    cleared: list[int] = optional_field([])
    """The indexes of messages of which the request had less than the conversation."""
    compacted: list[int] = optional_field([])
    """The indexes of messages that were in place of older ones: summaries."""


async def read_model_context(
    client: Client, workflow_id: str, step: int, conversation: str | None = None, run_id: str | None = None
) -> ModelContext:
    """What the model was sent in a step of a run, also if the code of the workers has changed since.

    Args:
        client: A client of the run's server.
        workflow_id: The run.
        step: The step's number, from 1. A step that a fork shares is read in the run that made it.
        conversation: The number or the name of the agent, in a workflow with several; None: the first.
        run_id: Temporal's run id; None: the newest run of the workflow id.

    Raises:
        NoSuchStepError: there is no such step, or the model was not called for it yet.
        ContextError: it cannot be put together again.
        ResumeError: there is no such run (RunNotFoundError), or no worker answers (NoWorkerError).
    """
    description = await describe_existing(client, workflow_id, run_id)
    run_input = await unless_missing(read_input(client, workflow_id, description.run_id))
    origin = run_input.fork if run_input else None
    if origin is not None and step < origin.step:
        return await read_model_context(client, origin.workflow_id, step, origin.conversation, origin.run_id)
    try:
        state, messages = await read_run_state(client, description, step, conversation)
    except ResumeError as error:
        raise (NoSuchStepError(str(error.__cause__)) if type(error) is ResumeError else error) from error
    if state.fork is None or state.fork.facts is None:
        raise NoSuchStepError(f"There is no step {step}: the run has not begun, or has no such agent.")
    sent = await find_sent_call(client, workflow_id, description.run_id or "", state.trace, state.fork.steps + 1)
    if sent is None:
        raise NoSuchStepError(f"The model was not called for step {step} yet, or the history of that call is gone.")
    definition = await _whole(state.fork.facts.definition, sent.call.where.tenant)
    return _context(sent, definition, [*_summary(state.fork), *messages], state.fork)


async def _whole(definition: Definition, tenant: str | None) -> Definition:
    """The definition, with what is in the content storage.

    Raises:
        ContextError: it is not there, or there is no content storage.
    """
    if definition.stored is None:
        return definition
    store = configured_content_store()
    if store is None:
        raise ContextError(
            "The definition of the agent is in the content storage, and there is none here: set MULLIGAN_CONTENT_DIR, or "
            "MULLIGAN_EXTERNAL_STORAGE, as for the workers."
        )
    try:
        return Definition.model_validate_json(await store.of(tenant).get(definition.stored))
    except MissingContentError as error:
        raise ContextError(str(error)) from error


def _summary(fork: ForkState) -> list[Message]:
    """The message in place of those that a compaction has removed, if it has."""
    summary = fork.conversation.get("summary")
    return [ConversationSummary.model_validate(summary).message] if summary else []


def _context(sent: SentCall, definition: Definition, messages: list[Message], fork: ForkState) -> ModelContext:
    conversation = CachedConversation(_NoItems())
    conversation.extend(messages)
    call = sent.call
    if conversation.ref != call.conversation:
        difference = _difference(conversation, call.conversation)
        raise ContextError(f"The messages of step {fork.step} cannot be read as they were sent: {difference}.")
    draft = draft_of(definition, conversation, call.features)
    model = ModelName.parse(call.model)
    tools = [tool.model_dump(mode="json") for tool in draft.definition.tools]
    visible = {tool.name for tool in draft.definition.tools}
    settings = definition.settings if sent.settings is None else sent.settings
    return ModelContext(
        step=fork.step,
        model=call.model,
        instructions=draft.definition.instructions,
        tools=[*tools, *definition.tools_of(model.provider)],
        messages=list(draft.messages),
        settings=settings_of(settings, model.provider),
        output=draft.definition.output,
        deferred=[tool.name for tool in draft.unseen.tools if tool.name not in visible] if draft.unseen else [],
        cleared=_cleared(messages, draft),
        compacted=[0] if "summary" in fork.conversation else [],
    )


def _cleared(messages: list[Message], draft: RequestDraft) -> list[int]:
    pairs = zip(messages, draft.messages, strict=True)
    return [index for index, (whole, sent) in enumerate(pairs) if whole != sent]


def _difference(conversation: CachedConversation, sent: ConversationRef) -> str:
    count = len(conversation.messages)
    if count != sent.count:
        return f"the run has {count} of them, and {sent.count} were sent"
    return "they have another digest than those that were sent"


class _NoItems:
    """A provider that writes nothing: only the messages are needed."""

    name = ""
    background = batch = None

    def encode(self, message: Message) -> list[Any]:
        """No items. `message`: any."""
        del message
        return []

    async def complete(self, request: Any) -> Any:
        """Never called."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close nothing."""
