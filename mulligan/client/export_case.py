"""Export a run that has ended as a case: a file that tests begin with."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError

from mulligan.client.content_store import ContentStore
from mulligan.client.origins.run_state import NoWorkerError, ResumeError, describe_existing, read_run_state
from mulligan.client.read_run import query_run, read_messages, read_steps, wait_for_end
from mulligan.content import media_of
from mulligan.values import AssistantMessage, Message, Step, UserMessage, parts_of
from mulligan.wire.agent_facts import DEFINITION_QUERY, AgentFacts, Definition
from mulligan.wire.case import CASE_VERSION, Case, CaseSettings
from mulligan.wire.resume_page import ResumeState
from mulligan.wire.start_input import StartInput

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


class ExportError(ResumeError):
    """A run cannot be exported. The message says why, and what to do."""

    verb = "exported"


async def export_case(client: Client, workflow_id: str, conversation: str | None = None) -> Case:
    """The case of a run that has ended.

    Args:
        client: A client of the server that has the run.
        workflow_id: The run; it may be that of a sub-agent, a fork, or a workflow with agents.
        conversation: The number or the name of the agent, in a workflow with several. None: the first.

    Raises:
        ResumeError: there is no such run (RunNotFoundError), no worker answers (NoWorkerError), or the run is open, never
            began, or is no longer there as a whole (ExportError).
    """
    run = client.get_workflow_handle(workflow_id)
    description = await describe_existing(client, workflow_id)
    if description.status == WorkflowExecutionStatus.RUNNING:
        raise ExportError(f"The run {workflow_id!r} is open; a case has an end. Export it when it has ended.")
    try:
        newest, _ = await read_run_state(client, description, 0, conversation, ExportError)
        if newest.fork is None or newest.fork.facts is None:
            raise ExportError(f"The run {workflow_id!r} never began: it has no steps.")
        key = newest.fork.key
        steps = [Step.model_validate(each) for each in await read_steps(client, run, conversation=key)]
        messages = _MESSAGES.validate_python(await read_messages(client, run, conversation=key))
        definition = Definition.model_validate(await query_run(run, DEFINITION_QUERY, key))
    except (RPCError, WorkflowQueryFailedError) as error:
        raise NoWorkerError(f"The run {workflow_id!r} cannot be read now: {error.message}.") from None
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise ExportError(f"The run {workflow_id!r} answers in another form than a run: {fault['msg']}.") from None
    return await _case(description, run, newest, (steps, messages, definition))


async def _case(
    description: WorkflowExecutionDescription,
    run: WorkflowHandle[Any, Any],
    newest: ResumeState,
    read: tuple[list[Step], list[Message], Definition],
) -> Case:
    steps, messages, definition = read
    own = [step for step in steps if not step.shared]
    if steps and steps[0].step != 1:
        raise ExportError(
            f"The run {description.id!r} is not whole: its first {steps[0].step - 1} steps lie in a workflow run whose "
            "retention is over."
        )
    assert newest.fork is not None
    facts = newest.fork.facts
    assert facts is not None
    end = await wait_for_end(run)
    places = [number for number, each in enumerate(messages) if isinstance(each, AssistantMessage)]
    first = places[len(places) - len(own)] if own else len(messages)
    return Case(
        version=CASE_VERSION,
        id=description.id,
        run_id=description.run_id,
        agent=newest.input.agent,
        input=_input(newest.input, messages[:first], shared=len(steps) - len(own)),
        instructions=definition.instructions,
        tools=definition.tools,
        output=(end.result or {}).get("output"),
        status=end.status,
        settings=_settings(newest.input, facts, own[0].model if own else facts.model, definition),
        messages=messages,
        steps=own,
    )


def _input(run_input: StartInput, before: list[Message], *, shared: int) -> StartInput:
    """The input with the messages before the first own step, of which the last is the prompt if a user wrote it."""
    update: dict[str, Any] = {"messages": before, "prompt": None, "traceparent": None}
    if before and isinstance(last := before[-1], UserMessage):
        update |= {"messages": before[:-1], "prompt": last.content or last.text}
    if run_input.max_steps is not None:
        update["max_steps"] = max(1, run_input.max_steps - shared)
    return run_input.without_origin.with_fields(**update)


def _settings(run_input: StartInput, facts: AgentFacts, model: str, definition: Definition) -> CaseSettings:
    return CaseSettings(
        model=model,
        max_steps=run_input.max_steps or facts.max_steps,
        max_total_tokens=run_input.max_total_tokens or facts.max_total_tokens,
        max_cost=run_input.max_cost or facts.max_cost,
        output=definition.output,
        provider_tools=definition.provider_tools,
        features=facts.features,
    )


async def copy_content(case: Case, source: ContentStore, target: ContentStore) -> int:
    """Copy the content that a case refers to. Returns how many files were copied.

    Raises:
        ChangedContentError: content was changed.
        StorageError: it is not there, or a storage cannot be read or written.
    """
    parts = [part for each in case.messages for part in media_of(parts_of(each))]
    refs = dict.fromkeys(part.ref for part in parts if part.ref)
    tenant = case.input.tenant
    for ref in refs:
        await target.of(tenant).put(await source.of(tenant).get(ref))
    return len(refs)
