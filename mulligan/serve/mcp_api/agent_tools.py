"""The tools: one for each agent, and those with which a client without tasks and forms follows and answers runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import mcp_types as types
from pydantic import BaseModel, ConfigDict, Field

WAIT_SECONDS = 50
"""How long a call waits for a run. Clients give up on a request after 60 seconds, unless they are configured otherwise."""
NAME_CHARS = 64
"""Characters of a tool's name that the models of all providers accept."""
MOST_NAMED_TOOLS = 20
_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AgentCall(_Arguments):
    """The arguments of an agent's tool."""

    prompt: Annotated[str, Field(description="The task, with everything that the agent needs to know for it.")]
    metadata: Annotated[
        dict[str, str],
        Field(description="Labels of the run, for the agent's tools; some show up in traces: no secrets."),
    ] = {}


class StartRun(AgentCall):
    """The arguments of `start_run`."""

    agent: Annotated[str, Field(description="The name of the agent.")]
    run_id: Annotated[
        str | None,
        Field(description="An id for the run: the same call with the same id is the same run. Omit it for a new run."),
    ] = None


class WaitForRun(_Arguments):
    """The arguments of `wait_for_run`."""

    run_id: Annotated[str, Field(description="The id of the run.")]
    seconds: Annotated[
        float, Field(ge=0, le=WAIT_SECONDS, description="How long to wait for its end; 0: only look at it.")
    ] = WAIT_SECONDS


class DecideCall(_Arguments):
    """The arguments of `decide_call`."""

    run_id: Annotated[str, Field(description="The id of the run.")]
    call_id: Annotated[str, Field(description="The id of the call that waits for approval.")]
    decision: Annotated[Literal["approve", "deny"], Field(description="What the person has decided.")]
    reason: Annotated[str | None, Field(description="Why; the agent reads it if the call is denied.")] = None


class AnswerQuestion(_Arguments):
    """The arguments of `answer_question`."""

    run_id: Annotated[str, Field(description="The id of the run.")]
    call_id: Annotated[str, Field(description="The id of the call that asks.")]
    text: Annotated[str, Field(description="The person's answer.")]


RUN_TOOLS: dict[str, tuple[type[_Arguments], str]] = {
    "start_run": (
        StartRun,
        "Start a run of an agent and return its id at once, without waiting for the answer. Use it for work that takes "
        "minutes or hours, or to run several agents at the same time; then call wait_for_run with the id.",
    ),
    "wait_for_run": (
        WaitForRun,
        f"Wait up to {WAIT_SECONDS} seconds for the end of a run, and return its answer. If the run is not finished, the "
        "result says what it is doing: call this again. Runs continue whether or not anybody waits for them.",
    ),
    "answer_question": (
        AnswerQuestion,
        "Answer a question that a run asks a person, with what the person said. Ask the person; do not invent an answer.",
    ),
    "decide_call": (
        DecideCall,
        "Approve or deny a tool call of a run that waits for a person's approval. Only pass on what a person has decided; "
        "never decide it yourself.",
    ),
}
"""The tools beside the agents: their arguments and descriptions."""


def tools_of(agents: Iterable[dict[str, Any]]) -> list[types.Tool]:
    """The tools that a caller with these agents (as `GET /api/agents` lists them) may call, in a fixed order."""
    return [
        *(_agent_tool(agent) for agent in agents),
        *(
            types.Tool(name=name, description=description, input_schema=arguments.model_json_schema())
            for name, (arguments, description) in RUN_TOOLS.items()
        ),
    ]


def agent_of(tool: str, agents: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The agent that a tool's name stands for."""
    return next((agent for agent in agents if _tool_name(agent["name"]) == tool), None)


def output_schema(agent: dict[str, Any]) -> dict[str, Any] | None:
    """The JSON schema of an agent's output; None: text, or a schema that MCP cannot express (not an object)."""
    schemas = [each["schema"] for each in agent.get("output", ())]
    if not schemas or any(schema.get("type") != "object" for schema in schemas):
        return None
    if len(schemas) == 1:
        return dict(schemas[0])
    definitions: dict[str, Any] = {}
    for schema in schemas:
        for name, definition in schema.get("$defs", {}).items():
            if definitions.setdefault(name, definition) != definition:
                return None
    members = [{key: value for key, value in schema.items() if key != "$defs"} for schema in schemas]
    return {"type": "object", "anyOf": members, **({"$defs": definitions} if definitions else {})}


def _agent_tool(agent: dict[str, Any]) -> types.Tool:
    return types.Tool(
        name=_tool_name(agent["name"]),
        title=agent["name"],
        description=_description(agent),
        input_schema=AgentCall.model_json_schema(),
        output_schema=output_schema(agent),
    )


def _description(agent: dict[str, Any]) -> str:
    names = [tool["name"] for tool in agent.get("tools", ())]
    listed = ", ".join(names[:MOST_NAMED_TOOLS]) + (" and others" if len(names) > MOST_NAMED_TOOLS else "")
    return (
        f"Give a task to the agent {agent['name']!r}, and return its answer."
        + (f" Its tools: {listed}." if names else "")
        + " If the answer takes longer, the result has the id of the run, for wait_for_run."
    )


def _tool_name(agent: str) -> str:
    """The agent's name, if every model accepts it and no other tool has it."""
    if agent in RUN_TOOLS:
        return f"agent_{agent}"
    legal = _ILLEGAL.sub("_", agent)
    if legal == agent and len(agent) <= NAME_CHARS:
        return agent
    return f"{legal[: NAME_CHARS - 9]}_{hashlib.sha256(agent.encode()).hexdigest()[:8]}"
