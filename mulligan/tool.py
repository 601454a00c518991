"""`@tool`: a function that a model may call, with the schema of its arguments."""

from __future__ import annotations

import functools
import inspect
import io
import pickle
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, cast, overload

from mulligan.durations import as_timedelta, is_duration
from mulligan.errors import DeclarationError
from mulligan.features import TOOL_OPTIONS, option_classes
from mulligan.features.option_faults import option_faults
from mulligan.features.tool_option import ToolOption, Traits
from mulligan.fixer import AskModel, Fixer
from mulligan.foreign_results import Trust
from mulligan.once import Once
from mulligan.policy import HandleErrors
from mulligan.schema.arguments_model import Arguments, ArgumentsModel, arguments_model
from mulligan.schema.plain_function import callable_name, plain_function
from mulligan.schema.schema_arguments import SchemaArguments

if TYPE_CHECKING:
    from mulligan.wire.agent_facts import HiddenTool

P = ParamSpec("P")
R = TypeVar("R")
Option = TypeVar("Option", bound=ToolOption)

MAX_RESULT_CHARS = 32_768
DEFAULT_TIMEOUT = timedelta(seconds=60)
MAX_LOCAL_TIMEOUT = timedelta(seconds=10)
"""While a local activity hangs, no query, signal or update of its run is answered."""
FIND_TOOLS = "find_tools"
"""The name of the tool by which a model finds tools that it does not see (`on_demand`)."""


class ToolError(Exception):
    """A tool raises it to report a failure to the model: its text is the call's result."""


@dataclass(frozen=True)
class ToolContext:
    """Facts about the call that a tool runs for. A parameter of this type is not in the tool's schema.

    `idempotency_key` is the same on each attempt of this call, after crashes and continue-as-new too, and another for
    every other call of every other run: hand it to a payment or mail service and the call happens once. With `once`, a call
    that repeats one of which nobody knows whether it has done its work (`tool_lost`, `tool_timeout`) has the key of that.
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
    callback_token: str | None = field(default=None, repr=False)
    """Of a deferred tool: who has it may end the call, once, by `POST /api/callbacks/{token}`. The same on each attempt."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The `metadata` of the run's input. It is on the run's root span: what is secret belongs into `resources`."""
    client_metadata: Mapping[str, str] = field(default_factory=dict)
    """What a customer's page says of itself: the `metadata` of their request. Anybody can write it: let it decide nothing
    that costs or protects something."""
    tenant: str | None = None
    """The run's tenant; None: it has none."""
    user: str | None = None
    """For whom the run works: the `user` of its input; None: nobody has said it."""
    resources: Any = None
    """What `resources()` of the loaded module yields; None without it."""
    pinned: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Set for a tool that a feature adds: what was pinned for the feature when the run opened."""
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


@dataclass(frozen=True)
class UntilTime:
    """What a deferred tool returns whose calls wait for a point in time, `at` (seconds since the epoch)."""

    at: float


class ToolOptions(TypedDict, total=False):
    """The options of `tool` that tools of functions and of schemas have in common."""

    timeout: float | timedelta | None
    attempts: int
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    fix: Fixer | None
    handle_errors: HandleErrors | None
    needs_approval: bool | str | Callable[..., Any]
    approval_timeout: float | timedelta | None
    approval_reminder: float | timedelta | None
    asks_person: bool
    task_queue: str | None
    queue_timeout: float | timedelta
    max_result_chars: int
    local: bool
    once: Once
    isolated: bool
    isolated_env: Sequence[str]
    deferred: bool
    deferred_timeout: float | timedelta | None
    result_type: Any
    on_cancel: Callable[..., Any] | None
    on_demand: bool
    trust: Trust
    consequential: bool
    undo: Callable[..., Any] | None
    undo_attempts: int
    strict: bool
    options: Sequence[ToolOption]


class CallsOthers(Protocol):
    """What a tool that calls others says of these."""

    def hides(self, name: str) -> bool:
        """Whether the model does not see one of the agent's tools, as only calls of this one call it. `name`: the tool's."""
        ...

    def describe(self, functions: Sequence[HiddenTool]) -> str:
        """The description of this tool, by the tools that it hides: `functions`."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Tool:
    """A function and what a model and Temporal must know about it. `@tool` makes one, and `from_schema`.

    These options of `tool` are fields: `name`, `description`, `timeout`, `attempts`, `retry_on`, `fix`, `handle_errors`,
    `task_queue`, `queue_timeout`, `max_result_chars`, `local`, `isolated_env`, `trust`, `strict`.

    Attributes:
        function: The function that is called.
        arguments: The parser and JSON schema of its arguments.
        isolated: Whether it runs in a process of its own.
        options: Those of features (docs/features.md).
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
    task_queue: str | None = None
    queue_timeout: timedelta = timedelta(hours=1)
    max_result_chars: int = MAX_RESULT_CHARS
    local: bool = False
    isolated: bool = False
    isolated_env: tuple[str, ...] = ()
    trust: Trust = "trusted"
    strict: bool = False
    options: tuple[ToolOption, ...] = ()
    missing: tuple[str, ...] = ()
    """The options that it is declared with whose features are not installed: no agent can have it."""
    feature: str | None = None
    """Set for a tool that a feature adds to an agent: the name of the feature."""
    mcp_server: str | None = None
    """Set for a tool of an MCP server: the name of the server; None for a tool of this process."""
    asks: bool = False
    """Set for a tool of an MCP server: whether the server may ask a person during a call."""
    calls_others: CallsOthers | None = None
    """Set for a tool of a feature whose calls do nothing but by calls of others: which these are."""

    @staticmethod
    def from_schema(
        *,
        name: str,
        description: str,
        schema: Mapping[str, Any],
        call: Callable[[dict[str, Any], ToolContext], Any],
        **options: Unpack[ToolOptions],
    ) -> Tool:
        """A tool whose arguments are described by a JSON Schema: for tools that are known only while a program runs.

        Args:
            name: The tool's name: 1 to 64 of `a-z A-Z 0-9 _ -`.
            description: What it is good for; the model reads it.
            schema: The JSON Schema of the arguments, an object. The model gets it without what not every provider accepts.
            call: The function, `async def` or `def`, of (arguments: valid by the schema, as JSON values; ToolContext). What
                it returns is the result.
            **options: The other options of `tool`, but for `isolated`.

        Raises:
            DeclarationError: the schema is not one, or an option cannot work.
        """
        where = f"{source_file(call)}: tool {name!r}"
        if not isinstance(name, str) or not isinstance(description, str):
            kinds = f"{type(name).__name__} and {type(description).__name__}"
            raise DeclarationError(f"{where}: name and description must be texts, but are of the types {kinds}.")
        if not callable(call):
            raise DeclarationError(f"{where}: call is {call!r}; give a function of (arguments, ToolContext).")
        try:
            arguments = SchemaArguments.declared(schema)
        except (TypeError, RecursionError) as error:
            raise DeclarationError(f"{where}: its schema {error}") from error
        return _declared(call, name, description, arguments, options)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, as the model gets it."""
        return self.arguments.schema

    @property
    def source(self) -> str:
        """The file that defines the function, for messages to its author."""
        return source_file(self.function)

    @property
    def role(self) -> str | None:
        """The role that whoever decides on a call must have at the HTTP door; None: everybody may."""
        return policy if isinstance(policy := self.traits.policy, str) else None

    def option(self, kind: type[Option]) -> Option:
        """The options of a class as the tool is declared with them, or their defaults."""
        return next((each for each in self.options if isinstance(each, kind)), None) or kind()

    @functools.cached_property
    def traits(self) -> Traits:
        """What its options of features say of its calls."""
        return Traits.of(self.options)

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
            **self._time_faults(),
            "a local tool runs on its run's own worker: local and task_queue exclude each other; leave one out": (
                self.local and self.task_queue is not None
            ),
            f"attempts must be 1 or more, but is {self.attempts}": self.attempts < 1,
            f"max_result_chars must be 1 or more, but is {self.max_result_chars}": self.max_result_chars < 1,
            f"retry_on must be exception types, but is {self.retry_on!r}": not all(
                isinstance(kind, type) and issubclass(kind, BaseException) for kind in self.retry_on
            ),
            f"fix must be a function of one argument, or ask_model(…), but is {self.fix!r}": not (
                self.fix is None or isinstance(self.fix, AskModel) or callable(self.fix)
            ),
            "an isolated tool runs in another process, without a ToolContext: remove that parameter, or isolated": (
                self.isolated and getattr(self.arguments, "context_parameter", None) is not None
            ),
            NOT_IMPORTABLE: self.isolated and isolated_call(self.function)[0] is None,
            "an isolated tool gets a copy of what is bound to it, which cannot be pickled here": (
                self.isolated and not _can_be_pickled(isolated_call(self.function)[1:])
            ),
            "isolated_env is an option of isolated tools: add isolated=True": bool(
                self.isolated_env and not self.isolated
            ),
            (
                'isolated_env must be a list of names of environment variables, such as ["NAME", "-OTHER"], but is '
                f"{self.isolated_env!r}"
            ): not _are_variables(self.isolated_env),
            f"trust must be 'trusted' or 'untrusted', but is {self.trust!r}": self.trust
            not in ("trusted", "untrusted"),
            f"strict must be True or False, but is {self.strict!r}": not isinstance(self.strict, bool),
            **option_faults(self),
        }

    def _time_faults(self) -> dict[str, bool]:
        """What may be wrong with the times."""
        return {
            (
                f"a local tool may take {MAX_LOCAL_TIMEOUT.seconds} s at most, but timeout is {_told(self.timeout)}; give a "
                "shorter one, or leave local out"
            ): self.local and self.timeout > MAX_LOCAL_TIMEOUT,
        }


def _told(time: timedelta) -> str:
    return f"{time.total_seconds():g} s"


class TypedTool(Tool, Generic[P, R]):
    """A tool that can be called as its function, with the same signature for type checkers."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the decorated function itself."""
        return cast("R", self.function(*args, **kwargs))


NOT_IMPORTABLE = (
    "an isolated tool is imported by name in another process, so its function must be at the top level of a module that "
    "can be imported, by its own name (not in `__main__`, a lambda, inside another function, decorated under another name)"
)


def _are_variables(names: Any) -> bool:
    """Whether they are names of environment variables, with a "-" before those that are removed."""
    return isinstance(names, tuple) and all(
        isinstance(name, str) and re.fullmatch(r"-?[A-Za-z_][A-Za-z0-9_]*", name) for name in names
    )


def reference_of(function: Callable[..., Any]) -> str | None:
    """`module:qualified.name`, by which another process finds a function; None where it cannot."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or module == "__main__" or not name or "<" in name:
        return None
    known: Any = sys.modules.get(module)
    for part in name.split("."):
        known = getattr(known, part, None)
    # While its module is imported, nothing has the name yet.
    is_found = known is None or (known.function if isinstance(known, Tool) else known) is function
    return f"{module}:{name}" if is_found else None


def isolated_call(function: Callable[..., Any]) -> tuple[str | None, tuple[Any, ...], dict[str, Any]]:
    """The reference by which another process finds the function of a callable, and the arguments that are bound to it.

    The reference is None where the other process would not find the function.
    """
    if isinstance(function, functools.partial):
        reference, args, kwargs = isolated_call(function.func)
        return reference, (*args, *function.args), {**kwargs, **function.keywords}
    if isinstance(function, staticmethod):
        return isolated_call(function.__func__)
    plain = plain_function(function)
    owner, name = getattr(plain, "__self__", None), getattr(plain, "__name__", "")
    if not inspect.ismethod(plain):
        return reference_of(plain), (), {}
    kind = owner if isinstance(owner, type) else type(owner)
    known = getattr(kind, name, None)
    if getattr(known, "__func__", known) is not plain.__func__ or (of_class := reference_of(kind)) is None:
        return None, (), {}
    return f"{of_class}.{name}", () if kind is owner else (owner,), {}


class _OfModules(pickle.Pickler):
    """A pickler that refuses what `__main__` defines: in another process, that is another module."""

    def reducer_override(self, value: Any) -> Any:
        if getattr(value, "__module__", None) == "__main__":
            raise pickle.PicklingError
        return NotImplemented


def _can_be_pickled(value: Any) -> bool:
    try:
        _OfModules(io.BytesIO()).dump(value)
    except Exception:  # noqa: BLE001 - users' objects may raise anything
        return False
    return True


def source_file(thing: Any) -> str:
    """The file that defines a function or class; `<unknown file>` where there is none."""
    try:
        return inspect.getsourcefile(inspect.unwrap(plain_function(thing))) or "<unknown file>"
    except TypeError:
        return "<unknown file>"


@overload
def tool(function: Callable[P, R], /) -> TypedTool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, **options: Unpack[ToolOptions]
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
    needs_approval: bool | str | Callable[..., Any] = False,
    approval_timeout: float | timedelta | None = None,
    approval_reminder: float | timedelta | None = None,
    asks_person: bool = False,
    task_queue: str | None = None,
    queue_timeout: float | timedelta = timedelta(hours=1),
    max_result_chars: int = MAX_RESULT_CHARS,
    local: bool = False,
    once: Once = False,
    isolated: bool = False,
    isolated_env: Sequence[str] = (),
    deferred: bool = False,
    deferred_timeout: float | timedelta | None = None,
    result_type: Any = None,
    on_cancel: Callable[..., Any] | None = None,
    on_demand: bool = False,
    trust: Trust = "trusted",
    consequential: bool = False,
    undo: Callable[..., Any] | None = None,
    undo_attempts: int = 1,
    strict: bool = False,
    options: Sequence[ToolOption] = (),
) -> TypedTool[P, R] | Callable[[Callable[P, R]], TypedTool[P, R]]:
    """Declare a function, `def` or `async def`, as a tool.

    Args:
        function: The function, or a bound method, a `functools.partial`, an object with `__call__`. Its name, docstring and
            signature become the tool's name, description and schema.
        name: Another name: 1 to 64 of `a-z A-Z 0-9 _ -` (OpenAI's rule for function names).
        description: Another description.
        timeout: Seconds, or a timedelta, for one attempt: 60 s where None, 10 s for a local tool. A hard limit: then the
            model gets a `tool_timeout`, whatever the function does.
        attempts: How often it may be started in all. Timeouts, lost workers, and exceptions in `retry_on` are retried.
        retry_on: Exception types that are retried.
        fix: A fixer: it gets invalid input and returns corrected arguments, or None.
        handle_errors: What happens on a failure; the agent's policy where None.
        needs_approval: Whether a person is asked before it runs; or the name of the role that this person must have at the
            HTTP door; or a function, sync or async, of (arguments: the valid ones as JSON values, ToolContext) that returns
            True, False or a role. If it raises, hangs or returns something else, the call is `denied`, with the reason. It
            is asked again with arguments that a person has edited.
        approval_timeout: Seconds, or a timedelta, after which a call that waits for a person is `denied`; None: the agent's.
        approval_reminder: Seconds, or a timedelta, after which a call that still waits for a person is reported by the event
            `reminder`, and again at intervals that double, ten times at most; None: the agent's.
        asks_person: The call is a question to a person, whose answer is the result; the function never runs.
        task_queue: Where the tool runs, if not on the agent's own queue: a worker with a GPU, or in another network.
        queue_timeout: How long a call may wait in that queue for a worker (seconds or a timedelta); then it is `tool_lost`.
        max_result_chars: A longer result is cut, with a note of how much was left out.
        local: For quick, idempotent tools: fewer events in history, but they may run again after a crash. They run on the
            run's own worker, for 10 s at most.
        once: For tools that write. True: a call that equals a call which has succeeded in this run, by name and valid
            arguments, is not executed; the model reads that, with the beginning of the first result (`duplicate_call`).
            "step": only calls of the same step count; "conversation": also those of earlier runs of the conversation that
            have completed. A failed call may be repeated, with the first call's idempotency key where that may have done
            its work (docs/once.md).
        isolated: Each call runs in a process of its own, which ends with the call, with all that it has started: at the
            latest when the time is over, or when its processes take more than 512 MB of memory together. For code that may
            hang, crash or eat memory (docs/isolated-tools.md). The function must be at the top level of a module and takes
            no ToolContext.
        isolated_env: An isolated call has the worker's environment variables without the secrets of Mulligan, the providers
            and the HTTP door (docs/isolated-tools.md): `NAME` is passed on although it is a secret, `-NAME` is removed as
            well.
        deferred: The function starts something elsewhere and returns what describes it. The call then waits, for as long as
            it takes and without a worker, until it is completed with its result (docs/deferred-tools.md).
        deferred_timeout: Seconds, or a timedelta, after which a call that was not completed is a `tool_timeout`; None: no
            limit.
        result_type: The type of the result that a deferred call is completed with; another result is an `invalid_result`.
        on_cancel: A function, sync or async, of (what the deferred tool returned, as JSON values; ToolContext). It is called
            if the run is stopped or cancelled while the call waits; what it raises is logged.
        on_demand: The model does not see the tool until it has found it with `find_tools` (docs/tool-search.md).
        trust: "untrusted" where results contain what others have written: mails, web pages, documents. The results, and the
            texts of errors, are labelled so wherever they are shown (docs/hostile-content.md).
        consequential: A call must not be decided by such content: it pays, deletes, or sends. An agent with the feature
            `Guarded` asks a person, or denies it, once its context has an untrusted result.
        undo: A function, sync or async, of (the arguments that the tool was called with, and its result: both as JSON
            values; ToolContext) that takes a call's effect back. `mulligan undo` calls it for the calls of a run that has
            ended (docs/undo.md). What it raises is why a call is not undone.
        undo_attempts: How often `undo` may be started for a call, whatever it ends with.
        strict: OpenAI's models can only write arguments that fit the schema. It is sent in the form of strict mode, in which
            every field is required: a default stands in the description. A schema that has no such form is sent as it is,
            without strict mode. Other providers ignore it.
        options: Options of features of your own (docs/features.md), each class once.

    Raises:
        DeclarationError: no schema can be made of the signature, or an option cannot work.
    """
    given = {each: value for each, value in locals().items() if value is not _DEFAULTS.get(each, value)}

    def declare(function: Callable[P, R]) -> TypedTool[P, R]:
        function = function.function if isinstance(function, Tool) else function
        tool_name = name if name is not None else callable_name(function)
        arguments = _arguments_of(function, tool_name)
        text = description if description is not None else arguments.description
        return _declared(function, tool_name, text, arguments, given)

    return declare if function is None else declare(function)


_DEFAULTS = {each: inspect.signature(tool).parameters[each].default for each in ToolOptions.__annotations__}


def _declared(
    function: Callable[P, R], name: str, description: str, arguments: Arguments, given: Mapping[str, Any]
) -> TypedTool[P, R]:
    """A tool, with the options of `tool` as they were given."""
    if unknown := sorted(given.keys() - ToolOptions.__annotations__):
        raise DeclarationError(f"{source_file(function)}: tool {name!r}: {unknown[0]!r} is not an option of a tool.")
    limits = {each: given[each] for each in ("queue_timeout", "timeout") if given.get(each) is not None}
    for each, limit in limits.items():
        if not is_duration(limit):
            what = f"{each} must be more than 0 seconds, but is {limit!r}"
            raise DeclarationError(f"{source_file(function)}: tool {name!r}: {what}.")
    retry_on, isolated_env = given.get("retry_on", ()), given.get("isolated_env", ())
    values = {
        "timeout": MAX_LOCAL_TIMEOUT if given.get("local") else DEFAULT_TIMEOUT,
        **{each: value for each, value in given.items() if each != "timeout" and not TOOL_OPTIONS.get(each)},
        **{each: as_timedelta(limit) for each, limit in limits.items()},
        "retry_on": retry_on if isinstance(retry_on, tuple) else (retry_on,),
        "isolated_env": tuple(isolated_env) if isinstance(isolated_env, list) else isolated_env,
        **feature_options(given),
    }
    declared: TypedTool[P, R] = TypedTool(
        function=function, name=name, description=description, arguments=arguments, **values
    )
    declared.check()
    return declared


def feature_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields `options` and `missing` of a Tool, by the keywords of `tool` that were given."""
    kinds, missing, of_features = option_classes(), [], defaultdict[str, dict[str, Any]](dict)
    for keyword, value in given.items():
        if (feature := TOOL_OPTIONS.get(keyword)) is None:
            continue
        if feature in kinds:
            of_features[feature][keyword] = value
        elif value:
            missing.append(keyword)
    own = [kinds[feature](**values) for feature, values in of_features.items()]
    more = given.get("options", ())
    return {"options": (*own, *(more if isinstance(more, list | tuple) else [more])), "missing": tuple(missing)}


def _arguments_of(function: Callable[..., Any], name: str) -> ArgumentsModel:
    try:
        return arguments_model(function, name, ToolContext)
    except (TypeError, ValueError, NameError) as error:
        raise DeclarationError(f"{source_file(function)}: tool {name!r}: {error}") from error


def is_legal_name(name: str) -> bool:
    """Whether OpenAI accepts it as the name of a function."""
    return re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) is not None
