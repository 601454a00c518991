"""`McpServer`: a server of the Model Context Protocol (MCP) whose tools an agent may call."""

from __future__ import annotations

import asyncio
import functools
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

from mulligan.durations import is_duration, seconds
from mulligan.errors import DeclarationError
from mulligan.extras import require_extra
from mulligan.features import TOOL_OPTIONS
from mulligan.features.tool_option import Traits
from mulligan.foreign_results import Trust
from mulligan.mcp_auth import OAuthClientCredentials, OAuthLogin
from mulligan.once import Once
from mulligan.policy import HandleErrors
from mulligan.tool import MAX_RESULT_CHARS, is_legal_name

SEPARATOR = "__"
"""Separates the server's name and the tool's in the name by which a model calls the tool."""
MAX_NAME_CHARS, MAX_TOOL_NAME_CHARS = 32, 64
MAX_START_TIMEOUT = 45.0
"""Seconds: the activity that opens a run waits for the run's servers, and has a minute itself."""
_OR_BE = {
    "needs_approval": "True, False, a function, or ",
    "once": "True, False, 'step', 'conversation', or ",
    "consequential": "True, False, or ",
}
"""What else such an option may be."""
_REFERENCE = re.compile(r"\$\{(\w+)\}")


class McpError(Exception):
    """A call of a server's tool failed. The message is for the model: it names the server, and says what to do."""


class McpUnavailable(McpError):
    """The server is unavailable, or ended before it answered."""


class MissingVariable(Exception):
    """A declaration refers to a variable that the worker's environment does not have."""


Header = str | Callable[[], str | Awaitable[str]]
"""A header's value, or a function that returns it and is called at each request."""


@dataclass(frozen=True, eq=False, repr=False)
class McpServer:
    """A server of the Model Context Protocol: a program that the worker starts (`command`), or a server at a `url`.

    Its tools are listed when a run opens, and stay the same for that run; a model calls them as `name__tool`. Patterns are
    a shell's (`read_*`), and match the server's own names of its tools. `${NAME}` in `env` and `headers` is replaced by the
    worker's environment variable of that name when the server is started, so that no secret is in the code.

    It needs the extra `mcp`: `uv add 'mulligan[mcp]'`.

    Args:
        name: 1 to 32 letters, digits, `_` or `-`, without `__`.
        command: The program and its arguments; the protocol runs over its standard input and output.
        url: The address of a server with the Streamable HTTP transport.
        include: Patterns of the tools that the model may call; None: all tools.
        exclude: Patterns of the tools that it may not call.
        env: Environment variables of the program, in addition to HOME, LOGNAME, PATH, SHELL, TERM and USER.
        pass_env: Names of the worker's environment variables that the program also gets.
        headers: HTTP headers; a function (sync or async) is called for the value at each request.
        cwd: The program's working folder; None: the worker's.
        timeout: Seconds, or a timedelta, for a call.
        start_timeout: The same (45 s at most) for starting the server and listing its tools.
        needs_approval: Whether a call waits for a person's approval: a bool, patterns of the tools that need it, or a
            function of (arguments, ToolContext).
        approval_timeout: Seconds, or a timedelta, after which a call that waits for a person is `denied`; None: the agent's.
        once: As a tool's, for all tools: True, "step", "conversation"; or patterns of the tools for which it is True.
        attempts: How often a call may be started in all: after a timeout, a server that died, a lost worker.
        max_result_chars: A longer result is cut, with a note of how much was left out.
        handle_errors: The policy for failures; None: the agent's.
        questions: Whether the server may ask people something in the middle of a call (the protocol's elicitation). A
            question waits for an answer as a call waits for approval, `approval_timeout` included.
        auth: OAuth for a server with a url: OAuthClientCredentials, or OAuthLogin.
        on_demand: The model does not see its tools until it has found them with `find_tools` (docs/tool-search.md).
        trust: Its results count as written by others; "trusted" where you answer for what it returns
            (docs/hostile-content.md).
        consequential: As a tool's, for all tools; or patterns of the tools that are.

    Raises:
        DeclarationError: an option is invalid; the message says which, and what it must be.
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
    once: Once | Sequence[str] = False
    attempts: int = 1
    max_result_chars: int = MAX_RESULT_CHARS
    handle_errors: HandleErrors | None = None
    questions: bool = True
    auth: OAuthClientCredentials | OAuthLogin | None = None
    on_demand: bool = False
    trust: Trust = "untrusted"
    consequential: bool | Sequence[str] = False

    def __post_init__(self) -> None:
        needs_approval = self.needs_approval
        lists = {
            "include": self.include or (),
            "exclude": self.exclude,
            "pass_env": self.pass_env,
            "needs_approval": () if isinstance(needs_approval, bool) or callable(needs_approval) else needs_approval,
            "once": () if _is_once(self.once) else self.once,
            "consequential": () if isinstance(self.consequential, bool) else self.consequential,
        }
        no_list, wrong = next((each for each in lists.items() if not _is_list(each[1])), ("", ()))
        is_named = is_legal_server_name(self.name)
        faults = {
            f"name must be 1 to {MAX_NAME_CHARS} letters, digits, '_' or '-', without '{SEPARATOR}'": not is_named,
            "give it a command or a url, and not both": (self.command is None) == (self.url is None),
            f"command must be a list: the program and its arguments, but is a {type(self.command).__name__}": self.command
            is not None
            and (isinstance(self.command, str) or not self.command or not _are_texts(self.command)),
            "url must begin with http:// or https://": self.url is not None
            and not re.match(r"https?://[^/]", self.url),
            "auth is for a server with a url": self.auth is not None and self.url is None,
            f"auth must be OAuthClientCredentials(…) or OAuthLogin(…), but is a {type(self.auth).__name__}": not isinstance(
                self.auth, OAuthClientCredentials | OAuthLogin | None
            ),
            "headers are for a server with a url": bool(self.headers) and self.url is None,
            "env, pass_env and cwd are for a server with a command": self.command is None
            and bool(self.env or self.pass_env or self.cwd is not None),
            f"{no_list} must be {_OR_BE.get(no_list, '')}a list of names, but is {wrong!r}": no_list,
            "env must map names to texts": not (_are_texts(self.env) and _are_texts(self.env.values())),
            "headers must map names to texts or functions": not (
                _are_texts(self.headers) and all(isinstance(v, str) or callable(v) for v in self.headers.values())
            ),
            f"timeout must be more than 0 seconds, but is {self.timeout!r}": not is_duration(self.timeout),
            f"start_timeout must be more than 0 and at most {MAX_START_TIMEOUT:g} s, but is {self.start_timeout!r}": (
                not is_duration(self.start_timeout, most=MAX_START_TIMEOUT)
            ),
            f"approval_timeout must be more than 0 seconds, but is {self.approval_timeout!r}": self.approval_timeout
            is not None
            and not is_duration(self.approval_timeout),
            f"attempts must be 1 or more, but is {self.attempts!r}": self.attempts < 1,
            f"on_demand must be True or False, but is {self.on_demand!r}": not isinstance(self.on_demand, bool),
            f"trust must be 'trusted' or 'untrusted', but is {self.trust!r}": self.trust
            not in ("trusted", "untrusted"),
            f"max_result_chars must be 1 or more, but is {self.max_result_chars!r}": self.max_result_chars < 1,
        }
        if fault := next((text for text, is_so in faults.items() if is_so), None):
            raise DeclarationError(f"MCP server {self.name!r}: {fault}.")

    def __repr__(self) -> str:
        # Arguments, variables and headers may contain secrets.
        return f"McpServer({self.name!r}, {self.address})"

    @property
    def address(self) -> str:
        """The program's name, or the URL without the parts that may be secret, for people to read."""
        if self.command is not None:
            return Path(self.command[0]).name
        return re.sub(r"//[^/@]*@", "//", (self.url or "").partition("?")[0])

    def offers(self, tool: str) -> bool:
        """Whether the model may call a tool, by the server's own name for it."""
        is_included = self.include is None or matches_any(tool, self.include)
        return is_included and not matches_any(tool, self.exclude)

    def options_of(self, tool: str) -> dict[str, Any]:
        """The options of features that a tool has, as keywords of `mulligan.tool`. `tool`: the server's own name for it."""
        return {name: matches_any(tool, value) if _is_list(value) else value for name, value in self.given.items()}

    @functools.cached_property
    def given(self) -> dict[str, Any]:
        """The options of features that it is declared with, by their keywords."""
        return {name: value for name in TOOL_OPTIONS if TOOL_OPTIONS[name] and (value := getattr(self, name, None))}

    @property
    def traits(self) -> Traits:
        """What the options of features say of the calls of some of its tools."""
        return Traits(policy=self.needs_approval, may_ask=bool(self.consequential), is_unseen=self.on_demand)

    @property
    def person_timeout(self) -> float | None:
        """The seconds that a person has; None: no limit of the server's."""
        return None if self.approval_timeout is None else seconds(self.approval_timeout)

    def variables(self) -> set[str]:
        """The worker's environment variables to which the declaration refers by `${NAME}`."""
        auth = vars(self.auth).values() if self.auth else ()
        texts = (each for each in (*self.env.values(), *self.headers.values(), *auth) if isinstance(each, str))
        return {name for text in texts for name in _REFERENCE.findall(text)}

    def environment(self) -> dict[str, str]:
        """The program's environment variables, in addition to the SDK's default list.

        Raises:
            MissingVariable: `env` refers to a variable that the worker's environment does not have.
        """
        passed = {name: os.environ[name] for name in self.pass_env if name in os.environ}
        return passed | {name: expand_variables(value) for name, value in self.env.items()}

    async def header_values(self) -> dict[str, str]:
        """The headers of one request. A sync function is called in a thread.

        Raises:
            MissingVariable: a header refers to a variable that the worker's environment does not have.
            Exception: what a function raises.
        """
        values = {}
        for name, header in self.headers.items():
            if isinstance(header, str):
                values[name] = expand_variables(header)
                continue
            value = header() if inspect.iscoroutinefunction(header) else await asyncio.to_thread(header)
            values[name] = str(await value if inspect.isawaitable(value) else value)
        return values


def qualified_name(server: str, tool: str) -> str:
    """The name by which a model calls a server's tool: legal for every provider, and stable."""
    name = server + SEPARATOR + re.sub(r"[^a-zA-Z0-9_-]", "_", tool)
    if len(name) <= MAX_TOOL_NAME_CHARS and name.endswith(SEPARATOR + tool):
        return name
    # A digest keeps tools apart whose names would become the same text.
    mark = "_" + hashlib.sha256(tool.encode()).hexdigest()[:6]
    return name[: MAX_TOOL_NAME_CHARS - len(mark)] + mark


def server_name_of(name: str) -> str:
    """The server's name in the name by which a model calls a tool; empty if the tool is not a server's."""
    server, separator, _ = name.partition(SEPARATOR)
    return server if separator else ""


def check_servers(servers: Sequence[Any], tools: Sequence[str], context: str) -> None:
    """Check that an agent can have these servers beside its own `tools`. `context` begins the error's sentence.

    Raises:
        DeclarationError: it cannot, or the extra `mcp` is not installed.
    """
    if servers:
        require_extra("mcp", f"{context}: mcp=[…]")
    for index, server in enumerate(servers):
        if not isinstance(server, McpServer):
            raise DeclarationError(f"{context}: mcp[{index}] is {server!r}; give a McpServer.")
    names = [server.name for server in servers]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise DeclarationError(f"{context}: two MCP servers are named {duplicates[0]!r}; give one another name.")
    if ambiguous := next((name for name in tools if server_name_of(name) in names), None):
        raise DeclarationError(
            f"{context}: {ambiguous!r} is named as a tool of its MCP server {server_name_of(ambiguous)!r} would be; "
            "rename one."
        )


def is_legal_server_name(name: Any) -> bool:
    """Whether it can begin the name of a tool, so that the server's name can be read from that name."""
    is_legal = isinstance(name, str) and is_legal_name(name) and len(name) <= MAX_NAME_CHARS
    return is_legal and SEPARATOR not in name and not name.endswith("_")


def expand_variables(text: str) -> str:
    """Replace each `${NAME}` in a text by the worker's environment variable of that name.

    Raises:
        MissingVariable: the worker's environment does not have it.
    """

    def value_of(reference: re.Match[str]) -> str:
        if (value := os.environ.get(reference[1])) is None:
            raise MissingVariable(f"the worker's environment has no {reference[1]}")
        return value

    return _REFERENCE.sub(value_of, text)


def matches_any(tool: str, patterns: Sequence[str]) -> bool:
    """Whether the name of a tool matches one of the patterns."""
    return any(fnmatchcase(tool, pattern) for pattern in patterns)


def _is_once(value: Any) -> bool:
    return isinstance(value, bool) or value in ("step", "conversation")


def _are_texts(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _is_list(values: Any) -> bool:
    return not isinstance(values, (str, bytes)) and isinstance(values, Sequence) and _are_texts(values)
