"""Prints a run's events as they come: text while the model writes it, tool calls, repairs, errors, waiting calls."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from mulligan.cli._steps import DECISIONS, call_lines, compaction_line, error_line, short
from mulligan.content import described
from mulligan.run_view import changes
from mulligan.run_view.run_view import RunView
from mulligan.schema.printable import printable_lines
from mulligan.wire import event_types as events


class LiveView:
    """Prints each event. Text of the model is printed as it comes; its answer adds the part that was not printed."""

    def __init__(self, console: Console, run_id: str, *, is_open: bool = True) -> None:
        """`is_open`: whether the run is open: in one that has ended, no tool is running."""
        self._console, self._run_id, self._is_open = console, run_id, is_open
        self._view = RunView(most_steps=1)
        self._open_line = ""
        """The text on the line that is not finished."""
        self._heading = 0
        """The step whose heading is printed."""
        self.last_answer = ""
        """The text of the newest answer."""

    @property
    def is_writing(self) -> bool:
        """Whether the model is writing: the line of its text is not finished."""
        return bool(self._open_line)

    def show(self, event: events.Event) -> None:
        """Print an event."""
        for change in self._view.add(event):
            match change:
                case changes.TextExtended(step, has_gap=has_gap) if not step.answered:
                    self._write(step.number, printable_lines("…" * has_gap + change.text))
                case changes.StepAnswered(step):
                    self.last_answer = step.text
                    self._finish(step.number, printable_lines(step.text))
                case changes.CallSettled(call):
                    for line in call_lines(call):
                        self._print_line(line)
                case changes.Noted(events.TextVoid() | events.ModelFallback()):
                    self._heading = 0
        if (text := _event_line(event, self._run_id, is_open=self._is_open)) is not None:
            self._print_line(text)

    def end_line(self) -> None:
        """Finish the line that is not finished."""
        if self._open_line:
            self._console.print()
            self._open_line = ""

    def _write(self, step: int, text: str) -> None:
        self._print_heading(step)
        self._open_line += text
        self._console.print(Text(text, "italic"), end="", soft_wrap=True)

    def _finish(self, step: int, text: str) -> None:
        if not text.startswith(self._open_line):
            self.end_line()
            self._heading = 0
        self._print_heading(step)
        self._console.print(Text(text[len(self._open_line) :], "italic"), soft_wrap=True)
        self._open_line = ""

    def _print_heading(self, step: int) -> None:
        if self._heading != step:
            self._heading = step
            self._console.print(Text(f"step {step}  ", "bold"), end="")

    def _print_line(self, line: Any) -> None:
        self.end_line()
        # A line of text may end with a command that people copy: the terminal wraps it, without a line break.
        self._console.print(line, soft_wrap=isinstance(line, Text))


def _event_line(event: events.Event, run_id: str, *, is_open: bool) -> Text | None:
    """The line for an event that is one line. None for the start and the end of a run or step: others print these."""
    match event:
        case events.TextVoid():
            return Text(f"  ✗ ignore this text: attempt {event.attempt} was lost; the model is called again", "red")
        case events.ModelFallback():
            reason = f" ({event.error.kind}: {short(event.error.message)})" if event.error else ""
            return Text(f"  ↻ the model failed{reason}; the next model is {short(event.model)}", "yellow")
        case events.ToolCallStarted() if is_open:
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
            return error_line(event.error, "  ")
        case events.Compacted():
            return compaction_line(event)
        case events.MessageReceived():
            return Text.assemble(("message: ", "bold cyan"), short(described(event.content or event.text)))
        case events.Stopping():
            return Text(f"stopping{f': {short(event.reason)}' if event.reason else ''}", "bold red")
    return None
