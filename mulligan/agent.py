"""`Agent`: a model, instructions, tools and limits, declared in Python and known by its name; and who knows them all."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from mulligan.agent_tool import AgentTool, agent_tool
from mulligan.errors import DeclarationError
from mulligan.fixer import AskModel, Fixer
from mulligan.mcp import McpServer, check_servers
from mulligan.model_name import check_model
from mulligan.output import Output, Strategy
from mulligan.policy import HandleErrors
from mulligan.run_input import RunInput
from mulligan.tool import Tool, ToolContext
from mulligan.values import ToolCall

__all__ = ["Agent"]

Instructions = str | Callable[[RunInput], str | Awaitable[str]]
Guard = Callable[[ToolCall, ToolContext], str | Awaitable[str | None] | None]
LEAST_COMPACT_AT = 1_000
"""Tokens. In less, the summary and the words around it would be most of the conversation."""
SETTINGS_OF_OUR_OWN = frozenset({"model", "messages", "input", "instructions", "tools", "stream", "store", "n"})
"""Model settings that the runtime itself decides: given in `model_settings` they would break a run."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Agent:
    """An agent. A worker that is given a module (`--load`) serves every agent that the module holds.

    Args:
        name: Its name, by which runs ask for it.
        model: `openai:NAME` (Responses API), `openai-chat:NAME` (Chat Completions) or `scripted:NAME`; or a list of them:
            the next one is asked where one refuses, or is not to be had.
        instructions: What the model is told first: a text, or a function of the RunInput, called once a run.
        tools: What the model may call.
        mcp: Servers of the Model Context Protocol, whose tools it may call too, as `server__tool`.
        output: What its answer must be: a pydantic model, dataclass, TypedDict, a union of them, a JSON schema as a dict,
            or a `ToolStrategy` or `ProviderStrategy` of one. None: text.
        max_steps: How many model calls a run may make.
        max_total_tokens: Input and output tokens after which a run ends with status `max_tokens`.
        max_depth: How many levels of sub-agents (`as_tool`) may be below a run of it.
        max_cost: USD after which a run ends with status `max_cost`. The prices of its models must be known.
        compact_at: Tokens (1,000 or more) of conversation from which on its older steps are summed up, by a model call of
            its own. None: never.
        compact_model: Who sums up; None: the run's model.
        handle_errors: The policy for what goes wrong (see `HandleErrors`).
        repair: As a tool's `fix`, for every tool of the agent; asked after it.
        guard: Asked before a valid call runs, with the ToolCall (its arguments valid JSON) and the ToolContext. A text
            that it returns is the reason why the call is `denied`; a guard that raises or hangs denies.
        calls_in_text: For models without tool calls of their own: calls that stand as JSON in the text are taken as calls.
        parallel_tool_calls: Whether the model may ask for several calls in a step.
        model_settings: What else the provider takes: temperature, tool_choice, reasoning …
        model_timeout: Seconds, or a timedelta, for one attempt of a model call.
        model_patience: How long an endpoint that is down or limits us is waited for. None: an hour; of a list of models each
            but the last that is asked, a minute.
        model_attempts: How many attempts a model call may take in all; None: no count beside the patience.
        approval_timeout: Seconds, or a timedelta, after which a call that waits for a person is `denied`. None: never.

    Raises:
        DeclarationError: something in it cannot work.
    """

    name: str
    model: str | Sequence[str]
    instructions: Instructions = ""
    tools: Sequence[Tool] = ()
    mcp: Sequence[McpServer] = ()
    output: Any = None
    max_steps: int = 20
    max_total_tokens: int | None = None
    max_depth: int = 5
    max_cost: float | None = None
    compact_at: int | None = None
    compact_model: str | None = None
    handle_errors: HandleErrors = True
    repair: Fixer | None = None
    guard: Guard | None = None
    calls_in_text: bool = False
    parallel_tool_calls: bool = True
    model_settings: Mapping[str, Any] = field(default_factory=dict)
    model_timeout: float | timedelta = 300
    model_patience: float | timedelta | None = None
    model_attempts: int | None = None
    approval_timeout: float | timedelta | None = None
    source: str = field(default="", init=False, repr=False)
    answers: Output | None = field(default=None, init=False, repr=False)
    """`output`, read: its types with their schemas."""
    models: tuple[str, ...] = field(default=(), init=False, repr=False)
    """`model`, as a list: the one that is asked first, and who is asked after it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", _declared_in())
        object.__setattr__(self, "models", read_models(self.model, f"{self.source}: agent {self.name!r}"))
        self._check()

    def tool(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        return next((tool for tool in self.tools if tool.name == name), None)

    def mcp_server(self, name: str) -> McpServer | None:
        """The MCP server of that name, or None."""
        return next((server for server in self.mcp if server.name == name), None)

    def as_tool(
        self,
        *,
        description: str,
        name: str | None = None,
        share_budget: bool = False,
        needs_approval: bool | Callable[..., Any] = False,
        approval_timeout: float | timedelta | None = None,
        handle_errors: HandleErrors | None = None,
        task_queue: str | None = None,
        timeout: float | timedelta | None = None,
    ) -> AgentTool:
        """This agent as a tool of another: each call is a run with a history of its own. It takes {"prompt": text}.

        Args:
            description: What the calling model is told that it is good for.
            name: The tool's name, where it is not the agent's.
            share_budget: Whether a run gets what is left of the calling run's budget, divided among the calls of the step.
            needs_approval: As a tool's.
            approval_timeout: As a tool's.
            handle_errors: The policy where it does not complete; the calling agent's where None.
            task_queue: Where its runs are served, if not on the calling run's queue.
            timeout: Seconds, or a timedelta, for a whole run; None: no limit.

        Raises:
            DeclarationError: an option makes no sense.
        """
        return agent_tool(
            self,
            name=name,
            description=description,
            share_budget=share_budget,
            needs_approval=needs_approval,
            approval_timeout=approval_timeout,
            handle_errors=handle_errors,
            task_queue=task_queue,
            timeout=timeout,
        )

    def output_by(self, model: str) -> Strategy:
        """How a run that begins with a model (`provider:NAME`) is asked for its output: one way for all of the list."""
        models = self.models if model in self.models else (model,)
        return "tool" if any(self.answers and self.answers.by(each) == "tool" for each in models) else "provider"

    def callable_by(self, output_by: Strategy) -> list[str]:
        """The names that its model may call: the tools, and the output where it is given by a call."""
        outputs = self.answers.types if self.answers and output_by == "tool" else ()
        return [*(tool.name for tool in self.tools), *(kind.name for kind in outputs)]

    def asks(self, models: Iterable[str]) -> list[str]:
        """All models that a run may ask whose own are `models`: also who sums up, and who mends."""
        fixers = (self.repair, *(tool.fix for tool in self.tools))
        mend = [fixer.model for fixer in fixers if isinstance(fixer, AskModel)]
        return list(dict.fromkeys([*models, *filter(None, [self.compact_model]), *mend]))

    def _check(self) -> None:
        where = f"{self.source}: agent {self.name!r}"
        if not self.name:
            raise DeclarationError(f"{self.source}: an agent has no name.")
        for fixer in (self.repair, *(getattr(thing, "fix", None) for thing in self.tools)):
            if isinstance(fixer, AskModel):
                check_model(fixer.model, f"{where}, ask_model")
        for index, thing in enumerate(self.tools):
            if not isinstance(thing, Tool):
                what = getattr(thing, "__name__", None) or repr(thing)
                raise DeclarationError(f"{where}: tools[{index}] ({what}) is no tool; declare it with @tool.")
        names = [tool.name for tool in self.tools]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            files = ", ".join(sorted({tool.source for tool in self.tools if tool.name == twice[0]}))
            raise DeclarationError(f"{where}: two tools are named {twice[0]!r} (in {files}).")
        check_servers(self.mcp, names, where)
        self._read_output(where, names)
        if self.max_steps < 1:
            raise DeclarationError(f"{where}: max_steps is {self.max_steps}; it must be 1 or more.")
        if type(self.max_depth) is not int or self.max_depth < 0:
            raise DeclarationError(f"{where}: max_depth is {self.max_depth!r}; it must be a whole number, 0 or more.")
        if self.compact_at is not None and (type(self.compact_at) is not int or self.compact_at < LEAST_COMPACT_AT):
            least = f"it must be a whole number of tokens, {LEAST_COMPACT_AT:,} or more, or None"
            raise DeclarationError(f"{where}: compact_at is {self.compact_at!r}; {least}.")
        if self.compact_model is not None:
            if self.compact_at is None:
                raise DeclarationError(f"{where}: compact_model is set, but compact_at, by which it is asked, is not.")
            check_model(self.compact_model, f"{where}, compact_model")
        check_cost(self.max_cost, where)
        if seconds(self.model_timeout) <= 0 or seconds(self.model_patience or 0) < 0:
            raise DeclarationError(f"{where}: model_timeout and model_patience must be more than 0 seconds.")
        if self.model_attempts is not None and self.model_attempts < 1:
            raise DeclarationError(f"{where}: model_attempts is {self.model_attempts}; it must be 1 or more, or None.")
        if self.approval_timeout is not None and seconds(self.approval_timeout) <= 0:
            raise DeclarationError(f"{where}: approval_timeout must be more than 0 seconds, or None.")
        # Whether answers are streamed is the runtime's, but for servers that break the calls of streamed ones.
        allowed = {"stream"} if self.model_settings.get("stream") is False else set()
        if ours := sorted(SETTINGS_OF_OUR_OWN & set(self.model_settings) - allowed):
            raise DeclarationError(f"{where}: model_settings may not set {', '.join(ours)}; the runtime does.")

    def _read_output(self, where: str, tools: Sequence[str]) -> None:
        """What `output` declares; a text is what a model answers anyway."""
        if self.output is None or self.output is str:
            return
        try:
            answers = Output.declared(self.output)
        except TypeError as error:
            raise DeclarationError(f"{where}: {error}") from error
        if taken := sorted({each.name for each in answers.types} & set(tools)):
            raise DeclarationError(f"{where}: {taken[0]!r} is the name of a tool and of its output; rename one.")
        object.__setattr__(self, "answers", answers)


def seconds(duration: float | timedelta) -> float:
    """A duration as seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def read_models(model: object, where: str) -> tuple[str, ...]:
    """An agent's `model`: one, or a list in the order in which they are asked.

    Raises:
        DeclarationError: it is something else, empty, or names one twice.
    """
    models = tuple(model) if isinstance(model, Sequence) and not isinstance(model, str) else (model,)
    if not models:
        raise DeclarationError(f"{where}: model is an empty list; name a model in it.")
    for each in models:
        if not isinstance(each, str):
            raise DeclarationError(f"{where}: the model is {each!r}; it must be a text such as 'openai:gpt-5-mini'.")
        check_model(each, where)
        if models.count(each) > 1:
            raise DeclarationError(f"{where}: model names {each!r} twice; each is asked once for a step.")
    return models


def check_cost(max_cost: object, where: str) -> None:
    """Whether a limit of cost is one.

    Raises:
        DeclarationError: it is not.
    """
    if max_cost is None:
        return
    if isinstance(max_cost, bool) or not isinstance(max_cost, int | float) or not 0 < max_cost < math.inf:
        raise DeclarationError(f"{where}: max_cost is {max_cost!r}; it must be a number of USD above 0, or None.")


def _declared_in() -> str:
    """The file that declares the agent: the first frame outside of this module and dataclasses' generated code."""
    frame = inspect.currentframe()
    while frame and (frame.f_code.co_filename in (__file__, "<string>") or not frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename if frame else "<unknown file>"
