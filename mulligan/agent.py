"""`Agent`: a model, instructions, tools and limits, declared in Python; and an agent as the tool of another one."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from types import UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

from pydantic import Field

from mulligan.durations import as_timedelta
from mulligan.endpoint import Endpoint
from mulligan.endpoint_model import Model, endpoints_of, model_name
from mulligan.errors import DeclarationError
from mulligan.features import FEATURES, OWN, TOOL_OPTIONS
from mulligan.features.agent_feature import AgentFeature
from mulligan.features.option_faults import pin_fault
from mulligan.fixer import AskModel, Fixer
from mulligan.mcp import McpServer, check_servers
from mulligan.model_name import check_model
from mulligan.once import Once
from mulligan.output import Output, ProviderStrategy, Strategy, ToolStrategy
from mulligan.policy import HandleErrors
from mulligan.provider_tool import ProviderTool
from mulligan.schema.arguments_model import arguments_model
from mulligan.sub_agent_output import SubAgentOutput
from mulligan.tool import Tool, ToolContext, ToolError, feature_options, is_legal_name
from mulligan.values import OutputT, ToolCall

Tools = Sequence[Tool | ProviderTool]
"""Tools that workers run, and tools that providers run."""
Instructions = str | Callable[..., str | Awaitable[str]]
"""A system prompt, or a function that returns one."""
F = TypeVar("F", bound=AgentFeature)
Guard = Callable[[ToolCall, ToolContext], str | Awaitable[str | None] | None]
"""Returns why a call is denied, or None to let it run."""
RUNTIME_SETTINGS = frozenset({"model", "messages", "input", "instructions", "tools", "stream", "store", "n"})
"""Model settings that the runtime decides: in `model_settings` they would break a run."""
ClientInstructions = Literal["context", "ignore", "refuse"]
"""What becomes of instructions that a client of the HTTP server sends."""
LONGEST_HANDOFF = 52
"""Characters of the name of an agent that another one hands conversations to."""
NO_LIMIT = timedelta(0)
"""The `timeout` of an AgentTool whose runs have no time limit."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Agent(Generic[OutputT]):
    """An agent. A worker that is given a module (`--load`) serves every agent that the module contains.

    It is generic in the type of its output: type checkers read it from `output`. For a union, name it:
    `Agent[Refund | Refusal](output=Refund | Refusal, …)`.

    Args:
        name: Its name; a run's input selects the agent by it.
        model: `openai:NAME` (Responses API), `openai-chat:NAME` (Chat Completions), `anthropic:NAME`, `google:NAME` or
            `scripted:NAME`, at an endpoint of the operator's with `provider@endpoint:NAME`; a `Model`, which has an endpoint
            of its own; or a list of them: the next one is called where one refuses a request or is unavailable.
        description: What it is good for, in a sentence or two: agents that may hand conversations to it read it.
        instructions: The system prompt: a text, or a function of the RunInput, or of (RunInput, ToolContext), called once a
            run. The context has no call; it has the `resources`.
        tools: The tools that the model may call, those that its provider runs (`ProviderTool`) among them: a list, or a
            function, sync or async, of the RunInput without the conversation (`prompt`, `messages`), or of
            that and a ToolContext without a call, that returns it. The function is called when a run opens, and again on
            each other worker that works on the run: it must return the same tools for the same input.
        mcp: Servers of the Model Context Protocol; the model may call their tools too, as `server__tool`.
        handoffs: Agents, or their names, that the model may hand the conversation to, by the tools `transfer_to_NAME`: the
            run goes on with the other agent's instructions, tools and model.
        output: The type of its answer: a pydantic model, dataclass, TypedDict, a union of them, a JSON schema as a dict,
            or a `ToolStrategy` or `ProviderStrategy` of one. None: text.
        max_steps: How many model calls a run may make.
        max_repeats: In how many consecutive steps a model may make the same call (name and arguments) that fails; then
            the run ends with status `max_repeats`. None: no limit.
        max_total_tokens: Input and output tokens after which a run ends with status `max_tokens`.
        max_depth: How many levels of sub-agents (`as_tool`) may be below a run of it.
        max_sub_runs: How many runs of sub-agents may be started below a run of it, at all levels together.
        max_handoffs: How often a run that begins with it may hand its conversation over.
        max_cost: USD after which a run ends with status `max_cost`. The prices of its models must be known.
        features: What it does beside that: `Compaction`, `ClearToolResults`, `ToolSearch`, `Skills`, `CodeMode`,
            `Guarded`, `Guardrails`, `Background`, `Batch`, `Approvals`, `CallsInText`; each class once.
        handle_errors: The policy for failures (see `HandleErrors`).
        repair: As a tool's `fix`, for every tool of the agent; called after it.
        client_instructions: What becomes of instructions of clients of the HTTP server (`instructions`, system and developer
            messages): `context` adds them at the end of the system prompt, marked as the client's; `ignore` leaves them
            out, and names that in the response; `refuse` answers 400. None: `context` for trusted callers, `ignore` for
            customers.
        guard: Called before a valid call runs, with the ToolCall (its arguments valid JSON) and the ToolContext. A text
            that it returns is the reason why the call is `denied`; a guard that raises or hangs denies.
        parallel_tool_calls: Whether the model may make several calls in a step.
        model_settings: Other settings of the provider: temperature, tool_choice, reasoning … A table under a provider's name
            (`anthropic`, `google`) is for its models alone.
        model_timeout: Seconds, or a timedelta, for one attempt of a model call.
        model_patience: How long calls are retried while an endpoint is down or limits our rate. None: an hour; with a list
            of models, a minute for each but the last one.
        model_attempts: How many attempts a model call may take in all; None: only `model_patience` limits them.

    Raises:
        DeclarationError: an option, or a combination of options, cannot work.
    """

    name: str
    model: str | Model | Sequence[str | Model]
    description: str = ""
    instructions: Instructions = ""
    tools: Tools | Callable[..., Tools | Awaitable[Tools]] = ()
    mcp: Sequence[McpServer] = ()
    handoffs: Sequence[Agent[Any] | str] = ()
    output: type[OutputT] | ToolStrategy[OutputT] | ProviderStrategy[OutputT] | UnionType | Mapping[str, Any] | None = (
        None
    )
    max_steps: int = 20
    max_repeats: int | None = 5
    max_total_tokens: int | None = None
    max_depth: int = 5
    max_sub_runs: int = 100
    max_handoffs: int = 10
    max_cost: float | None = None
    features: Sequence[AgentFeature] = ()
    handle_errors: HandleErrors = True
    repair: Fixer | None = None
    guard: Guard | None = None
    client_instructions: ClientInstructions | None = None
    parallel_tool_calls: bool = True
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    model_timeout: float | timedelta = 300
    model_patience: float | timedelta | None = None
    model_attempts: int | None = None
    source: str = field(default="", init=False, repr=False)
    """The file that declares it."""
    declared_output: Output | None = field(default=None, init=False, repr=False)
    """`output`, as types with their schemas; None where the answer is text."""
    models: tuple[str, ...] = field(default=(), init=False, repr=False)
    """The names of `model`, as a list in the order in which the models are called."""
    all_features: tuple[AgentFeature, ...] = field(default=(), init=False, repr=False)
    """`features`, and those that its tools ask for, with their defaults."""
    feature_tools: tuple[Tool, ...] = field(default=(), init=False, repr=False)
    """The tools that its features add."""
    is_of_run: bool = field(default=False, init=False, repr=False)
    """Whether its tools, or its output, are those of one run."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", _declaring_file())
        self.check()

    def check(self) -> None:
        """Check all options. A worker repeats it as it starts: a list of tools may have changed since.

        Raises:
            DeclarationError: an option, or a combination of options, cannot work.
        """
        if not self.name:
            raise DeclarationError(f"{self.source}: an agent has no name; give it one.")
        context = f"{self.source}: agent {self.name!r}"
        object.__setattr__(self, "models", _parse_models(self.model, context))
        self._check_limits(context)
        object.__setattr__(self, "declared_output", self._parse_output(context))
        self.check_tools()

    def check_tools(self) -> None:
        """Check the tools, and what they have to fit to.

        Raises:
            DeclarationError: one of them cannot be used with this agent.
        """
        context = f"{self.source}: agent {self.name!r}"
        object.__setattr__(self, "feature_tools", ())
        object.__setattr__(self, "all_features", tuple(self.features))
        self._check_models(context)
        self._check_tools(context)
        self._check_features(context)
        self._check_handoffs(context)
        self._check_needs(context)
        self._add_features(context)

    @property
    def listed_tools(self) -> Sequence[Tool]:
        """The tools that workers run, those of the agent's features too; none where a function returns them for each run."""
        tools = [each for each in self._declared_tools if not isinstance(each, ProviderTool)]
        return [*tools, *self.feature_tools] if self.feature_tools else tools

    @property
    def handoff_names(self) -> tuple[str, ...]:
        """The names of the agents that it may hand the conversation to."""
        return tuple(each.name if isinstance(each, Agent) else each for each in self.handoffs)

    @property
    def finds_tools(self) -> bool:
        """Whether the model must find some of the tools before it sees them."""
        sources: list[Tool | McpServer] = [*self.listed_tools, *self.mcp]
        return any(each.traits.is_unseen for each in sources)

    @property
    def may_read_untrusted(self) -> bool:
        """Whether results of its tools may have been written by others, or of its sub-agents' tools, or of those of agents
        that it hands the conversation to.
        """
        return any(map(_reads_untrusted, with_sub_agents([self], handoffs=True, quarantined=False)))

    @property
    def provider_tools(self) -> Sequence[ProviderTool]:
        """The tools that providers run; none where a function returns the tools."""
        return [each for each in self._declared_tools if isinstance(each, ProviderTool)]

    @property
    def _declared_tools(self) -> Tools:
        return () if callable(self.tools) else self.tools

    @property
    def has_tools(self) -> bool:
        """Whether its model may have tools, of whatever kind."""
        return bool(self.tools or self.mcp or self.feature_tools)

    def with_tools(self, tools: Tools) -> Agent[OutputT]:
        """The agent for one run, with the tools that the function has returned for it. They are not checked."""
        agent = copy.copy(self)
        object.__setattr__(agent, "tools", tools)
        object.__setattr__(agent, "is_of_run", True)
        return agent

    def with_output(self, schema: Mapping[str, Any]) -> Agent[Any]:
        """The agent for one run, with the output that its caller wants. `schema`: a JSON schema.

        Raises:
            TypeError: it is no JSON schema.
            DeclarationError: a tool has the name of the output.
        """
        agent: Agent[Any] = copy.copy(self)
        object.__setattr__(agent, "output", schema)
        object.__setattr__(agent, "declared_output", Output.from_declaration(schema))
        object.__setattr__(agent, "is_of_run", True)
        agent.check_tools()
        return agent

    def model_only(self) -> Agent[Any]:
        """The agent for one run that has its model, name and limits alone."""
        agent = self.with_tools(())
        nothing: dict[str, Any] = {
            "mcp": (),
            "output": None,
            "declared_output": None,
            "features": (),
            "handoffs": (),
            "all_features": (),
            "feature_tools": (),
            "model_settings": {},
        }
        for name, value in {**nothing, "instructions": "", "client_instructions": "context"}.items():
            object.__setattr__(agent, name, value)
        return agent

    def feature(self, kind: type[F]) -> F | None:
        """The feature of a class that the agent is declared with, or None."""
        return next((each for each in self.features if isinstance(each, kind)), None)

    def has_feature(self, name: str) -> bool:
        """Whether the agent is declared with the feature of a name."""
        return any(each.name == name for each in self.features)

    def tool(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        return next((tool for tool in self.listed_tools if tool.name == name), None)

    def hides(self, name: str) -> bool:
        """Whether the model does not see the tool of a name, as only a feature calls it. It sees the tools of features."""
        is_hidden = any(each.calls_others.hides(name) for each in self.feature_tools if each.calls_others is not None)
        return is_hidden and not any(each.name == name for each in self.feature_tools)

    def mcp_server(self, name: str) -> McpServer | None:
        """The MCP server of that name, or None."""
        return next((server for server in self.mcp if server.name == name), None)

    def as_tool(  # noqa: PLR0913 - a public method whose parameters are the tool's options
        self,
        *,
        description: str,
        name: str | None = None,
        share_budget: bool = False,
        needs_approval: bool | str | Callable[..., Any] = False,
        approval_timeout: float | timedelta | None = None,
        handle_errors: HandleErrors | None = None,
        task_queue: str | None = None,
        timeout: float | timedelta | None = None,
        once: Once = False,
        on_demand: bool = False,
        output: Any = None,
        quarantine: bool = False,
    ) -> AgentTool:
        """This agent as a tool of another: each call is a run with a history of its own. It takes {"prompt": text}.

        Args:
            description: What the agent is good for; the calling model reads it.
            name: The tool's name, where it is not the agent's.
            share_budget: Whether a run gets what is left of the calling run's budget, divided among the calls of the step.
            needs_approval: As a tool's.
            approval_timeout: As a tool's.
            handle_errors: The policy where the run does not complete; the calling agent's where None.
            task_queue: The task queue of its runs, if not the calling run's.
            timeout: Seconds, or a timedelta, for a whole run; None: no limit.
            once: As a tool's.
            on_demand: As a tool's.
            output: The output of its runs, as an agent's `output`, where it is not the agent's own.
            quarantine: Whether the caller gets nothing of what a run has read but a valid object of `output`, without free
                text, and so stays trusted (docs/hostile-content.md).

        Raises:
            DeclarationError: an option makes no sense, or `output` leaves room for text in spite of `quarantine`.
        """
        tool_name = self.name if name is None else name
        limit = NO_LIMIT if timeout is None else as_timedelta(timeout)
        if timeout is not None and limit <= NO_LIMIT:
            raise DeclarationError(
                f"{self.source}: tool {tool_name!r}: timeout is {timeout!r}; give more than 0 seconds, or None."
            )
        given = {
            "needs_approval": needs_approval,
            "approval_timeout": approval_timeout,
            "once": once,
            "on_demand": on_demand,
        }
        function = _prompt_function(self.name)
        try:
            declared = SubAgentOutput.declared(output, self.output, quarantine=quarantine)
            if declared is not None and declared.schema is not None:
                self.with_output(declared.schema)
        except TypeError as error:
            raise DeclarationError(f"{self.source}: tool {tool_name!r}: {error}.") from error
        agent_tool = AgentTool(
            agent=self,
            output=declared,
            share_budget=share_budget,
            function=function,
            arguments=arguments_model(function, tool_name, ToolContext),
            name=tool_name,
            description=description,
            timeout=limit,
            handle_errors=handle_errors,
            task_queue=task_queue,
            **feature_options(given),
        )
        agent_tool.check()
        return agent_tool

    def output_strategy(self, model: str) -> Strategy:
        """How a run that begins with a model (`provider:NAME`) requests its output: one strategy for all of its models."""
        models, output = self.models if model in self.models else (model,), self.declared_output
        return "tool" if any(output and output.strategy_for(each) == "tool" for each in models) else "provider"

    def callable_names(self, strategy: Strategy) -> list[str]:
        """The names that can be called: the tools, and the output types where the strategy is `tool`."""
        outputs = self.declared_output.types if self.declared_output and strategy == "tool" else ()
        return [*(tool.name for tool in self.listed_tools), *(kind.name for kind in outputs)]

    def all_models(self, models: Iterable[str]) -> list[str]:
        """All models that a run may call whose own are `models`: also those that summarize and that repair arguments."""
        own = list(models)
        of_features = [model_name(model) for each in self.features for model in each.needs(own).models]
        return list(dict.fromkeys([*own, *of_features, *(fixer.model for fixer in self._model_fixers())]))

    def endpoints(self) -> list[Endpoint]:
        """The endpoints of its models that are declared with them (`Model`)."""
        of_fixers = [fixer.endpoint for fixer in self._model_fixers() if fixer.endpoint is not None]
        of_features = [model for each in self.features for model in each.needs(self.models).models]
        return [*endpoints_of([*_as_sequence(self.model), *of_features]), *of_fixers]

    def _model_fixers(self) -> list[AskModel]:
        fixers = (self.repair, *(getattr(tool, "fix", None) for tool in self.listed_tools))
        return [fixer for fixer in fixers if isinstance(fixer, AskModel)]

    def _check_models(self, context: str) -> None:
        for fixer in self._model_fixers():
            check_model(fixer.model, f"{context}, ask_model")
        # `stream` may be switched off: some servers break the calls of streamed answers.
        allowed = {"stream"} if self.model_settings.get("stream") is False else set()
        if taken := sorted(RUNTIME_SETTINGS & set(self.model_settings) - allowed):
            raise DeclarationError(f"{context}: model_settings may not set {', '.join(taken)}; the runtime does.")

    def _check_features(self, context: str) -> None:
        for index, each in enumerate(self.features):
            if not isinstance(each, AgentFeature):
                raise DeclarationError(
                    f"{context}: features[{index}] is {each!r}, which is not a feature; give an object such as "
                    "Compaction(at=60_000)."
                )
            kind = type(each).__name__
            if same := next((other for other in self.features[:index] if other.name == each.name), None):
                both = (
                    "is in features twice" if type(same) is type(each) else f"and {type(same).__name__} have one name"
                )
                raise DeclarationError(f"{context}: {kind} {both}; leave one out.")
            if each.parts is not None and each.parts.name in FEATURES:
                raise DeclarationError(
                    f"{context}: {kind} has the name of Mulligan's own feature {each.name!r}; give another."
                )
            if each.name not in FEATURES and (each.parts is None or each.parts.workflow is None):
                raise DeclarationError(
                    f"{context}: {kind} has no part in the workflow; set its parts: FeatureParts(…, workflow=…) with a "
                    "class of mulligan.feature.Feature."
                )
        for each in self.features:
            if fault := next((text for text, is_present in each.faults(self).items() if is_present), None):
                raise DeclarationError(f"{context}: {fault}.")
            for model in each.needs(self.models).models:
                check_model(model_name(model), f"{context}, {type(each).__name__}")

    def _check_tools(self, context: str) -> None:
        for index, thing in enumerate(self._declared_tools):
            if not isinstance(thing, Tool | ProviderTool):
                what = getattr(thing, "__name__", None) or repr(thing)
                raise DeclarationError(f"{context}: tools[{index}] ({what}) is not a tool; declare it with @tool.")
        names = [tool.name for tool in self.listed_tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            files = ", ".join(sorted({tool.source for tool in self.listed_tools if tool.name == twice[0]}))
            raise DeclarationError(f"{context}: two tools are named {twice[0]!r} (in {files}).")
        outputs = self.declared_output.types if self.declared_output else ()
        if taken := sorted({each.name for each in outputs} & {*names}):
            raise DeclarationError(f"{context}: {taken[0]!r} is the name of a tool and of its output; rename one.")
        check_servers(self.mcp, names, context)

    def _check_handoffs(self, context: str) -> None:
        for index, each in enumerate(self.handoffs):
            if not isinstance(each, Agent | str) or not (name := each if isinstance(each, str) else each.name):
                raise DeclarationError(
                    f"{context}: handoffs[{index}] is {each!r}, which is not an agent; give an Agent, or the name of one."
                )
            if name == self.name:
                raise DeclarationError(f"{context}: handoffs names the agent itself; leave it out.")
            if name in self.handoff_names[:index]:
                raise DeclarationError(f"{context}: handoffs names {name!r} twice; name each agent once.")
            if len(name) > LONGEST_HANDOFF:
                raise DeclarationError(
                    f"{context}: handoffs[{index}] is {name!r}; its tool transfer_to_… may have 64 characters, so the name "
                    f"may have {LONGEST_HANDOFF}."
                )

    def _check_needs(self, context: str) -> None:
        """Check that the features are installed that the declaration needs."""
        needs = {
            "fallback": ("a list of models", len(self.models) > 1),
            "handoffs": ("an agent with handoffs", bool(self.handoffs)),
            "sub_agents": ("an agent as a tool", any(isinstance(each, AgentTool) for each in self.listed_tools)),
            "server_questions": ("an MCP server that asks people", any(each.questions for each in self.mcp)),
        }
        used: dict[str | None, str] = {name: what for name, (what, is_present) in needs.items() if is_present}
        options = [*(each.missing for each in self.listed_tools), *(each.given for each in self.mcp)]
        used |= {TOOL_OPTIONS[each]: f"a tool, or an MCP server, with {each}" for given in options for each in given}
        for name, what in used.items():
            if name not in FEATURES:
                raise DeclarationError(f"{context}: {what} needs the feature {name!r}, which is not installed.")
        for tool in self.listed_tools:
            for option in tool.options:
                if option.name not in FEATURES and not self.has_feature(option.name):
                    raise DeclarationError(
                        f"{context}: its tool {tool.name!r} has the option {type(option).__name__} of the feature "
                        f"{option.name!r}, which the agent is not declared with; add it to features."
                    )
                if fault := pin_fault(option, tool, self):
                    raise DeclarationError(f"{context}: its tool {tool.name!r}: {fault}.")

    def _add_features(self, context: str) -> None:
        """Add the features that the tools ask for, and the tools that features add.

        Raises:
            DeclarationError: another tool, or an output, has the name of one of these.
        """
        asked = [each for name, implied in _implied() if not self.has_feature(name) and (each := implied(self))]
        object.__setattr__(self, "all_features", (*self.features, *asked))
        names = {*(tool.name for tool in self.listed_tools)}
        names |= {each.name for each in (self.declared_output.types if self.declared_output else ())}
        added: list[Tool] = []
        for feature in self.all_features:
            for tool in feature.added_tools(self):
                if tool.name in names:
                    raise DeclarationError(
                        f"{context}: {tool.name!r} is the name of a tool that {type(feature).__name__} adds; rename yours."
                    )
                names.add(tool.name)
                added.append(replace(tool, feature=feature.name))
        object.__setattr__(self, "feature_tools", tuple(added))

    def _check_limits(self, context: str) -> None:
        faults = {
            f"max_steps is {self.max_steps}; it must be 1 or more": self.max_steps < 1,
            f"max_repeats is {self.max_repeats!r}; it must be a whole number, 1 or more, or None": (
                self.max_repeats is not None and (type(self.max_repeats) is not int or self.max_repeats < 1)
            ),
            f"max_depth is {self.max_depth!r}; it must be a whole number, 0 or more": (
                type(self.max_depth) is not int or self.max_depth < 0
            ),
            f"max_sub_runs is {self.max_sub_runs!r}; it must be a whole number, 0 or more": (
                type(self.max_sub_runs) is not int or self.max_sub_runs < 0
            ),
            f"max_handoffs is {self.max_handoffs!r}; it must be a whole number, 0 or more": (
                type(self.max_handoffs) is not int or self.max_handoffs < 0
            ),
            f"max_cost is {self.max_cost!r}; it must be a number of USD above 0, or None": not _is_cost(self.max_cost),
            f"client_instructions is {self.client_instructions!r}; it must be 'context', 'ignore', 'refuse' or None": (
                self.client_instructions not in (None, *get_args(ClientInstructions))
            ),
            f"model_timeout must be more than 0 seconds, but is {self.model_timeout!r}": as_timedelta(
                self.model_timeout
            )
            <= timedelta(0),
            f"model_patience must be 0 seconds or more, but is {self.model_patience!r}": as_timedelta(
                self.model_patience or 0
            )
            < timedelta(0),
            f"model_attempts is {self.model_attempts}; it must be 1 or more, or None": (
                self.model_attempts is not None and self.model_attempts < 1
            ),
        }
        if fault := next((text for text, is_present in faults.items() if is_present), None):
            raise DeclarationError(f"{context}: {fault}.")

    def _parse_output(self, context: str) -> Output | None:
        if self.output is None or self.output is str:
            return None
        try:
            return Output.from_declaration(self.output)
        except TypeError as error:
            raise DeclarationError(f"{context}: {error}") from error


@dataclass(frozen=True, eq=False, kw_only=True)
class AgentTool(Tool):
    """A tool whose calls are runs of `agent`. `timeout` is that of a whole run, or `NO_LIMIT`."""

    agent: Agent
    share_budget: bool
    """Whether its runs use what is left of the calling run's tokens and cost."""
    output: SubAgentOutput | None = None
    """The output of its runs, where the tool declares it; None: what the agent is declared with."""

    @property
    def reads_for_caller(self) -> bool:
        """Whether what its runs have read may reach the caller as text."""
        return self.output is None or not self.output.quarantine

    @property
    def source(self) -> str:
        """The file that declares the agent."""
        return self.agent.source

    def faults(self) -> dict[str, bool]:
        """The faults of a tool; but the description is required, and the timeout may be `NO_LIMIT`."""
        others = {text: is_present for text, is_present in super().faults().items() if not text.startswith("timeout")}
        named = "its name must be 1 to 64 letters, digits, '_' or '-': give the tool one, as_tool(name=…)"
        return {
            named: not is_legal_name(self.name),
            **others,
            "description is empty; say what the agent is good for": not self.description.strip(),
        }


def with_sub_agents(
    agents: Iterable[Agent], tools: Iterable[Tool] = (), *, handoffs: bool = False, quarantined: bool = True
) -> list[Agent]:
    """The agents, then their sub-agents at all levels; each once. Agents may be sub-agents of each other.

    Args:
        agents: Where to begin.
        tools: Tools outside of any agent; the agents of those that are AgentTools count as well.
        handoffs: Whether those that they hand conversations to count as well.
        quarantined: Whether those count whose tools let no text pass.
    """
    reached: dict[int, Agent] = {}
    queue = [*agents, *(each.agent for each in tools if isinstance(each, AgentTool))]
    while queue:
        agent = queue.pop(0)
        if id(agent) not in reached:
            reached[id(agent)] = agent
            called = [each for each in agent.listed_tools if isinstance(each, AgentTool)]
            queue += [each.agent for each in called if quarantined or each.reads_for_caller]
            if handoffs:
                queue += [each for each in agent.handoffs if isinstance(each, Agent)]
    return list(reached.values())


def _reads_untrusted(agent: Agent) -> bool:
    sources: list[Tool | McpServer] = [*agent.listed_tools, *agent.mcp]
    marked = [each for each in sources if isinstance(each, AgentTool) and each.output and each.output.is_untrusted]
    is_untrusted = bool(marked) or any(each.trust == "untrusted" for each in sources)
    return is_untrusted or callable(agent.tools) or bool(agent.provider_tools)


def _prompt_function(agent: str) -> Callable[..., str]:
    """The function of an AgentTool. Its signature is the schema; the workflow starts a run and never calls it."""

    def ask(
        prompt: Annotated[
            str,
            Field(description="What it is to do, with all that it must know: it sees nothing of this conversation."),
        ],
    ) -> str:
        del prompt
        # Called only by a run that was opened when a tool had this name: it knows of no sub-agent.
        raise ToolError(f"`{agent}` is an agent now, and this run does not know that; do without it.")

    return ask


def _parse_models(model: object, context: str) -> tuple[str, ...]:
    """An agent's `model`, one or a list, as a tuple.

    Raises:
        DeclarationError: it is something else, empty, or names a model twice.
    """
    models: list[str] = []
    for each in _as_sequence(model):
        name = model_name(each) if isinstance(each, str | Model) else None
        if name is None:
            raise DeclarationError(
                f"{context}: the model is {each!r}; it must be a text such as 'openai:gpt-5-mini', or a Model."
            )
        check_model(name, context)
        if name in models:
            raise DeclarationError(f"{context}: model names {name!r} twice; name each model once.")
        models.append(name)
    if not models:
        raise DeclarationError(f"{context}: model is an empty list; name a model in it.")
    return tuple(models)


@cache
def _implied() -> list[tuple[str, Callable[[Agent], AgentFeature | None]]]:
    """By the name of a feature, the function that returns it for agents whose tools ask for it."""
    return [(each.name, kind.implied_by) for each in OWN if (kind := each.agent) is not None]


def _as_sequence(model: object) -> Sequence[object]:
    return model if isinstance(model, Sequence) and not isinstance(model, str) else (model,)


def _is_cost(value: object) -> bool:
    if value is None:
        return True
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < math.inf


def _declaring_file() -> str:
    """The file that declares the agent: the first frame outside of this module and dataclasses' generated code."""
    frame = inspect.currentframe()
    while frame and (frame.f_code.co_filename in (__file__, "<string>") or not frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename if frame else "<unknown file>"
