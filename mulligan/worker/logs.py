"""What a worker's process writes to stderr: its progress, warnings and errors, each with the run that it is about.

A line ends with the fields `workflow_id`, `run_id`, `agent`, `tool`, `activity` and `attempt`, as far as they exist where
the line was logged: in an activity, in a tool or another function of a user's that an activity calls, or in a workflow.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from temporalio import activity, workflow
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Worker

from mulligan.activities.mcp.server_log import WithoutTracebacks
from mulligan.observe.metrics import CORE_LOG
from mulligan.schema.cut_text import cut_text
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.printable import json_line, printable, printable_lines
from mulligan.values import ToolCall
from mulligan.wire.agent_facts import OpenRun
from mulligan.wire.run_context import RunContext
from mulligan.wire.times import iso
from mulligan.worker.limited_lines import LimitedLines
from mulligan.workflows.memo import memo_json

SECONDS_BETWEEN_SAME_LINES, MOST_LINES = 60.0, 100
"""For lines of the Core SDK, which are remembered for that long, and up to that number."""
_NUMBER = re.compile(r"\d+")
_STATUS = re.compile(r'Status \{ code: [\'"]?(.+?)[\'"]?, message: "((?:[^"\\]|\\.)*)"')
FIELDS = ("workflow_id", "run_id", "agent", "tool", "activity", "attempt")
"""Attributes of a log record, in the order in which they are written."""

MOST_CAUSES = 5
LONGEST_TEXT = 20_000
"""Characters of a message, and of a stack trace."""

_FAILURE_LOGGERS = ("temporalio.activity", "temporalio.workflow")
"""Where the SDK logs that an activity or a workflow has failed, with a stack trace."""

_Fields = Mapping[str, str | int]

_activity_fields: ContextVar[_Fields | None] = ContextVar("mulligan_log_fields", default=None)
"""The fields of the running activity. Tools run in threads and on an event loop of their own, with a copy of the context."""


class ActivityLogFields(Interceptor):
    """Notes for each activity of a worker the fields that its log lines get. `LogFields` adds them to the lines."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002 - Temporal's name
        """Note the fields before an activity runs."""
        return _NotesFields(next)


class _NotesFields(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002 - Temporal's name
        # Never reset: the activity has a context of its own, in which the SDK logs its failure after this.
        _activity_fields.set(fields_of_activity(activity.info(), input.args))
        return await self.next.execute_activity(input)


def fields_of_activity(info: activity.Info, arguments: Sequence[Any]) -> _Fields:
    """The fields of an activity: agent and tool are in the input of Mulligan's own activities."""
    request = arguments[0] if arguments else None
    context, call = getattr(request, "where", None), getattr(request, "call", None)
    agent = (
        request.agent if isinstance(request, OpenRun) else context.agent if isinstance(context, RunContext) else None
    )
    fields = {
        "workflow_id": info.workflow_id,
        "run_id": info.workflow_run_id,
        "agent": agent,
        "tool": call.name if isinstance(call, ToolCall) else None,
        "activity": info.activity_type,
        "attempt": info.attempt,
    }
    return {name: value for name, value in fields.items() if value is not None}


class LogFields(logging.Filter):
    """For a handler: adds the fields to each record as attributes. An attribute that the record has already stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add them; every record passes."""
        fields = _activity_fields.get() or _fields_of_workflow() or _fields_of_sdk(record)
        for name, value in fields.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


def _fields_of_workflow() -> _Fields:
    if not workflow.in_workflow():
        return {}
    info = workflow.info()
    agent = memo_json("agent")
    named = {"agent": agent} if isinstance(agent, str) else {}
    return {"workflow_id": info.workflow_id, "run_id": info.run_id, **named}


def _fields_of_sdk(record: logging.LogRecord) -> _Fields:
    """The fields of a line that temporalio's SDK logs outside of the activity or the workflow that the line is about."""
    if details := getattr(record, "temporal_activity", None):
        names = {"workflow_id": "workflow_id", "run_id": "workflow_run_id", "activity": "activity_type"}
        return {name: details[key] for name, key in {**names, "attempt": "attempt"}.items() if details.get(key)}
    if details := getattr(record, "temporal_workflow", None):
        return {name: details[name] for name in ("workflow_id", "run_id") if details.get(name)}
    return {}


class TextFormatter(logging.Formatter):
    """A line of text with the fields as `key=value` at the end of the message. Control characters are escaped.

    A line that does not begin with a space is a record of its own, whatever providers, tools and other people have written:
    line breaks in the message are escaped too, and the lines of a stack trace are indented.
    """

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The message and the fields."""
        fields = "".join(f" {name}={_plain(value)}" for name, value in _fields_of(record).items())
        record.message = cut_text(record.message.rstrip(), LONGEST_TEXT)
        return printable(super().formatMessage(record) + fields)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - logging's name
        """Return the stack trace, indented."""
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - logging's name
        """Return the stack, indented."""
        return _indented(stack_info)


class JsonFormatter(logging.Formatter):
    """A line of JSON: `time` (ISO 8601, UTC), `level`, `logger`, `message`, the fields, and `exception` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        message = cut_text(record.getMessage(), LONGEST_TEXT)
        line = _json_object(record.created, record.levelname, record.name, message) | _fields_of(record)
        if record.exc_info:
            line["exception"] = cut_text(self.formatException(record.exc_info), LONGEST_TEXT)
        return json_line(line)


def _indented(trace: str) -> str:
    return "\n".join(f"  {line}" for line in printable_lines(cut_text(trace, LONGEST_TEXT)).split("\n"))


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name in FIELDS if isinstance(value := getattr(record, name, None), (str, int))}


def _plain(value: str | int) -> str:
    """The value; a JSON string if it is not one plain word."""
    text = str(value)
    return text if text.isprintable() and text and not set(text) & {" ", '"', "="} else json.dumps(text)


def _json_object(created: float, level: str, logger: str, message: str) -> dict[str, Any]:
    return {"time": iso(created), "level": level, "logger": logger, "message": message}


class _OneLine(logging.Filter):
    """Makes an error that we raised on purpose (an endpoint that is down, an unknown agent) a line without stack trace.

    `quotes`: whether the line has the error's text, which may quote a run's content. If not, it has the error's type.
    `types`: the types of the activities and workflows whose errors are changed; None: all.
    """

    def __init__(self, *, quotes: bool, types: frozenset[str] | None = None) -> None:
        super().__init__()
        self.quotes, self._types = quotes, types

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace message and stack trace by the error's text; every record passes."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FailureError):
            details = getattr(record, "temporal_activity", None) or getattr(record, "temporal_workflow", None) or {}
            kind = details.get("activity_type") or details.get("workflow_type")
            if self._types is not None and kind not in self._types:
                return True
            # A task for an activity that the worker does not serve has no such details; the error's text has them.
            text = error_text(error) if self.quotes else _type_of(error)
            record.msg = f"{kind} of {details.get('workflow_id')}: {text}" if kind else text
            record.args, record.exc_info = (), None
        return True


class WithoutContent(logging.Filter):
    """For a handler, where runs are encrypted: an error shows its type and where it was raised, but not its text.

    The text of any exception may quote a prompt, arguments or a result. What other code logs as a message stays.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the stack trace; every record passes."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            # What follows the first line of asyncio's and the SDK's messages quotes the error too.
            first_line = record.getMessage().partition("\n")[0]
            text = error_text(error)
            message = first_line.replace(text, "…") if text else first_line
            record.msg, record.args = "%s: %s", (message, _types_and_places(error))
            record.exc_info = record.exc_text = None
        return True


def _types_and_places(error: BaseException) -> str:
    """The types of an error and of its causes, each with the last place in the code that raised it."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < MOST_CAUSES:
        frames = traceback.extract_tb(cause.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno}, in {frames[-1].name})" if frames else ""
        parts.append(f"{_type_of(cause)}{place}")
        cause = cause.__cause__ or cause.__context__
    return " caused by ".join(parts)


def _type_of(error: BaseException) -> str:
    return (error.type if isinstance(error, ApplicationError) else None) or type_name(error)


class CoreLog(logging.Filter):
    """For the Core SDK's log: a line comes once a minute, and a server that does not answer is one line, not one per poll.

    Lines that differ in their numbers only are the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self._written_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        message = record.getMessage()
        if is_retry := message.startswith("gRPC call ") and " retried " in message:
            status = _STATUS.search(message)
            reason = f" ({status[2]}, {status[1]})" if status else ""
            record.msg, record.args = f"Temporal does not answer{reason}. The worker tries again until it does.", ()
        key = "retry" if is_retry else _NUMBER.sub("", message)
        now = time.monotonic()
        if now - self._written_at.get(key, float("-inf")) < SECONDS_BETWEEN_SAME_LINES:
            return False
        if len(self._written_at) >= MOST_LINES:
            self._written_at.clear()
        self._written_at[key] = now
        return True


_says_json = False


def set_up_logging(log_format: Literal["text", "json"] = "text", *, is_encrypted: bool = False) -> None:
    """Write warnings and errors of this process to stderr, and its progress in the same format.

    `is_encrypted`: whether runs are encrypted. Then the log does not have the texts of exceptions, which may quote content.
    """
    global _says_json
    _says_json = log_format == "json"
    to_stderr = logging.StreamHandler(sys.stderr)
    to_stderr.setFormatter(JsonFormatter() if _says_json else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[to_stderr])
    for handler in logging.getLogger().handlers:
        handler.addFilter(WithoutTracebacks())
        if is_encrypted:
            handler.addFilter(WithoutContent())
        handler.addFilter(LogFields())
        handler.addFilter(LimitedLines())
    logging.captureWarnings(capture=True)
    if is_encrypted:
        warnings.showwarning = show_without_text
    # The SDK would write such fields into each message, as a dict.
    activity.logger.activity_info_on_message = False
    workflow.logger.workflow_info_on_message = False
    for logger in map(logging.getLogger, _FAILURE_LOGGERS):
        logger.addFilter(_OneLine(quotes=not is_encrypted))
    logging.getLogger(CORE_LOG).addFilter(CoreLog())
    # Its only error, with a stack trace, is that the worker failed: `WorkerGroup` reports it in a line, with the reason.
    logging.getLogger(Worker.__module__).addFilter(lambda record: record.levelno < logging.ERROR)


def shorten_failures(types: frozenset[str], *, is_encrypted: bool) -> None:
    """Let the SDK write a failure of these activities and workflows as one line, in a process with a log of its own.

    Of several workers in it, one with encryption is enough for no texts.
    """
    for logger in map(logging.getLogger, _FAILURE_LOGGERS):
        there = [each for each in logger.filters if isinstance(each, _OneLine)]
        for each in there:
            each.quotes &= not is_encrypted
        if not there:
            logger.addFilter(_OneLine(quotes=not is_encrypted, types=types))


def show_without_text(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Log a warning without its text, where runs are encrypted: pydantic's quote the value that they are about."""
    del message, file, line
    logging.getLogger("py.warnings").warning("%s at %s:%d", category.__name__, filename, lineno)


def say(line: str) -> None:
    """Write a line of progress, or an error that ends the process, to stderr: stdout is for results."""
    if _says_json:
        level = "ERROR" if line.startswith("error: ") else "INFO"
        line = json_line(_json_object(datetime.now(UTC).timestamp(), level, "mulligan.worker", line))
    else:
        line = printable(line)
    sys.stderr.write(f"{line}\n")  # one write, so that lines of processes that share stderr stay apart
    sys.stderr.flush()
