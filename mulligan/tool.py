"""`@tool`: a function that a model may call, with the schema of what it takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from mulligan.errors import DeclarationError
from mulligan.fixer import AskModel, Fixer
from mulligan.policy import HandleErrors
from mulligan.schema.arguments import Arguments, arguments_model

__all__ = ["Tool", "ToolContext", "ToolError", "tool"]

P = ParamSpec("P")
R = TypeVar("R")

MAX_RESULT_CHARS = 32_768


class ToolError(Exception):
    """Raised by a tool to tell the model something: its text is what the model reads."""


@dataclass(frozen=True)
class ToolContext:
    """What a tool may know about the call that it serves. A parameter of this type is not in the tool's schema.

    `idempotency_key` is the same on each attempt of this call, after crashes and continue-as-new too, and another for
    every other call of every other run: hand it to a payment or mail service and the call happens once.
    """

    idempotency_key: str
    attempt: int
    workflow_id: str
    agent: str
    call_id: str
    step: int
    metadata: Mapping[str, str] = field(default_factory=dict)
    resources: Any = None
    _heartbeat: Callable[..., None] = field(default=lambda *_: None, repr=False)

    def heartbeat(self, *details: Any) -> None:
        """Tell Temporal how far the tool has got. That the worker is alive is told without this."""
        self._heartbeat(*details)


@dataclass(frozen=True, eq=False)
class Tool:
    """A function with what a model and Temporal must know of it. `@tool` makes one."""

    function: Callable[..., Any]
    name: str
    description: str
    timeout: timedelta
    attempts: int
    retry_on: tuple[type[BaseException], ...]
    fix: Fixer | None
    handle_errors: HandleErrors | None
    needs_approval: bool | Callable[..., Any]
    approval_timeout: timedelta | None
    asks_person: bool
    task_queue: str | None
    queue_timeout: timedelta
    max_result_chars: int
    local: bool
    arguments: Arguments
    mcp_server: str | None = None
    """The MCP server whose tool it is."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, as the model is shown it."""
        return self.arguments.schema

    @property
    def source(self) -> str:
        """The file where the function stands, for messages to its author."""
        return source_of(self.function)


class TypedTool(Tool, Generic[P, R]):
    """A tool that is still its function: calling it calls the function, with the signature that type checkers see."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return cast("R", self.function(*args, **kwargs))


def source_of(thing: Any) -> str:
    """The name of the file in which a function or class stands."""
    try:
        return inspect.getsourcefile(inspect.unwrap(thing)) or "<unknown file>"
    except TypeError:
        return "<unknown file>"


TIMEOUT = timedelta(seconds=60)
LONGEST_LOCAL = timedelta(seconds=10)
"""While a local activity hangs, no query, signal or update of its run is answered."""


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
) -> Callable[[Callable[P, R]], TypedTool[P, R]]: ...
def tool(
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
) -> TypedTool[P, R] | Callable[[Callable[P, R]], TypedTool[P, R]]:
    """Declare a function, `def` or `async def`, as a tool.

    Args:
        function: The function. Its name, docstring and signature become the tool's name, description and schema.
        name: Another name: 1 to 64 of `a-z A-Z 0-9 _ -` (OpenAI's rule for function names).
        description: Another description.
        timeout: Seconds, or a timedelta, for the whole of one attempt: 60 s where None, 10 s for a local tool. A hard limit:
            the model has its answer on time.
        attempts: How often it may be started in all. Tried again are timeouts, lost workers, and exceptions in `retry_on`.
        retry_on: Exception types after which it is tried again.
        fix: Sees input that is not valid and returns what it should have been, or None.
        handle_errors: What happens on a failure; the agent's policy where None.
        needs_approval: Whether a person is asked before it runs, or a function, sync or async, of (arguments: the valid ones
            as JSON values, ToolContext) that says so; one that raises or hangs means yes.
        approval_timeout: Seconds, or a timedelta, after which a call that waits for a person is `denied`; None: the agent's.
        asks_person: The call is a question: the function never runs, a person's answer is the result.
        task_queue: Where the tool runs, if not on the agent's own queue: a worker with a GPU, or in another network.
        queue_timeout: How long a call may wait in that queue for a worker (seconds or a timedelta); then it is `tool_lost`.
        max_result_chars: A longer result is cut, with a note of how much was left out.
        local: For quick, idempotent tools: fewer events in history, but they may run again after a crash. They run on the
            run's own worker, for 10 s at most.

    Raises:
        DeclarationError: no schema can be made of the signature, or an option makes no sense.
    """

    def declare(function: Callable[P, R]) -> TypedTool[P, R]:
        the_name = name if name is not None else getattr(function, "__name__", "tool")
        limit = (LONGEST_LOCAL if local else TIMEOUT) if timeout is None else _seconds(timeout)
        waits = _seconds(queue_timeout)
        asked_for = None if approval_timeout is None else _seconds(approval_timeout)
        exceptions = retry_on if isinstance(retry_on, tuple) else (retry_on,)
        where = f"{source_of(function)}: tool {the_name!r}"
        faults = {
            "name must be 1 to 64 letters, digits, '_' or '-'": not is_legal_name(the_name),
            "timeout must be more than 0 seconds": limit <= timedelta(0),
            f"a local tool may take {LONGEST_LOCAL.seconds} s at most; give a shorter timeout, or leave local out": (
                local and limit > LONGEST_LOCAL
            ),
            "a local tool runs on its run's own worker: local and task_queue exclude each other": bool(
                local and task_queue is not None
            ),
            "queue_timeout must be more than 0 seconds": waits <= timedelta(0),
            "attempts must be 1 or more": attempts < 1,
            "max_result_chars must be 1 or more": max_result_chars < 1,
            "retry_on must be exception types": not all(
                isinstance(kind, type) and issubclass(kind, BaseException) for kind in exceptions
            ),
            "fix must be a function of one argument": not (fix is None or isinstance(fix, AskModel) or callable(fix)),
            # Else who mistypes it finds everything running unasked.
            "needs_approval must be True, False, or a function of (arguments, ToolContext)": not (
                isinstance(needs_approval, bool) or callable(needs_approval)
            ),
            "approval_timeout must be more than 0 seconds": asked_for is not None and asked_for <= timedelta(0),
            "asks_person and needs_approval exclude each other: its call waits for a person anyway": bool(
                asks_person and needs_approval
            ),
        }
        if fault := next((text for text, is_so in faults.items() if is_so), None):
            raise DeclarationError(f"{where}: {fault}.")
        try:
            arguments = arguments_model(function, the_name, ToolContext)
        except (TypeError, ValueError, NameError) as error:
            raise DeclarationError(f"{where}: {error}") from error
        return TypedTool(
            function=function,
            name=the_name,
            description=description if description is not None else arguments.description,
            timeout=limit,
            attempts=attempts,
            retry_on=exceptions,
            fix=fix,
            handle_errors=handle_errors,
            needs_approval=needs_approval,
            approval_timeout=asked_for,
            asks_person=asks_person,
            task_queue=task_queue,
            queue_timeout=waits,
            max_result_chars=max_result_chars,
            local=local,
            arguments=arguments,
        )

    return declare if function is None else declare(function)


def _seconds(given: float | timedelta) -> timedelta:
    return given if isinstance(given, timedelta) else timedelta(seconds=given)


def is_legal_name(name: str) -> bool:
    """Whether OpenAI takes it for a function's name."""
    return re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) is not None
