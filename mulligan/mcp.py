"""`McpServer`: a server of the Model Context Protocol whose tools an agent may call."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mulligan.errors import DeclarationError
from mulligan.policy import HandleErrors
from mulligan.tool import MAX_RESULT_CHARS, is_legal_name

__all__ = ["McpServer"]

SEPARATOR = "__"
"""Stands between a server's name and its tool's, in the name by which a model calls the tool."""
LONGEST_NAME, LONGEST_TOOL_NAME = 32, 64
LONGEST_START = 45.0
"""Seconds: a run waits for its servers as it opens, and Temporal for that, a minute."""
_REFERENCE = re.compile(r"\$\{(\w+)\}")


class McpError(Exception):
    """A call of a server's tool came to nothing. The message says which server's, and what to do: a model reads it."""


class McpUnavailable(McpError):
    """The server cannot be used, or went away before it answered."""


class MissingVariable(Exception):
    """The worker's environment has no variable of a name that a declaration refers to."""


Header = str | Callable[[], str | Awaitable[str]]


@dataclass(frozen=True, eq=False, repr=False)
class McpServer:
    """A server of the Model Context Protocol: a program that the worker starts (`command`), or one at a `url`.

    Its tools are listed when a run opens and keep for that run; a model calls them as `name__tool`. Patterns are those of
    a shell (`read_*`), of the server's own names for its tools. `${NAME}` in `env` and `headers` is the worker's environment
    variable of that name, read when the server is started: so no secret stands in code.

    Args:
        name: 1 to 32 letters, digits, `_` or `-`, without `__`.
        command: The program and its arguments: it speaks the protocol on its standard input and output.
        url: Where the server answers by Streamable HTTP.
        include: Patterns of the tools that the model is shown; all of them where None.
        exclude: Patterns of tools that it is not shown.
        env: Environment variables for the program, beside HOME, LOGNAME, PATH, SHELL, TERM and USER.
        pass_env: Names of the worker's environment variables that the program gets too.
        headers: HTTP headers; a function (sync or async) is asked for its value at each request.
        cwd: The program's working folder; the worker's where None.
        timeout: Seconds, or a timedelta, for a call.
        start_timeout: The same (45 s at most) for starting the server and listing its tools.
        needs_approval: Whether a person is asked before a call: a bool, patterns of the tools for which it is so, or a
            function of (arguments, ToolContext).
        approval_timeout: Seconds, or a timedelta, after which a call that waits for a person is `denied`; None: the agent's.
        attempts: How often a call may be started in all: after a timeout, a server that died, a lost worker.
        max_result_chars: A longer result is cut, with a note of how much was left out.
        handle_errors: What happens on a failure; the agent's policy where None.

    Raises:
        DeclarationError: something in it cannot work.
    """

    name: str
    _: KW_ONLY
    command: Sequence[str] | None = None
    url: str | None = None
    include: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: Sequence[str] = ()
    headers: Mapping[str, Header] = field(default_factory=dict)
    cwd: str | os.PathLike[str] | None = None
    timeout: float | timedelta = 60
    start_timeout: float | timedelta = 30
    needs_approval: bool | Sequence[str] | Callable[..., Any] = False
    approval_timeout: float | timedelta | None = None
    attempts: int = 1
    max_result_chars: int = MAX_RESULT_CHARS
    handle_errors: HandleErrors | None = None

    def __post_init__(self) -> None:
        asked = self.needs_approval
        lists = (
            self.include or (),
            self.exclude,
            self.pass_env,
            () if isinstance(asked, bool) or callable(asked) else asked,
        )
        faults = {
            f"name must be 1 to {LONGEST_NAME} letters, digits, '_' or '-', without '{SEPARATOR}'": not is_legal_server_name(
                self.name
            ),
            "give it a command or a url, and not both": (self.command is None) == (self.url is None),
            "command must be a list: the program and its arguments": self.command is not None
            and (isinstance(self.command, str) or not self.command or not _are_texts(self.command)),
            "url must begin with http:// or https://": self.url is not None
            and not re.match(r"https?://[^/]", self.url),
            "headers are for a server with a url": bool(self.headers) and self.url is None,
            "env, pass_env and cwd are for a server with a command": self.command is None
            and bool(self.env or self.pass_env or self.cwd is not None),
            "include, exclude, pass_env and needs_approval must be lists of names": not all(map(_is_list, lists)),
            "env must map names to texts": not (_are_texts(self.env) and _are_texts(self.env.values())),
            "headers must map names to texts or functions": not (
                _are_texts(self.headers) and all(isinstance(v, str) or callable(v) for v in self.headers.values())
            ),
            "timeout must be more than 0 seconds": _seconds(self.timeout) <= 0,
            f"start_timeout must be more than 0 and at most {LONGEST_START:g} seconds": not (
                0 < _seconds(self.start_timeout) <= LONGEST_START
            ),
            "approval_timeout must be more than 0 seconds": self.approval_timeout is not None
            and _seconds(self.approval_timeout) <= 0,
            "attempts must be 1 or more": self.attempts < 1,
            "max_result_chars must be 1 or more": self.max_result_chars < 1,
        }
        if fault := next((text for text, is_so in faults.items() if is_so), None):
            raise DeclarationError(f"MCP server {self.name!r}: {fault}.")

    def __repr__(self) -> str:
        # Arguments, variables and headers hold secrets.
        return f"McpServer({self.name!r}, {self.address})"

    @property
    def address(self) -> str:
        """Where it is, for people: the program, or the URL without what may be secret in it."""
        if self.command is not None:
            return Path(self.command[0]).name
        return re.sub(r"//[^/@]*@", "//", (self.url or "").partition("?")[0])

    def offers(self, tool: str) -> bool:
        """Whether the model is shown that tool (the server's own name for it)."""
        included = self.include is None or matches_any(tool, self.include)
        return included and not matches_any(tool, self.exclude)

    def needs_approval_for(self, tool: str) -> bool | Callable[..., Any]:
        """What a `Tool` has as `needs_approval`."""
        asked = self.needs_approval
        return asked if isinstance(asked, bool) or callable(asked) else matches_any(tool, asked)

    def environment(self) -> dict[str, str]:
        """What the program gets beside the SDK's short list.

        Raises:
            MissingVariable: one that is named is not in the worker's environment.
        """
        passed = {name: os.environ[name] for name in self.pass_env if name in os.environ}
        return passed | {name: expand_variables(value) for name, value in self.env.items()}

    async def header_values(self) -> dict[str, str]:
        """The headers of one request. A `def` is called in a thread.

        Raises:
            MissingVariable: one that is named is not in the worker's environment.
            Exception: what a function raises.
        """
        values = {}
        for name, header in self.headers.items():
            if isinstance(header, str):
                values[name] = expand_variables(header)
                continue
            given = header() if inspect.iscoroutinefunction(header) else await asyncio.to_thread(header)
            values[name] = str(await given if inspect.isawaitable(given) else given)
        return values


def qualified_name(server: str, tool: str) -> str:
    """The name by which a model calls a server's tool: as every provider takes it, and the same each time."""
    name = server + SEPARATOR + re.sub(r"[^a-zA-Z0-9_-]", "_", tool)
    if len(name) <= LONGEST_TOOL_NAME and name.endswith(SEPARATOR + tool):
        return name
    # Two tools may come to the same text, so it says which it was.
    mark = "_" + hashlib.sha256(tool.encode()).hexdigest()[:6]
    return name[: LONGEST_TOOL_NAME - len(mark)] + mark


def server_name_of(name: str) -> str:
    """The server's name in the name by which a model calls a tool; empty where there is none."""
    server, between, _ = name.partition(SEPARATOR)
    return server if between else ""


def check_servers(servers: Sequence[Any], tools: Sequence[str], where: str) -> None:
    """Whether an agent can have these servers beside its own tools.

    Raises:
        DeclarationError: it cannot.
    """
    for index, server in enumerate(servers):
        if not isinstance(server, McpServer):
            raise DeclarationError(f"{where}: mcp[{index}] is no McpServer.")
    names = [server.name for server in servers]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DeclarationError(f"{where}: two MCP servers are named {twice[0]!r}; give one another name.")
    if taken := next((name for name in tools if server_name_of(name) in names), None):
        raise DeclarationError(
            f"{where}: {taken!r} is named as a tool of its MCP server {server_name_of(taken)!r} would be; rename one."
        )


def is_legal_server_name(name: Any) -> bool:
    """Whether it can begin a tool's name, and be told from what follows."""
    legal = isinstance(name, str) and is_legal_name(name) and len(name) <= LONGEST_NAME
    return legal and SEPARATOR not in name and not name.endswith("_")


def expand_variables(text: str) -> str:
    """A text with the worker's environment variables put in.

    Raises:
        MissingVariable: one is not there.
    """

    def value(found: re.Match[str]) -> str:
        if (given := os.environ.get(found[1])) is None:
            raise MissingVariable(f"the worker's environment has no {found[1]}")
        return given

    return _REFERENCE.sub(value, text)


def matches_any(tool: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


def _are_texts(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_list(values: Any) -> bool:
    return not isinstance(values, (str, bytes)) and isinstance(values, Sequence) and _are_texts(values)


def _seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
