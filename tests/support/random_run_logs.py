"""Logs of runs as the engine and its workers could write them, from any source of choices."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.support.run_log import Json, RunLog, call

TEXTS = ("Hello there.", "H", "", "Grüße, 世界 🎉", '{"a": 1}', "data: [DONE]\n\nevent: x\r\n", "Hello the other.")
ARGUMENTS = ('{"x": 1}', '{"x": "Grüße 🎉"}', "{}", '{"x": 1', "")
ENDS = ("completed", "max_steps", "truncated", "refused", "stopped", "failed", "cancelled", "terminated", "timed_out")
ERRORS = ("invalid_arguments", "tool_error", "unknown_tool", "denied")


class RandomLog:
    """Makes one log. Calls whose name begins with `ask` may wait for a person; `helper` starts a sub-agent."""

    def __init__(self, random: Random, log: RunLog | None = None, depth: int = 0) -> None:
        self.log = log or RunLog()
        self._random, self._depth, self._calls = random, depth, 0

    def make(self) -> RunLog:
        """A log that has ended."""
        log = self.log
        log.store("run_started", turn=1, agent=log.agent, model="openai:a", max_steps=20)
        for _ in range(self._random.randint(0, 2 if self._depth else 3)):
            self._step()
        status = "completed" if self._depth else self._random.choice(ENDS)
        error = {"kind": "ModelRequestError", "message": "No."} if status == "failed" else None
        texts = [each.text for each in log.events if each.type == "answered"]
        return log.end(self._random.choice([*texts[-1:], {"a": 1}, None]), status, error)

    def _maybe(self, share: float) -> bool:
        return self._random.random() < share

    def _step(self) -> None:
        log = self.log
        if self._maybe(0.1):
            log.store("compacted", step=log.step + 1, messages=3, text="Sum.")
        log.ask_model()
        names = [self._random.choice(("find", "ask_approval", "ask_person", "helper")) for _ in range(self._few())]
        calls = [self._call(name) for name in names]
        text = self._random.choice(TEXTS)
        while self._maybe(0.3):
            self._write(self._random.choice(TEXTS), calls if self._maybe(0.5) else [])
            if self._maybe(0.3):
                log.fall_back()
            else:
                log.lose()
        self._write(text, calls)
        if self._maybe(0.1):
            return  # the run ends while its model writes
        log.answer(text, *calls)
        if not calls and self._maybe(0.3):
            log.store("answer_rejected", step=log.step, error={"kind": "invalid_output", "message": "Wrong."})
        stages = [self._run(each) for each in calls]
        while stages:  # the calls of a step run at the same time
            stage = self._random.choice(stages)
            if next(stage, None) is None:
                stages.remove(stage)
            elif self._maybe(0.05):
                log.store("message", text="Hurry.")

    def _few(self) -> int:
        return self._random.choice((0, 0, 1, 2))

    def _call(self, name: str) -> Json:
        self._calls += 1
        return call(f"c{self._calls}", name, self._random.choice(ARGUMENTS))

    def _write(self, text: str, calls: list[Json]) -> None:
        """What a reader sees of it live: nothing, the beginning, or all."""
        if self._maybe(0.2):
            return
        pieces = self._pieces(text)
        self.log.write(*pieces)
        if "".join(pieces) != text:
            return
        for index, each in enumerate(calls):
            parts = self._pieces(each["arguments"])
            self.log.write_call(each, *(parts or [""]), index=index, may_wait=each["name"].startswith("ask"))
            if "".join(parts) != each["arguments"] or self._maybe(0.2):
                return

    def _pieces(self, text: str) -> list[str]:
        pieces, place = [], 0
        while place < len(text) and self._maybe(0.9):
            end = min(len(text), place + self._random.randint(1, 8))
            pieces.append(text[place:end])
            place = end
        return pieces

    def _run(self, made: Json) -> Any:
        log, name = self.log, made["name"]
        if name.startswith("ask"):
            kind = "question" if name == "ask_person" else "approval"
            log.wait(made, {"x": 1}, "Shall it?", kind)
            yield True
            decision = "answer" if kind == "question" else self._random.choice(("approve", "deny", "timeout"))
            log.decide(made, decision, reason=self._random.choice((None, "So.")))
            yield True
            if decision != "approve":
                error = "" if decision == "answer" else "denied"
                log.settle(made, "So.", error)
                return
        elif self._maybe(0.2):
            log.settle(made, "No.", self._random.choice(ERRORS))
            return
        log.start(made, {"x": self._random.choice((1, 2))})
        yield True
        if self._maybe(0.3):
            log.report(made, "Half.")
        if name == "helper" and self._depth < 2:
            below = RandomLog(self._random, RunLog(f"{log.run_id}/{made['id']}", "helper"), self._depth + 1).make()
            log.run_below(made, below, "Found.")
        elif self._maybe(0.9):
            log.settle(made, "r", self._random.choice(("", "", "tool_error")))
