"""Prints a run's events as they come: text while the model writes it, tool calls, repairs, errors, waiting calls."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from mulligan.cli._steps import DECISIONS, call_lines, compaction_line, short
from mulligan.content import described
from mulligan.schema.printable import printable_lines
from mulligan.wire import event_types as events


class LiveView:
    """Prints each event. Text of the model is printed as it comes; its answer adds the part that was not printed."""

    def __init__(self, console: Console, run_id: str, *, is_open: bool = True) -> None:
        """`is_open`: whether the run is open: in one that has ended, no tool is running."""
        self._console = console
        self._is_open = is_open
        self._run_id = run_id
        self._calls: dict[str, dict[str, Any]] = {}
        self._open_line = ""
        """The text on the line that is not finished."""
        self._step = 0
        """The step whose heading is printed."""
        self._length = 0
        """How many characters of the model's text have been received."""
        self.last_answer = ""
        """The text of the newest answer."""

    @property
    def is_writing(self) -> bool:
        """Whether the model is writing: the line of its text is not finished."""
        return bool(self._open_line)

    def show(self, event: events.Event) -> None:
        """Print an event."""
        match event:
            case events.TextDelta():
                self._show_text(event)
            case events.Answered():
                self._show_answer(event)
            case events.TextVoid() | events.ModelFallback():
                self._print_line(_event_line(event, self._run_id))
                self._step = self._length = 0
            case events.ToolCallStarted() if not self._is_open:
                pass
            case events.ToolCallRepaired():
                self._call(event.call_id, event.name)["repairs"] = [repair.model_dump() for repair in event.repairs]
            case events.ToolCallSettled():
                call = self._call(event.call_id, event.name)
                call |= {"result": event.result.model_dump(), "attempts": event.attempts}
                for first, line in call_lines(call):
                    self._print_line(Padding(line, (0, 0, 0, 2 if first else 6), expand=False))
            case _:
                if (one_line := _event_line(event, self._run_id)) is not None:
                    self._print_line(one_line)

    def end_line(self) -> None:
        """Finish the line that is not finished."""
        if self._open_line:
            self._console.print()
            self._open_line = ""

    def _show_text(self, event: events.TextDelta) -> None:
        self._print_heading(event.step)
        missing = "…" if event.start > self._length else ""
        text = printable_lines(missing + event.text)
        self._open_line += text
        self._console.print(Text(text, "italic"), end="", soft_wrap=True)
        self._length = event.start + len(event.text)

    def _show_answer(self, event: events.Answered) -> None:
        self._calls.clear()
        for call in event.tool_calls:
            self._call(call.id, call.name)["raw_arguments"] = call.arguments
        self.last_answer = event.text
        text = printable_lines(event.text)
        if not text.startswith(self._open_line):
            self.end_line()
            self._step = 0
        self._print_heading(event.step)
        self._console.print(Text(text[len(self._open_line) :], "italic"), soft_wrap=True)
        self._open_line, self._length = "", 0

    def _call(self, call_id: str, name: str) -> dict[str, Any]:
        new: dict[str, Any] = {"name": name, "raw_arguments": "", "repairs": [], "result": None, "attempts": 0}
        return self._calls.setdefault(call_id, new)

    def _print_heading(self, step: int) -> None:
        if self._step != step:
            self._step = step
            self._console.print(Text(f"step {step}  ", "bold"), end="")

    def _print_line(self, line: Any) -> None:
        self.end_line()
        # A line of text may end with a command that people copy: the terminal wraps it, without a line break.
        self._console.print(line, soft_wrap=isinstance(line, Text))


def _event_line(event: events.Event, run_id: str) -> Text | None:
    """The line for an event that is one line. None for the start and the end of a run or step: others print these."""
    match event:
        case events.TextVoid():
            return Text(f"  ✗ ignore this text: attempt {event.attempt} was lost; the model is called again", "red")
        case events.ModelFallback():
            reason = f" ({event.error.kind}: {short(event.error.message)})" if event.error else ""
            return Text(f"  ↻ the model failed{reason}; the next model is {short(event.model)}", "yellow")
        case events.ToolCallStarted():
            return Text(f"  … {short(event.name)} is running", "dim")
        case events.ToolCallDeferred():
            what = "waits until" if event.deferred.kind == "timer" else "waits to be completed"
            until = f" {event.deferred.until}" if event.deferred.kind == "timer" else ""
            started = f": {short(event.deferred.started)}" if event.deferred.started else ""
            return Text(f"  … {short(event.name)} {what}{until}{started}", "dim")
        case events.Waiting() | events.Reminder():
            command = "answer" if event.kind == "question" else "approve"
            still = f"reminder {event.number}: still " if isinstance(event, events.Reminder) else ""
            return Text.assemble(
                (f"  ? {still}waiting for a person: ", "magenta"),
                short(event.text or event.name),
                (f"   mulligan {command} {run_id} {short(event.call_id)}", "dim"),
            )
        case events.Decided():
            by = f" by {short(event.by)}" if event.by else ""
            reason = f": {short(event.reason)}" if event.reason else ""
            edited = ", with edited arguments" if event.edited else ""
            return Text(
                f"  ? {short(event.name)}: {DECISIONS.get(event.decision, event.decision)}{by}{edited}{reason}",
                "magenta",
            )
        case events.AnswerRejected():
            return Text(f"  ✗ {event.error.kind}: {short(event.error.message)}", "red")
        case events.Compacted():
            return compaction_line(event.model_dump())
        case events.MessageReceived():
            return Text.assemble(("message: ", "bold cyan"), short(described(event.content or event.text)))
        case events.Stopping():
            return Text(f"stopping{f': {short(event.reason)}' if event.reason else ''}", "bold red")
    return None
