"""Replay a case: run the agent's code of today against what a model answered once, and compare all that it sends."""

from __future__ import annotations

import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from mulligan.agent import Agent
from mulligan.testing.recorded_model import CUT, WITHOUT_RESULT, RecordedModel, unified_diff
from mulligan.testing.run import AgentRun, load_under_test, run_loaded
from mulligan.values import AssistantMessage, UserMessage
from mulligan.wire.agent_facts import ToolDefinition
from mulligan.wire.case import Case, CaseError, parse_case

_NOTE_CHARS = 60
"""Characters at the end of a text in which the note is that it was cut."""


def load_case(path: str | Path) -> Case:
    """Read a case that `mulligan export` has written.

    Args:
        path: The file.

    Raises:
        CaseError: it cannot be read, is cut, of another version, or not a case.
    """
    try:
        return parse_case(Path(path).read_bytes(), str(path))
    except OSError as error:
        raise CaseError(f"{path} cannot be read: {error.strerror}.") from None


async def replay(
    case: Case,
    agent: Agent | str | PathLike[str],
    *,
    others: Sequence[Agent] = (),
    load: Sequence[str] = (),
    resources: object = None,
) -> AgentRun:
    """Run an agent as it is declared now against the model's answers of a case, without a server and a model.

    No tool runs: the calls get their recorded results. Compared with the case are the agent's definition, the messages
    before each model call, and the end of the run; not compared are a compaction's view, and results that are cleared.

    Args:
        case: The case, from `load_case`.
        agent: The agent, or the path of its file.
        others: More agents that the worker has.
        load: The modules that a worker loads: an agent that is a file names what they declare.
        resources: As for `run_agent`.

    Returns:
        The run, which is as the case has it.

    Raises:
        AssertionError: the code now sends or does something else. The text is a unified diff of the first difference.
        CaseError: the case is of another agent, or cannot be replayed.
        DeclarationError: the agents cannot be served together, or the agent's file is wrong.
    """
    under_test, loaded = await load_under_test(agent, others, [], None, resources, load)
    _check(case, under_test)
    model = RecordedModel(case)
    run = await run_loaded(under_test, case.run_input(), loaded, providers=model.providers)
    _compare("the instructions", case.instructions, run.instructions)
    _compare_tools(case.tools, run.tools)
    if model.difference:
        raise AssertionError(model.difference)
    _compare_end(case, run, model.answered)
    return run


def _check(case: Case, agent: Agent) -> None:
    if agent.name != case.agent:
        raise CaseError(f"The case {case.id!r} is of the agent {case.agent!r}, not of {agent.name!r}.")
    places = [*case.answers, len(case.messages)]
    for step, start, end in zip(case.steps, places, places[1:], strict=False):
        answer, between = case.messages[start], case.messages[start + 1 : end]
        for call in answer.tool_calls if isinstance(answer, AssistantMessage) else ():
            if CUT in call.arguments[-_NOTE_CHARS:]:
                raise CaseError(
                    f"The case {case.id!r} cannot be replayed: the arguments of the call {call.id!r} in step {step.step} "
                    "were too long to be kept."
                )
        if step.error is None and any(isinstance(each, UserMessage) for each in between):
            raise CaseError(
                f"The case {case.id!r} has a message that was sent to the run after step {step.step}, while it was open; "
                "such a run cannot be replayed. Export a run without such messages, or a fork from the step after it."
            )


def _compare_end(case: Case, run: AgentRun, answered: int) -> None:
    result = run.result
    status = result.status if result else "failed"
    if status == "diverged" and result is not None:
        raise AssertionError(f"The agent makes a call that the case does not have: {result.reason}")
    ended = f" {run.error}" if run.error else ""
    if answered < len(case.steps):
        raise AssertionError(
            f"The run ends ({status}) after {answered} steps; the case has {len(case.steps)} and ends ({case.status})."
            f"{ended}"
        )
    if case.status in WITHOUT_RESULT:
        return
    if status != case.status:
        raise AssertionError(f"The run ends as {status!r}; the case ends as {case.status!r}.{ended}")
    _compare("the output", _text(case.output), _text(result and result.model_dump(mode="json")["output"]))


def _compare(what: str, before: str, now: str) -> None:
    if difference := unified_diff(what, before.splitlines(), now.splitlines()):
        raise AssertionError(difference)


def _compare_tools(before: Sequence[ToolDefinition], now: Sequence[ToolDefinition]) -> None:
    """The names, then each tool by itself, so that the difference says of which tool it is."""
    _compare("the tools", *("\n".join(tool.name for tool in tools) for tools in (before, now)))
    for was, is_now in zip(before, now, strict=True):
        _compare(f"the fields of the tool {was.name!r}", _written(was), _written(is_now))


def _written(tool: ToolDefinition) -> str:
    return json.dumps(tool.model_dump(mode="json"), indent=2, ensure_ascii=False)


def _text(output: Any) -> str:
    return output if isinstance(output, str) else json.dumps(output, indent=2, ensure_ascii=False, sort_keys=True)
