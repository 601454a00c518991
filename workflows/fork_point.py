"""The place in a conversation before the model call of a step, where another run begins, and how it begins there."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from mulligan.errors import InvalidRunInputError
from mulligan.features import FEATURES
from mulligan.values import AssistantMessage, Message
from mulligan.wire.request_labels import prompt_cache_key
from mulligan.wire.resume_page import ForkState, ResumeState
from mulligan.wire.start_input import Origin, StartInput
from mulligan.workflows import limits
from mulligan.workflows.conversation.conversation import Conversation, messages_that_fit
from mulligan.workflows.running_agent import RunningAgent
from mulligan.workflows.turn import Turn
from mulligan.workflows.unfinished_calls import results_of_open_step


def fork_state(agent: RunningAgent, at: int | None, since: int) -> ResumeState | None:
    """A page of what another run needs to begin before the model call of step `at`, from message `since` on.

    `at`: None for the newest step, or the first where there is none. None: no turn was begun.

    Raises:
        ValueError: there is no such step, or the step before it is not over.
    """
    conversation = agent.conversation
    run_input = agent.input or (agent.turn.input if agent.has_turn else None)
    if run_input is None:
        return None
    newest = conversation.next_step - 1
    step = at or max(1, newest)
    _check(conversation, step, newest)
    if step <= conversation.first_step or step < conversation.view_from:
        return ResumeState(input=run_input.for_other_run, step=step, earlier=_holder(agent))
    turn = agent.turn_of(step) if agent.has_turn else None
    answered = conversation.steps[step - 1 - conversation.first_step :]
    agent_name = (answered[0].agent if answered else "") or (turn.input if turn else run_input).agent
    past = conversation.before(step, _request_span(agent, turn))
    messages = past.messages[past.cut :]
    run_input = (turn.input if turn else run_input).model_copy(update={"agent": agent_name})
    fork = _fork(agent, step, turn, past, agent_name)
    return _page(agent, run_input, turn.trace if turn else "", messages, since, fork)


def resume_state(agent: RunningAgent, since: int) -> ResumeState | None:
    """A page of what another run needs to resume this one, from message `since` on; None if no turn was begun.

    At the end are people's messages that the model has not seen.
    """
    run_input, trace = (agent.turn.input, agent.turn.trace) if agent.has_turn else (agent.input, "")
    if run_input is None:
        return None
    # The step of a run that was terminated, or has timed out, is open.
    messages = [*agent.conversation.whole_view(), *results_of_open_step(agent), *agent.inbox.new_messages()]
    return _page(agent, run_input, trace, messages, max(0, since))


def _page(
    agent: RunningAgent,
    run_input: StartInput,
    trace: str,
    messages: Sequence[Message],
    since: int,
    fork: ForkState | None = None,
) -> ResumeState:
    page = messages_that_fit(messages[since:], limits.PAGE_BYTES)
    end = since + len(page)
    state = ResumeState(input=run_input.for_other_run, trace=trace, messages=page, step=fork.step if fork else None)
    if end < len(messages):
        state.next = end
        return state
    state.fork = fork
    for feature in agent.with_method("for_resume"):
        feature.for_resume(state)
    return state


def _check(conversation: Conversation, step: int, newest: int) -> None:
    if not 1 <= step <= newest + 1:
        number = "no steps" if not newest else "1 step" if newest == 1 else f"{newest} steps"
        raise ValueError(f"There is no step {step}: it has {number}.")
    if step <= newest or not newest:
        return
    last = conversation.step(newest)
    open_calls = [f"`{call.name}` ({call.id})" for call in last.tool_calls if call.result is None] if last else []
    if open_calls:
        raise ValueError(
            f"There is no step {step} yet: step {newest} has calls without a result, {', '.join(open_calls[:5])}, which a "
            f"fork cannot take over. Fork at step {newest} or before, where the model is called again."
        )
    if conversation.messages and isinstance(conversation.messages[-1], AssistantMessage):
        raise ValueError(f"There is no step {step}: step {newest} is the last one, with the model's final answer.")


def _holder(agent: RunningAgent) -> dict[str, str] | None:
    """The run that knows the conversation before an earlier step."""
    if agent.conversation.earlier is not None:
        return agent.conversation.earlier.place
    origin = agent.turn.input.fork if agent.has_turn else None
    if origin is None:
        return None
    return {"id": origin.workflow_id, "run_id": origin.run_id, "conversation": origin.conversation}


def _request_span(agent: RunningAgent, turn: Turn | None) -> tuple[int, int]:
    """The user's request of a turn, as `Conversation.request_span`: of a former turn, the messages before its first step."""
    conversation = agent.conversation
    if turn is None or turn is agent.turn:
        return conversation.request_span
    end = conversation.steps[max(0, turn.first_step - 1 - conversation.first_step)].at
    start = end
    while start > 0 and conversation.messages[start - 1].role == "user":
        start -= 1
    return conversation.first_message + start, conversation.first_message + end


def _fork(agent: RunningAgent, step: int, turn: Turn | None, past: Conversation, name: str) -> ForkState:
    # A fork does not know the facts of an agent that had the conversation only before it: they are resolved again.
    conversation = agent.conversation
    state = past.dump(agent.run_id)
    del state["messages"], state["events"]
    if "earlier" in state:
        state["earlier"] = {"workflow_id": agent.workflow_id, "conversation": agent.key} | state["earlier"]
    index = step - 1 - conversation.first_step
    answered = conversation.steps[index].model if index < len(conversation.steps) else None
    return ForkState(
        step=step,
        conversation=state,
        key=agent.key,
        steps=step - turn.first_step if turn else 0,
        model=answered or (turn.model if turn else ""),
        cache_key=prompt_cache_key(agent.workflow_id, agent.key, turn.input if turn else agent.input),
        facts=turn.facts_of(name) if turn else None,
    )


def begin_fork(agent: RunningAgent, turn: Turn, forked: Origin) -> None:
    """Begin a turn that was opened where another run was: with its steps, and the model that it called.

    Raises:
        InvalidRunInputError: what the input says of that run is none of its messages', or the worker has no recorded tools.
    """
    if forked.tools == "recorded" and "recorded_tools" not in FEATURES:
        raise InvalidRunInputError(
            "A fork with recorded tools needs the feature 'recorded_tools', which is not installed."
        )
    if (given := turn.input.carried.state) is not None:
        try:
            state = ForkState.model_validate(given)
            agent.conversation.take_over(state.conversation)
            for feature in agent.features:
                if feature.feature in state.features:
                    feature.load(state.features[feature.feature])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fault = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
            raise InvalidRunInputError(f'"carried.state" cannot be used: {fault}.') from None
        turn.result.steps = state.steps
        if state.model in turn.models:
            turn.at = turn.models.index(state.model)
        turn.first_step = agent.conversation.next_step - state.steps
    origin = forked.model_copy(update={"instructions": None})
    turn.input = turn.input.with_fields(origin=origin, facts=None, state=None)
    agent.input = turn.input
