"""Prints a run's events as they come: text while the model writes it, tool calls, repairs, errors, waiting calls."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from mulligan.cli._steps import DECISIONS, by_rule, call_lines, compaction_line, error_line, hosted_lines, short
from mulligan.content import described
from mulligan.run_view import changes
from mulligan.run_view.run_view import RunView
from mulligan.run_view.step_view import WrittenCallView
from mulligan.schema.printable import printable_lines
from mulligan.wire import event_types as events


class LiveView:
    """Prints each event. What the model writes is printed as it comes; its answer adds the part of the text that was not
    printed, and each call has a line of its own once it has its result.
    """

    def __init__(self, console: Console, run_id: str, *, is_open: bool = True) -> None:
        """`is_open`: whether the run is open: in an ended run, no tool is running."""
        self._console, self._run_id, self._is_open = console, run_id, is_open
        self._view = RunView(most_steps=1)
        self._line: str | WrittenCallView = ""
        """What is on the line that is not finished: "text", or a call."""
        self._text = ""
        """The text of the step's answer that is printed."""
        self._heading = 0
        """The step whose heading is printed."""
        self.last_answer = ""
        """The text of the newest answer."""

    @property
    def is_writing(self) -> bool:
        """Whether the model is writing: the line of its text is not finished."""
        return bool(self._line)

    def show(self, event: events.Event) -> None:
        """Print an event."""
        for change in self._view.add(event):
            match change:
                case changes.StepOpened():
                    self._text = ""
                case changes.TextExtended(step, has_gap=has_gap) if not step.answered:
                    self._write(step.number, printable_lines("…" * has_gap + change.text))
                case changes.InputOpened(written):
                    self._open_call(written)
                case changes.InputExtended(written) if (
                    written is self._line and not self._view.steps[written.step].answered
                ):
                    self._console.print(Text(printable_lines(change.text), "dim"), end="", soft_wrap=True)
                case changes.StepAnswered(step):
                    self.last_answer = step.text
                    self._finish(step.number, printable_lines(step.text))
                    for line in hosted_lines(step):
                        self._print_line(line)
                case changes.CallSettled(call):
                    for line in call_lines(call, is_edited=call.was_edited):
                        self._print_line(line)
                case changes.Noted(events.TextVoid() | events.ModelFallback()):
                    self._heading, self._text = 0, ""
            if (text := _line_of(change, self._run_id, is_open=self._is_open)) is not None:
                self._print_line(text)

    def end_line(self) -> None:
        """Finish the line that is not finished."""
        if self._line:
            self._console.print()
            self._line = ""

    def _write(self, step: int, text: str) -> None:
        if self._line != "text":
            self.end_line()
        self._print_heading(step)
        self._line, self._text = "text", self._text + text
        self._console.print(Text(text, "italic"), end="", soft_wrap=True)

    def _open_call(self, call: WrittenCallView) -> None:
        self.end_line()
        self._print_heading(call.step)
        self._line = call
        self._console.print(Text(f"  … {short(call.name)} {'…' * bool(call.start)}", "dim"), end="", soft_wrap=True)

    def _finish(self, step: int, text: str) -> None:
        if not text.startswith(self._text):
            self.end_line()
            self._heading, self._text = 0, ""
        rest, self._text = text[len(self._text) :], ""
        if self._line != "text":
            self.end_line()
        if rest or self._line or self._heading != step:
            self._print_heading(step)
            self._console.print(Text(rest, "italic"), soft_wrap=True)
        self._line = ""

    def _print_heading(self, step: int) -> None:
        if self._heading != step:
            self._heading = step
            self._console.print(Text(f"step {step}  ", "bold"), end="")

    def _print_line(self, line: Any) -> None:
        self.end_line()
        # A line of text may end with a command that people copy: the terminal wraps it, without a line break.
        self._console.print(line, soft_wrap=isinstance(line, Text))


def _line_of(change: changes.Change, run_id: str, *, is_open: bool) -> Text | None:
    """The line for a change that is one line. None for the start and the end of a run or step: others print these."""
    match change:
        case changes.CallRunning(call) if is_open:
            return Text(f"  … {short(call.name)} is running", "dim")
        case changes.WaitOpened(_, wait):
            return _asking_line(wait.asked, run_id)
        case changes.WaitEnded(call, _, decided):
            by = f" by {short(decided.by)}" if decided.by else ""
            reason = f": {short(decided.reason)}" if decided.reason else ""
            edited = ", with edited arguments" if decided.edited else ""
            how = DECISIONS.get(decided.decision, decided.decision)
            by += by_rule(decided.rule)
            return Text(f"  ? {short(call.name)}: {how}{by}{edited}{reason}", "magenta")
        case changes.Noted(events.Reminder() as reminder):
            return _asking_line(reminder, run_id, f"reminder {reminder.number}: still ")
        case changes.Noted(event):
            return _event_line(event)
    return None


def _asking_line(question: events.Waiting | events.Reminder, run_id: str, still: str = "") -> Text:
    """The line for a call that waits for a person."""
    command = "answer" if question.kind == "question" else "approve"
    return Text.assemble(
        (f"  ? {still}waiting for a person: ", "magenta"),
        short(question.text or question.name),
        (f"   mulligan {command} {run_id} {short(question.call_id)}", "dim"),
    )


def _event_line(event: events.Event) -> Text | None:
    match event:
        case events.TextVoid():
            return Text(f"  ✗ ignore this text: attempt {event.attempt} was lost; the model is called again", "red")
        case events.ModelFallback():
            reason = f" ({event.error.kind}: {short(event.error.message)})" if event.error else ""
            return Text(f"  ↻ the model failed{reason}; the next model is {short(event.model)}", "yellow")
        case events.HandedOver():
            return Text(f"  → {short(event.agent)} has the conversation now ({short(event.model)})", "cyan")
        case events.ToolCallDeferred():
            what = "waits until" if event.deferred.kind == "timer" else "waits to be completed"
            until = f" {event.deferred.until}" if event.deferred.kind == "timer" else ""
            started = f": {short(event.deferred.started)}" if event.deferred.started else ""
            return Text(f"  … {short(event.name)} {what}{until}{started}", "dim")
        case events.Edited():
            by = f" by {short(event.by)}" if event.by else ""
            reason = f": {short(event.reason)}" if event.reason else ""
            head = f"  ? edited{by}{reason}; waiting for the role {short(event.role)}: "
            return Text.assemble((head, "magenta"), short(event.text or event.name))
        case events.AnswerRejected():
            return error_line(event.error, "  ")
        case events.Compacted():
            return compaction_line(event)
        case events.MessageReceived():
            return Text.assemble(("message: ", "bold cyan"), short(described(event.content or event.text)))
        case events.Stopping():
            return Text(f"stopping{f': {short(event.reason)}' if event.reason else ''}", "bold red")
    return None
