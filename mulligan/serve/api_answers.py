"""What `/api` answers, for its OpenAPI document. The routes send what the workers' queries have returned, as it is."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from mulligan.values import ErrorInfo, Message, Progress, Step, WaitingFor
from mulligan.wire.event_types import Event
from mulligan.wire.updates import Pending


class StartedRun(BaseModel):
    """A run that was started."""

    id: str


class StartedFork(StartedRun):
    """A fork that was started."""

    run_id: str
    """Temporal's."""


class Accepted(BaseModel):
    """The run has accepted it."""

    model_config = ConfigDict(extra="allow")

    accepted: bool = True


class ForkOrigin(BaseModel):
    """The run that a fork begins with, and the first step that is the fork's own."""

    id: str
    run_id: str | None
    step: int


class _Run(BaseModel):
    id: str
    agent: str | None
    version: str | None = None
    """The digest of the agent's file, if the agent is one, with the `label` and its `share` by which it was chosen."""
    label: str | None = None
    share: str | None = None
    tenant: str | None = None
    status: str
    forked_from: ForkOrigin | None = None
    started: datetime


class ReadRun(_Run):
    """A run: what a list shows, and what its workflow says."""

    ended: datetime | None = None
    progress: Progress | None = None
    """Null if no worker answers."""
    waiting_for: WaitingFor | None = None
    """What an open run waits for."""
    result: Any = None
    """What a run ended with: of an agent's run, an object with `status`, `output`, `steps`, `usage` and more."""
    error: ErrorInfo | None = None
    """Why a run failed."""


class ListedRun(_Run):
    """A run of a list. What has a default here is left out where there is none."""

    prompt: str | None = None
    """The first line of its task."""
    user: str | None = None
    """Who started it."""
    type: str | None = None
    """The workflow type, if it is not an agent's."""
    parent: str | None = None
    """The id of the run that started it."""
    schedule: str | None = None
    """The id of the schedule that started it."""
    seconds: float
    """From its start to its end, or until now."""


class RunList(BaseModel):
    """A page of runs."""

    runs: list[ListedRun]
    next: str | None
    """The `cursor` of the next page; null at the end."""


class EarlierRun(BaseModel):
    """The run that has what was asked for: of the same chain, or, with `id`, the one that this run was forked from."""

    run_id: str
    id: str | None = None
    conversation: str | None = None
    """The number of the agent in that run's workflow, where there is an `id`."""


class _Page(BaseModel):
    next: int | None
    """The `since` of the next page; null at the end."""
    total: int
    earlier: EarlierRun | None = None


class StepPage(_Page):
    """A page of steps."""

    steps: list[Step]


class MessagePage(_Page):
    """A page of the conversation."""

    messages: list[Message]


class PendingCall(Pending):
    """A call that waits for a person."""

    id: str
    """The id of its run, which may be a sub-agent's."""


class EventPage(BaseModel):
    """A page of stored events. Later versions may add types of events: skip those that you do not know."""

    events: list[Event]
    next: str
    """The `since` of the next page."""
    complete: bool
    """Whether there will be no more events."""


class ServedTool(BaseModel):
    """A tool of an agent."""

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON schema of its arguments."""
    timeout: float
    """Seconds."""
    attempts: int
    agent: str | None = None
    """The name of the sub-agent that it calls."""
    features: dict[str, Any] | None = None
    """What its options of features have pinned for its calls, by the names of the features: `once`, `deferred` …"""
    trust: str | None = None
    """`untrusted`: others may have written its results."""
    result: dict[str, Any] | None = None
    """The JSON schema of its result, where it is known."""
    waits: str | None = None
    """What its calls wait for: a person's `approval`, `approval of some calls`, or `answer`."""


class ServedProviderTool(BaseModel):
    """A tool that a provider runs itself."""

    provider: str
    tool: dict[str, Any]
    """As the provider's API has it."""


class ServedAgent(BaseModel):
    """An agent that the workers serve. `tools`, `mcp` and `output` are left out where a worker serves too many agents."""

    name: str
    model: str
    fallbacks: list[str]
    max_steps: int
    client_instructions: str | None
    has_tools: bool = True
    """Whether its model may have tools, of whatever kind."""
    handoffs: list[str] | None = None
    """The names of the agents that it may hand the conversation to."""
    tools: list[ServedTool] | None = None
    tools_function: str | None = None
    """The name of the function that returns the tools of each run."""
    provider_tools: list[ServedProviderTool] | None = None
    mcp: list[dict[str, Any]] | None = None
    """Its MCP servers, each with `name`, `address`, `include`, `exclude`, and `waits` as a tool has it."""
    output: list[dict[str, Any]] | None = None
    """The types of its structured output, each with `name` and `schema`."""
