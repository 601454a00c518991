"""Events of a run as a workflow and its readers could produce them, from any source of choices."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from mulligan.wire.event_types import EVENT, Event

START = datetime(2026, 11, 25, 12, tzinfo=UTC)
TOOLS = ("find", "pay", "ask_person", "helper")
ERRORS = ("invalid_arguments", "tool_error", "unknown_tool", "denied")
ENDS = ("completed", "max_steps", "truncated", "refused", "stopped", "failed", "cancelled", "terminated", "timed_out")
TEXTS = ("Hello there.", "He", "", "Grüße, 世界 🎉", '{"a": 1}')


class RandomRun:
    """Makes the events of one run. `events` has them once `make` has returned."""

    def __init__(self, random: Random, run_id: str = "run", depth: int = 0) -> None:
        self.events: list[Event] = []
        self._random, self._run_id, self._depth = random, run_id, depth
        self._offset = self._seconds = 0

    def make(self) -> list[Event]:
        self._store("run_started", turn=1, agent="a", model="openai:a", max_steps=9)
        for number in range(1, self._random.randint(1, 3 if self._depth else 5) + 1):
            self._step(number)
            if self._maybe(0.2):
                self._store("message", text="Hurry.")
        if self._maybe(0.1):
            self._store("stopping", reason="Enough.")
        self._end()
        return self.events

    def _maybe(self, share: float) -> bool:
        return self._random.random() < share

    def _store(self, kind: str, /, **fields: Any) -> None:
        self._add(kind, offset=self._offset, **fields)
        self._offset += 1

    def _add(self, kind: str, /, **fields: Any) -> None:
        self._seconds += 1
        at = START + timedelta(seconds=self._seconds)
        self.events.append(EVENT.validate_python({"type": kind, "at": at, **fields}))

    def _step(self, step: int) -> None:
        if self._maybe(0.15):
            error = {"kind": "ModelRequestError", "message": "No."} if self._maybe(0.3) else None
            self._store("compacted", step=step, messages=3, text="" if error else "Sum.", error=error)
        self._store("step_started", step=step, model="openai:a")
        text = self._random.choice(TEXTS)
        calls = [
            {"id": f"call_{step}_{number}", "name": self._random.choice(TOOLS), "arguments": '{"x": 1}'}
            for number in range(self._random.choice((0, 0, 1, 2)))
        ]
        self._write(step, text, calls)
        usage = {"input_tokens": 10 * step, "output_tokens": step}
        self._store("answered", step=step, text=text, tool_calls=calls, usage=usage)
        for call in calls:
            if self._maybe(0.2):
                repairs = [{"by": "json", "before": "{", "after": "{}"}]
                self._store("tool_call_repaired", step=step, call_id=call["id"], name=call["name"], repairs=repairs)
        if not calls and self._maybe(0.3):
            self._store("answer_rejected", step=step, error={"kind": "invalid_output", "message": "Wrong."})
        stages = [self._call(step, call) for call in calls]
        while stages:  # the calls of a step run at the same time
            stage = self._random.choice(stages)
            if next(stage, None) is None:
                stages.remove(stage)

    def _write(self, step: int, text: str, calls: list[dict[str, Any]]) -> None:
        """The text and the calls of each attempt in parts, of which a reader may have missed some."""
        for attempt in range(1, self._random.choice((1, 1, 2, 3)) + 1):
            written = text if self._maybe(0.7) else "Something else altogether"
            place = 0
            while place < len(written) and self._maybe(0.8):
                end = min(len(written), place + self._random.randint(1, 6))
                if self._maybe(0.9):
                    self._add("text_delta", step=step, attempt=attempt, start=place, text=written[place:end])
                place = end
            for index, call in enumerate(calls if self._maybe(0.6) else []):
                self._write_call(step, attempt, index, call)
            if self._maybe(0.2):
                error = {"kind": "ModelUnavailableError", "message": "Down."}
                self._store("model_fallback", step=step, model="openai:b", error=error)
            elif attempt > 1 or self._maybe(0.4):
                self._add("text_void", step=step, attempt=attempt)
            else:
                return

    def _write_call(self, step: int, attempt: int, index: int, call: dict[str, Any]) -> None:
        """The arguments of a call, which the answer may not have; its tool may wait, and its id may be unknown."""
        written = call["arguments"] if self._maybe(0.8) else '{"other": 7}'
        call_id = call["id"] if self._maybe(0.8) else self._random.choice(("", f"lost_{step}_{index}"))
        fields = {"step": step, "attempt": attempt, "index": index, "name": call["name"], "call_id": call_id}
        fields["may_wait"] = call["name"] in ("pay", "ask_person")
        first = self._random.choice((0, 0, 0, 2))
        if not first:
            self._add("tool_input_delta", **fields, start=0, text="")
        place = first
        while place < len(written) and self._maybe(0.8):
            end = min(len(written), place + self._random.randint(1, 4))
            if self._maybe(0.9):
                self._add("tool_input_delta", **fields, start=place, text=written[place:end])
            place = end

    def _call(self, step: int, call: dict[str, Any]) -> Any:
        fields = {"step": step, "call_id": call["id"], "name": call["name"]}
        kind = "question" if call["name"] == "ask_person" else "approval"
        while self._maybe(0.4):
            self._store("waiting", **fields, kind=kind, arguments={"x": 1}, text="Shall it?")
            yield True
            if self._maybe(0.2):
                self._store("reminder", **fields, kind=kind, arguments={"x": 1}, text="Shall it?", number=1)
            if self._maybe(0.2):
                break  # the run is stopped
            decision = "answer" if kind == "question" else self._random.choice(("approve", "deny", "timeout"))
            self._store("decided", **fields, decision=decision, by="ada", reason=self._random.choice((None, "So.")))
            yield True
        if self._maybe(0.8):
            self._store("tool_call_started", **fields, arguments={"x": self._random.choice((1, 2))})
            yield True
            if self._maybe(0.3):
                self._add("tool_progress", **fields, attempt=1, number=1, text="Half.")
        run = None
        if call["name"] == "helper" and self._depth < 2:
            run = {"id": f"{self._run_id}/{call['id']}", "agent": "helper", "status": "completed"}
            source = {**run, "call_id": call["id"], "parent": self._run_id, "depth": self._depth + 1}
            for event in RandomRun(self._random, run["id"], self._depth + 1).make():
                inner = event if event.type == "sub_run" else None
                self._add("sub_run", source=inner.source if inner else source, event=inner.event if inner else event)
                yield True
        if self._maybe(0.2):
            deferred = {"kind": "callback", "started": "job 7", "since": START.isoformat()}
            self._store("tool_call_deferred", **fields, deferred=deferred)
            yield True
        if self._maybe(0.95):
            error = {"kind": self._random.choice(ERRORS), "message": "No."} if self._maybe(0.4) else None
            self._store("tool_call_settled", **fields, result={"text": "r", "error": error}, attempts=1, run=run)

    def _end(self) -> None:
        status = self._random.choice(ENDS)
        has_result = status not in ENDS[-4:]
        output = self._random.choice(("Hello there.", {"a": 1}, None))
        usage = {"input_tokens": 1, "output_tokens": 2}
        result = {"status": status, "output": output, "steps": 1, "usage": usage, "trace_id": "t", "cost": 0.5}
        error = {"kind": "ModelRequestError", "message": "No."} if status == "failed" else None
        self._store("run_ended", turn=1, status=status, result=result if has_result else None, error=error)
