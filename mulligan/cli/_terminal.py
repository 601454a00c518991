"""Shared by all commands: output, exit code, and the connection to Temporal."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TextIO, TypeVar, cast

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typer.core import TyperGroup

from mulligan.features import FEATURES, installed
from mulligan.schema.printable import json_line, printable, printable_lines

if TYPE_CHECKING:
    from temporalio.client import Client

_logger = logging.getLogger(__name__)
Command = TypeVar("Command", bound=Callable[..., Any])
_STYLE = (
    r"(?:[34]8(?:;5;\d{1,3}|;2;\d{1,3};\d{1,3};\d{1,3}|:[25][:\d]{1,20})"  # one of 256 colours, or of all
    r"|(?!0*(?:[34]?8)[;:m])\d{1,3})"  # not 8, which hides text
)
_COLOUR = re.compile(rf"(\x1b\[(?:{_STYLE}(?:;{_STYLE})*+)?m)", re.ASCII)
"""A sequence of colours and styles. No part of it can be read in two ways, so a long text takes linear time."""


class SafeConsole(Console):
    """A console whose only control sequences are those of its styles: those in the texts that it prints become visible.

    Square brackets in a text are text, as in `uv add 'mulligan[mcp]'`.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, emoji=False, markup=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Each segment of the output, with its text escaped."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable_lines(text), style, control)


class SafeStream:
    """A stream that passes on text with its control sequences made visible, except for colours.

    In place of `sys.stdout` and `sys.stderr` it gets all that does not go through the functions of this module: errors of
    usage, stack traces, warnings, and what libraries print.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, with its control sequences visible."""
        parts = _COLOUR.split(text)
        self._stream.write("".join(printable_lines(part) if i % 2 == 0 else part for i, part in enumerate(parts)))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write the texts, with their control sequences visible."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def escape_output() -> None:
    """Make visible what other code writes to stdout and stderr from now on."""
    sys.stdout, sys.stderr = (cast("TextIO", SafeStream(stream)) for stream in (sys.stdout, sys.stderr))


def leave_output() -> None:
    """End `escape_output`: users' tools run in this process, and what they print is theirs (progress bars, for example)."""
    sys.stdout, sys.stderr = (getattr(stream, "_stream", stream) for stream in (sys.stdout, sys.stderr))


out = SafeConsole()
"""Stdout: results."""
err = SafeConsole(stderr=True)
"""Stderr: progress and errors."""

OK, NOT_COMPLETED, WRONG_USE = 0, 1, 2
"""The exit codes."""
_WITHOUT_BRACES = str.maketrans("", "", "{}")
"""Typer puts required arguments between braces, which a person would type."""

Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--load",
        metavar="MODULE",
        help="A module with your agents, or several, separated by commas; the option can be repeated.",
        show_default="MULLIGAN_LOAD",
    ),
]
AgentFiles = Annotated[
    str | None,
    typer.Option(
        "--agents",
        metavar="DIR",
        help="A folder with a file `NAME.md` for each agent.",
        show_default="MULLIGAN_AGENTS",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, for programs.")]


def print_line(line: str) -> None:
    """Print a line of results as plain text."""
    out.print(printable_lines(line), soft_wrap=True)


def print_text(text: str) -> None:
    """Print a result of any number of lines, into a file too, as it is but for its control characters."""
    sys.stdout.write(printable_lines(text) + "\n")


def print_progress(line: str) -> None:
    """Print a line of progress on stderr."""
    err.print(printable(line), style="dim", soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one JSON value on a line of its own, with JSON's escapes for control characters."""
    sys.stdout.write(json_line(value) + "\n")
    sys.stdout.flush()


def fail(sentence: str, code: int = WRONG_USE) -> NoReturn:
    """End the command with a sentence on stderr."""
    err.print(f"error: {printable(sentence)}", soft_wrap=True)
    raise typer.Exit(code)


class CommandApp(typer.Typer):
    """Commands, of which most are coroutines: they return the exit code; None is `OK`."""

    def command(self, *args: Any, **options: Any) -> Callable[[Command], Command]:
        """Add a command."""
        add = super().command(*args, **options)

        def add_command(command: Command) -> Command:
            @functools.wraps(command)
            def run(*args: Any, **options: Any) -> None:
                raise typer.Exit(asyncio.run(command(*args, **options)) or OK)

            add(run if inspect.iscoroutinefunction(command) else command)
            return command

        return add_command


class Commands(TyperGroup):
    """The commands. Where the command line, Temporal, a setting, a declaration, an input or a run is at fault, they end with
    its sentence.
    """

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the options before a command."""
        try:
            return super().make_context(*args, **options)
        except Exception as error:
            if not (sentence := _usage_sentence(error)):
                raise
            fail(sentence)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands, those of the features of loaded modules at the end."""
        own = super().list_commands(ctx)
        return own if ctx.parent else [*own, *(name for name in _loaded_commands() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command. Modules are loaded only for a name that is none of Mulligan's own."""
        return super().get_command(ctx, cmd_name) or (None if ctx.parent else _loaded_commands().get(cmd_name))

    def invoke(self, ctx: Any) -> Any:
        """Run a command, also one of a group below."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if not (sentence := _sentence_of(error)):
                raise
            fail(sentence)


def _loaded_commands() -> dict[str, Any]:
    """The commands that features of the modules of `MULLIGAN_LOAD` add, by their names."""
    added, names = CommandApp(), set[str]()
    for name, commands in installed("commands").items():
        if name in FEATURES:
            continue
        if not isinstance(commands, list | tuple) or not all(map(callable, commands)):
            _logger.warning("The commands of the feature %s must be a tuple of functions, but are %r.", name, commands)
            continue
        for each in commands:
            if each.__name__ in names:
                _logger.warning("The command %s of the feature %s is there already.", each.__name__, name)
                continue
            names.add(each.__name__)
            added.command()(each)
    if not added.registered_commands:
        return {}
    added.callback()(lambda: None)  # so that one command is a group as well
    return dict(typer.main.get_group(added).commands)


def _usage_sentence(error: Exception) -> str:
    """What was wrong, the value that was given, and what to do; empty if the error is none of the parser's, or is the help.

    The parser's classes are private in some versions of Typer, and click's in others: they are known by what they have.
    """
    told = getattr(error, "format_message", None)
    if told is None or type(error).__name__ == "NoArgsIsHelpError":
        return ""
    context: Any = getattr(error, "ctx", None)
    sentence = _of_value(error) or str(told()).rstrip(".")
    if context is None:
        return f"{sentence}."
    if sentence.startswith("Missing"):
        usage = context.get_usage().removeprefix("Usage: ").translate(_WITHOUT_BRACES)
        sentence = f"{sentence}; write `{' '.join(usage.split())}`"
    return f"{sentence}{'' if sentence.endswith('?') else '.'} See `{context.command_path} --help`."


def _of_value(error: Exception) -> str:
    """`--limit is 'x'; it must be an integer`, where pydantic has refused the value."""
    from mulligan.schema.fault_text import required_form

    faults = getattr(error.__cause__, "errors", None)
    parameter: Any = getattr(error, "param", None)
    if faults is None or parameter is None:
        return ""
    fault = faults()[0]
    name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.name.upper()
    return f"{name} is {fault['input']!r}; {required_form(fault)}"


def _sentence_of(error: Exception) -> str:
    """What the terminal says of an error; empty for an unexpected error."""
    from temporalio.exceptions import WorkflowAlreadyStartedError
    from temporalio.service import RPCError, RPCStatusCode

    from mulligan.client.connect import explain_unreadable_data
    from mulligan.client.origins.run_state import ResumeError
    from mulligan.client.start_run import StartUnknownError
    from mulligan.errors import DeclarationError, InvalidRunInputError

    if wrong_use := _usage_sentence(error):
        return wrong_use
    unanswered = RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED
    match error:
        case InvalidRunInputError():
            return error.message
        case DeclarationError() | ResumeError():
            return str(error)
        case WorkflowAlreadyStartedError():
            return f"there is another run {error.workflow_id!r} already; choose another --id."
        case StartUnknownError():
            return (
                f"the run {error.workflow_id!r} may have been started: Temporal did not answer ({error.message}). "
                f"To see whether it was: `mulligan show {error.workflow_id}`."
            )
        case RPCError():
            did = "did not answer" if error.status in unanswered else "refused this"
            return explain_unreadable_data(error) or f"Temporal {did}: {error.message}"
    return explain_unreadable_data(error)


async def connect_or_fail() -> Client:
    """A client. If it cannot connect, the command ends: the error names the address and how to start a server."""
    from mulligan.client.connect import connect, explain_connection_error
    from mulligan.ended_runs.query_interceptor import with_ended_runs
    from mulligan.errors import DeclarationError

    try:
        return with_ended_runs(await connect())
    except DeclarationError:
        raise
    except (RuntimeError, ValueError, OSError) as error:
        fail(explain_connection_error(error))
