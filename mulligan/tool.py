"""`@tool`: a function that a model may call, with the schema of its arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from mulligan.durations import as_timedelta
from mulligan.errors import DeclarationError
from mulligan.fixer import AskModel, Fixer
from mulligan.policy import HandleErrors
from mulligan.schema.arguments_model import Arguments, ArgumentsModel, arguments_model

__all__ = ["Tool", "ToolContext", "ToolError", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

MAX_RESULT_CHARS = 32_768
DEFAULT_TIMEOUT = timedelta(seconds=60)
MAX_LOCAL_TIMEOUT = timedelta(seconds=10)
"""While a local activity hangs, no query, signal or update of its run is answered."""


class ToolError(Exception):
    """A tool raises it to report a failure to the model: its text is the call's result."""


@dataclass(frozen=True)
class ToolContext:
    """Facts about the call that a tool runs for. A parameter of this type is not in the tool's schema.

    `idempotency_key` is the same on each attempt of this call, after crashes and continue-as-new too, and another for
    every other call of every other run: hand it to a payment or mail service and the call happens once.
    """

    idempotency_key: str
    attempt: int
    """The number of this attempt, from 1."""
    workflow_id: str
    """The run's workflow id."""
    agent: str
    """The agent's name."""
    call_id: str
    """The call's id."""
    step: int
    """The number of the step, from 1."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The `metadata` of the run's input."""
    resources: Any = None
    """What `resources()` of the loaded module yields; None without it."""
    _heartbeat: Callable[..., None] = field(default=lambda *_: None, repr=False)
    _ask: Any = field(default=None, repr=False)
    """For tools of MCP servers: the function that asks a person, and what people replied before (wire/questions.py)."""
    _replies: Any = field(default=None, repr=False)

    def heartbeat(self, *details: Any) -> None:
        """Record a tool's progress in Temporal. The heartbeats that show that the worker is alive are sent without this.

        Args:
            *details: JSON values; what was recorded last is shown while a run waits for the tool.
        """
        self._heartbeat(*details)


@dataclass(frozen=True, eq=False, kw_only=True)
class Tool:
    """A function and what a model and Temporal must know about it. `@tool` makes one.

    The options of `tool` are fields: `name`, `description`, `timeout`, `attempts`, `retry_on`, `fix`, `handle_errors`,
    `needs_approval`, `approval_timeout`, `task_queue`, `queue_timeout`, `max_result_chars`, `local`.

    Attributes:
        function: The function that is called.
        arguments: The parser and JSON schema of its arguments.
        asks_person: Whether its result is a person's answer (as of `ask_person`).
        isolated: Whether it runs in a process of its own.
    """

    function: Callable[..., Any]
    arguments: Arguments
    name: str
    description: str
    timeout: timedelta
    attempts: int = 1
    retry_on: tuple[type[BaseException], ...] = ()
    fix: Fixer | None = None
    handle_errors: HandleErrors | None = None
    needs_approval: bool | Callable[..., Any] = False
    approval_timeout: timedelta | None = None
    asks_person: bool = False
    task_queue: str | None = None
    queue_timeout: timedelta = timedelta(hours=1)
    max_result_chars: int = MAX_RESULT_CHARS
    local: bool = False
    isolated: bool = False
    mcp_server: str | None = None
    """The name of the MCP server that serves it; None for a tool of this process."""
    asks: bool = False
    """Whether its MCP server may ask a person during a call."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, as the model gets it."""
        return self.arguments.schema

    @property
    def source(self) -> str:
        """The file that defines the function, for messages to its author."""
        return source_file(self.function)

    def check(self) -> None:
        """Check that each option can work, alone and with the others.

        Raises:
            DeclarationError: one cannot; the message names the file, the tool and the option.
        """
        if fault := next((text for text, is_present in self.faults().items() if is_present), None):
            raise DeclarationError(f"{self.source}: tool {self.name!r}: {fault}.")

    def faults(self) -> dict[str, bool]:
        """What may be wrong with the options, as the end of a sentence, and whether it is."""
        return {
            "name must be 1 to 64 letters, digits, '_' or '-'": not is_legal_name(self.name),
            "timeout must be more than 0 seconds": self.timeout <= timedelta(0),
            (
                f"a local tool may take {MAX_LOCAL_TIMEOUT.seconds} s at most; give a shorter timeout, or leave local out"
            ): self.local and self.timeout > MAX_LOCAL_TIMEOUT,
            "a local tool runs on its run's own worker: local and task_queue exclude each other; leave one out": (
                self.local and self.task_queue is not None
            ),
            "queue_timeout must be more than 0 seconds": self.queue_timeout <= timedelta(0),
            f"attempts must be 1 or more, but is {self.attempts}": self.attempts < 1,
            f"max_result_chars must be 1 or more, but is {self.max_result_chars}": self.max_result_chars < 1,
            "retry_on must be exception types": not all(
                isinstance(kind, type) and issubclass(kind, BaseException) for kind in self.retry_on
            ),
            "fix must be a function of one argument, or ask_model(…)": not (
                self.fix is None or isinstance(self.fix, AskModel) or callable(self.fix)
            ),
            # Otherwise a mistyped value would mean that nobody is asked.
            "needs_approval must be True, False, or a function of (arguments, ToolContext)": not (
                isinstance(self.needs_approval, bool) or callable(self.needs_approval)
            ),
            "approval_timeout must be more than 0 seconds, or None": (
                self.approval_timeout is not None and self.approval_timeout <= timedelta(0)
            ),
            "an isolated tool runs in another process, without a ToolContext: remove that parameter, or isolated": (
                self.isolated and getattr(self.arguments, "context_parameter", None) is not None
            ),
            NOT_IMPORTABLE: self.isolated and reference_of(self.function) is None,
            "asks_person and needs_approval exclude each other: its call waits for a person anyway": bool(
                self.asks_person and self.needs_approval
            ),
        }


class TypedTool(Tool, Generic[P, R]):
    """A tool that can be called as its function, with the same signature for type checkers."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return cast("R", self.function(*args, **kwargs))


NOT_IMPORTABLE = (
    "an isolated tool is imported by name in another process, so its function must be at the top level of a module that "
    "can be imported (not in `__main__`, a lambda, or inside another function)"
)


def reference_of(function: Callable[..., Any]) -> str | None:
    """`module:qualified.name`, by which another process finds a function; None where it cannot."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    return f"{module}:{name}" if module and module != "__main__" and name and "<" not in name else None


def source_file(thing: Any) -> str:
    """The file that defines a function or class; `<unknown file>` where there is none."""
    try:
        return inspect.getsourcefile(inspect.unwrap(thing)) or "<unknown file>"
    except TypeError:
        return "<unknown file>"


@overload
def tool(function: Callable[P, R], /) -> TypedTool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | timedelta | None = None,
    attempts: int = 1,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (),
    fix: Fixer | None = None,
    handle_errors: HandleErrors | None = None,
    needs_approval: bool | Callable[..., Any] = False,
    approval_timeout: float | timedelta | None = None,
    asks_person: bool = False,
    task_queue: str | None = None,
    queue_timeout: float | timedelta = timedelta(hours=1),
    max_result_chars: int = MAX_RESULT_CHARS,
    local: bool = False,
    isolated: bool = False,
) -> Callable[[Callable[P, R]], TypedTool[P, R]]: ...
def tool(  # noqa: PLR0913 - a public decorator whose parameters are the tool's options
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | timedelta | None = None,
    attempts: int = 1,
    retry_on: type[BaseException] | tuple[type[BaseException], ...] = (),
    fix: Fixer | None = None,
    handle_errors: HandleErrors | None = None,
    needs_approval: bool | Callable[..., Any] = False,
    approval_timeout: float | timedelta | None = None,
    asks_person: bool = False,
    task_queue: str | None = None,
    queue_timeout: float | timedelta = timedelta(hours=1),
    max_result_chars: int = MAX_RESULT_CHARS,
    local: bool = False,
    isolated: bool = False,
) -> TypedTool[P, R] | Callable[[Callable[P, R]], TypedTool[P, R]]:
    """Declare a function, `def` or `async def`, as a tool.

    Args:
        function: The function. Its name, docstring and signature become the tool's name, description and schema.
        name: Another name: 1 to 64 of `a-z A-Z 0-9 _ -` (OpenAI's rule for function names).
        description: Another description.
        timeout: Seconds, or a timedelta, for one attempt: 60 s where None, 10 s for a local tool. A hard limit: then the
            model gets a `tool_timeout`, whatever the function does.
        attempts: How often it may be started in all. Timeouts, lost workers, and exceptions in `retry_on` are retried.
        retry_on: Exception types that are retried.
        fix: A fixer: it gets invalid input and returns corrected arguments, or None.
        handle_errors: What happens on a failure; the agent's policy where None.
        needs_approval: Whether a person is asked before it runs, or a function, sync or async, of (arguments: the valid ones
            as JSON values, ToolContext) that returns it; one that raises or hangs counts as True.
        approval_timeout: Seconds, or a timedelta, after which a call that waits for a person is `denied`; None: the agent's.
        asks_person: The call is a question to a person, whose answer is the result; the function never runs.
        task_queue: Where the tool runs, if not on the agent's own queue: a worker with a GPU, or in another network.
        queue_timeout: How long a call may wait in that queue for a worker (seconds or a timedelta); then it is `tool_lost`.
        max_result_chars: A longer result is cut, with a note of how much was left out.
        local: For quick, idempotent tools: fewer events in history, but they may run again after a crash. They run on the
            run's own worker, for 10 s at most.
        isolated: Each call runs in a child process of the worker, which is killed when the time is over or it takes more
            than 512 MB of memory, whatever the function does. For code that may hang, crash or eat memory. The
            function must be at the top level of a module and takes no ToolContext.

    Raises:
        DeclarationError: no schema can be made of the signature, or an option cannot work.
    """

    def declare(function: Callable[P, R]) -> TypedTool[P, R]:
        tool_name = name if name is not None else getattr(function, "__name__", "tool")
        default_timeout = MAX_LOCAL_TIMEOUT if local else DEFAULT_TIMEOUT
        arguments = _arguments_of(function, tool_name)
        declared: TypedTool[P, R] = TypedTool(
            function=function,
            arguments=arguments,
            name=tool_name,
            description=description if description is not None else arguments.description,
            timeout=default_timeout if timeout is None else as_timedelta(timeout),
            attempts=attempts,
            retry_on=retry_on if isinstance(retry_on, tuple) else (retry_on,),
            fix=fix,
            handle_errors=handle_errors,
            needs_approval=needs_approval,
            approval_timeout=None if approval_timeout is None else as_timedelta(approval_timeout),
            asks_person=asks_person,
            task_queue=task_queue,
            queue_timeout=as_timedelta(queue_timeout),
            max_result_chars=max_result_chars,
            local=local,
            isolated=isolated,
        )
        declared.check()
        return declared

    return declare if function is None else declare(function)


def _arguments_of(function: Callable[..., Any], name: str) -> ArgumentsModel:
    try:
        return arguments_model(function, name, ToolContext)
    except (TypeError, ValueError, NameError) as error:
        raise DeclarationError(f"{source_file(function)}: tool {name!r}: {error}") from error


def is_legal_name(name: str) -> bool:
    """Whether OpenAI accepts it as the name of a function."""
    return re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) is not None
