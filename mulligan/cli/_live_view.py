"""A run's events as they come, for a person's eyes: text as the model writes it, calls, repairs, recoveries, waits."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from mulligan import events
from mulligan.cli._steps import call_lines, compaction_line, short


class LiveView:
    """Prints each event. What a model writes stands as it came; `answered` adds what was not seen of it."""

    def __init__(self, console: Console, run_id: str) -> None:
        self._console = console
        self._run_id = run_id
        self._calls: dict[str, dict[str, Any]] = {}
        self._written = ""
        """The text on the line that is not ended."""
        self._headed = 0
        """The step whose heading is printed."""
        self._seen = 0
        """How many characters of the text are known."""
        self.said = ""
        """The newest answer."""

    def show(self, event: events.Event) -> None:
        """Print one."""
        match event:
            case events.TextDelta():
                self._heading(event.step)
                missing = "…" if event.start > self._seen else ""
                self._write(missing + event.text)
                self._seen = event.start + len(event.text)
            case events.TextVoid():
                self._forget()
                self._line(Text(f"  ✗ that is void: attempt {event.attempt} was lost, the model is asked again", "red"))
            case events.ModelFallback():
                self._forget()
                why = f" ({event.error.kind}: {short(event.error.message)})" if event.error else ""
                self._line(Text(f"  ↻ the model was given up{why}; now {short(event.model)} is asked", "yellow"))
            case events.Answered():
                self._answered(event)
            case events.ToolCallRepaired():
                call = self._call(event.call_id, event.name)
                call["repairs"] = [repair.model_dump() for repair in event.repairs]
            case events.ToolCallStarted():
                self._line(Text(f"  … {event.name} runs", "dim"))
            case events.Waiting():
                how = "answer" if event.kind == "question" else "approve"
                self._line(
                    Text.assemble(
                        ("  ? waits for a person: ", "magenta"),
                        short(event.text or event.name),
                        (f"   mulligan {how} {self._run_id} {event.call_id}", "dim"),
                    )
                )
            case events.Decided():
                by = f" by {short(event.by)}" if event.by else ""
                why = f": {short(event.reason)}" if event.reason else ""
                changed = ", with other arguments" if event.edited else ""
                self._line(Text(f"  ? {event.name}: {event.decision}{by}{changed}{why}", "magenta"))
            case events.ToolCallSettled():
                call = self._call(event.call_id, event.name)
                call |= {"result": event.result.model_dump(), "attempts": event.attempts}
                for first, line in call_lines(call):
                    self._line(Padding(line, (0, 0, 0, 2 if first else 6)))
            case events.AnswerRejected():
                self._line(Text(f"  ✗ {event.error.kind}: {short(event.error.message)}", "red"))
            case events.Compacted():
                self._line(compaction_line(event.model_dump()))
            case events.MessageReceived():
                self._line(Text.assemble(("message: ", "bold cyan"), short(event.text)))
            case events.Stopping():
                self._line(Text(f"stopping{f': {short(event.reason)}' if event.reason else ''}", "bold red"))
            case events.RunStarted() | events.StepStarted() | events.RunEnded():
                pass  # how it ended is printed by who follows

    def end(self) -> None:
        """End the line that is not ended."""
        if self._written:
            self._console.print()
            self._written = ""

    def _answered(self, event: events.Answered) -> None:
        self._calls.clear()
        for call in event.tool_calls:
            self._call(call.id, call.name)["raw_arguments"] = call.arguments
        self.said = event.text
        text = _printable(event.text)
        if not text.startswith(self._written):
            self.end()
            self._headed = 0
        self._heading(event.step)
        self._console.print(Text(text[len(self._written) :], "italic"), soft_wrap=True)
        self._written, self._seen = "", 0

    def _forget(self) -> None:
        self.end()
        self._headed = self._seen = 0

    def _call(self, call_id: str, name: str) -> dict[str, Any]:
        unseen: dict[str, Any] = {"name": name, "raw_arguments": "", "repairs": [], "result": None, "attempts": 0}
        return self._calls.setdefault(call_id, unseen)

    def _heading(self, step: int) -> None:
        if self._headed != step:
            self._headed = step
            self._console.print(Text(f"step {step}  ", "bold"), end="")

    def _write(self, text: str) -> None:
        text = _printable(text)
        self._written += text
        self._console.print(Text(text, "italic"), end="", soft_wrap=True)

    def _line(self, line: Any) -> None:
        self.end()
        self._console.print(line)


def _printable(text: str) -> str:
    """What a model or a tool wrote must not move the terminal's cursor."""
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)
