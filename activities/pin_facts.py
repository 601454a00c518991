"""The facts of an agent that a run is scheduled by: resolved on a worker, and pinned in the run."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import JsonValue

from mulligan.activities.mcp.servers import OfferedTools
from mulligan.activities.models.resolve_models import model_patience, resolve_models
from mulligan.activities.run_data.definitions import define
from mulligan.activities.services import Services
from mulligan.activities.tool_running.thread_bounds import TookTooLong
from mulligan.activities.tool_running.tool_context import given_to
from mulligan.agent import Agent, AgentTool, with_sub_agents
from mulligan.durations import seconds
from mulligan.errors import DeclarationError, InvalidRunInputError, MulliganError, truncated
from mulligan.features import option_classes
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.plain_function import callable_name
from mulligan.schema.well_formed import well_formed
from mulligan.tool import Tool
from mulligan.wire.agent_facts import AgentFacts, Definition, ModelFacts, ToolFacts
from mulligan.wire.start_input import StartInput

INSTRUCTIONS_LIMIT = 50.0
"""Seconds that an `instructions` function may take."""
NO_STORAGE = (
    '"agent" is "{agent}" with the feature {feature}: its workers need a storage for content. Set MULLIGAN_CONTENT_DIR, or '
    "MULLIGAN_EXTERNAL_STORAGE, on the workers."
)


async def pin_facts(services: Services, agent: Agent, run_input: StartInput, *, may_refuse: bool = True) -> AgentFacts:
    """The facts of an agent as it is declared now. Its definition is whole, and `digest` is empty.

    `may_refuse`: whether the run fails where the agent refuses instructions of clients; otherwise they are left out.

    Raises:
        InvalidRunInputError: a price is unknown, the worker has no storage that a feature needs, or the client's
            instructions are refused; or the function of the agent's instructions has failed.
    """
    has_budget = services.budgets.is_limited(run_input.tenant)
    models = resolve_models(agent, run_input, services.prices, has_budget=has_budget)
    instructions, offered = await asyncio.gather(
        _instructions(services, agent, run_input),
        services.mcp_servers.offer_tools(agent, stored=services.contents is not None),
    )
    model = run_input.model or agent.models[0]
    of_client = _client_instructions(agent, run_input, may_refuse=may_refuse)
    # Features may read files for their instructions and facts.
    definition = await asyncio.to_thread(define, agent, instructions, model, offered, of_client)
    own_models = [run_input.model] if run_input.model else agent.models
    if services.contents is None:
        _check_storage(agent, own_models)
    facts = await asyncio.to_thread(_facts, agent, own_models, models, definition, offered)
    facts.instructions_chars = len(instructions) if definition.instructions != instructions else None
    return facts


async def _instructions(services: Services, agent: Agent, run_input: StartInput) -> str:
    """The instructions of the agent for a run.

    Raises:
        InvalidRunInputError: their function has failed, or has returned no text.
    """
    if (origin := run_input.carried.origin) is not None and origin.instructions is not None:
        return origin.instructions
    if isinstance(agent.instructions, str):
        return agent.instructions
    try:
        given = given_to(agent.instructions, agent.name, run_input, services.resources.of_agent(agent.name))
        instructions = await services.runtime.ask(agent.instructions, given, limit=INSTRUCTIONS_LIMIT, read=_as_text)
        return str(well_formed(instructions))
    except MulliganError:
        raise  # a sentence of our own, as of an agent's file
    except TookTooLong:
        why = f"took more than {INSTRUCTIONS_LIMIT:g} s."
    except DeclarationError as error:
        why = error_text(error)
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything
        why = f"raised {type_name(error)}: {error_text(error)}"
    name = callable_name(agent.instructions)
    raise InvalidRunInputError(
        truncated(f'"agent" is "{agent.name}": the function of its instructions, `{name}`, {why}')
    )


def _as_text(returned: Any) -> str:
    """The instructions, as the function has returned them.

    Raises:
        DeclarationError: they are no text, as where a `return` is missing.
    """
    if isinstance(returned, str):
        return str(returned)
    written = "None" if returned is None else f"a value of type {type_name(returned)}"
    raise DeclarationError(f"returned {written}; it must return a text.")


def _client_instructions(agent: Agent, run_input: StartInput, *, may_refuse: bool) -> str:
    """What the client wants the agent to observe, as far as the agent accepts it.

    Those that a conversation had before its agent began to refuse them are left out.

    Raises:
        InvalidRunInputError: the agent refuses such instructions.
    """
    given = (run_input.client_instructions or "").strip()
    is_new = run_input.carried.origin is None
    policy = agent.client_instructions or ("ignore" if run_input.carried.instructions_by_customer else "context")
    if given and policy == "refuse" and is_new and may_refuse:
        raise InvalidRunInputError(
            f'"client_instructions" is refused: the agent "{agent.name}" has its own instructions. Leave it out.'
        )
    return given if policy == "context" else ""


def _check_storage(agent: Agent, models: Sequence[str]) -> None:
    """Check that no feature of the agent needs the storage that the worker does not have.

    Raises:
        InvalidRunInputError: one does.
    """
    for feature in agent.all_features:
        if feature.needs(models).storage:
            raise InvalidRunInputError(NO_STORAGE.format(agent=agent.name, feature=type(feature).__name__))


def _facts(
    agent: Agent,
    own_models: Sequence[str],
    models: ModelFacts,
    definition: Definition,
    offered: OfferedTools,
) -> AgentFacts:
    tools = [*agent.listed_tools, *offered.tools]
    return AgentFacts(
        **dict(models),
        max_steps=agent.max_steps,
        max_repeats=agent.max_repeats,
        max_total_tokens=agent.max_total_tokens,
        max_sub_runs=agent.max_sub_runs,
        model_timeout=seconds(agent.model_timeout),
        model_patience=model_patience(agent),
        model_attempts=agent.model_attempts,
        features={each.name: dict(each.facts(own_models)) for each in agent.all_features},
        tools={tool.name: _tool_facts(agent, tool, offered.originals.get(tool.name)) for tool in tools},
        definition=definition,
        digest="",
        structured=agent.declared_output is not None,
        tools_by_function=agent.is_of_run,
        guarded=agent.guard is not None or any(callable(tool.traits.policy) for tool in tools),
    )


def _tool_facts(agent: Agent, tool: Tool, mcp: str | None) -> ToolFacts:
    facts = ToolFacts(
        timeout=tool.timeout.total_seconds(),
        queue_timeout=tool.queue_timeout.total_seconds() if tool.task_queue else None,
        attempts=tool.attempts,
        task_queue=tool.task_queue,
        local=tool.local,
        mcp=mcp,
        may_ask_person=tool.asks,
        makes_calls=tool.calls_others is not None,
        feature=tool.feature,
        role=tool.role,
        untrusted=tool.trust == "untrusted",
        asks=tool.traits.asks_first,
        features=pinned_options(tool, agent),
    )
    if isinstance(tool, AgentTool):
        facts.agent, facts.max_depth, facts.share_budget = tool.agent.name, agent.max_depth, tool.share_budget
        # What agents read that are known by name only, as targets of handoffs, is not known here.
        below = with_sub_agents([tool.agent], handoffs=True, quarantined=False)
        facts.untrusted = tool.agent.may_read_untrusted or any(map(_names_others, below))
        if (output := tool.output) is not None:
            facts.output_schema, facts.checks_output, facts.quarantine = output.schema, True, output.quarantine
            facts.untrusted = output.is_untrusted or (facts.untrusted and not output.quarantine)
        if tool.share_budget:
            facts.max_total_tokens, facts.max_cost = tool.agent.max_total_tokens, tool.agent.max_cost
    return facts


def _names_others(agent: Agent) -> bool:
    return any(isinstance(each, str) for each in agent.handoffs)


def pinned_options(tool: Tool, agent: Agent) -> dict[str, JsonValue]:
    """What the options of features are scheduled by for the calls of a tool, by the names of the features."""
    given = [type(each) for each in tool.options]
    options = (*tool.options, *(kind() for kind in option_classes().values() if kind not in given))
    return {each.name: pin for each in options if (pin := each.pin(tool, agent)) is not None}
