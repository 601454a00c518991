"""What the feature does in a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from pydantic import BaseModel

from mulligan.feature import Feature, NoResult, RunContext, Schedule, StepCall, ToolOutcome, Wait, WaitKind


class Facts(BaseModel):
    place: str


class Pinned(BaseModel):
    seconds: float
    wakes_person: bool


class NoteQuiet(BaseModel):
    where: RunContext
    call_id: str
    tool: str


class QuietWait(Wait):
    name: ClassVar[str] = "quiet_hours"
    ended_by: ClassVar[WaitKind | None] = "timer"

    def describe(self, others: Sequence[Wait], key: str) -> tuple[str, str]:
        return "keeping quiet", ", as others sleep"


class WaitsForTheEnd(Feature):
    feature = "quiet_hours"
    facts_type = Facts
    option_type = Pinned
    waits: ClassVar = (QuietWait,)
    schedules: ClassVar = {"note_quiet": Schedule(timeout=timedelta(seconds=10))}

    def __init__(self, agent: Any) -> None:
        super().__init__(agent)
        self._over: list[str] = []

    async def before_call(self, call: StepCall) -> ToolOutcome | None:
        pinned = call.pinned.get(self.feature)
        if pinned is None or call.call.id in self._over or self.agent.is_stopped:
            return None
        wait = self.agent.waits.carried(QuietWait, call.call.id) or QuietWait(key=call.call.id)
        with self.agent.waits.entered(wait):
            until = wait.since + pinned["seconds"]
            await self.agent.waits.until(wait, lambda: self.agent.is_stopped, at=until)
        self._over.append(call.call.id)
        request = NoteQuiet(where=self.agent.context, call_id=call.call.id, tool=call.call.name)
        await self.agent.activity("note_quiet", request, NoResult)
        if pinned["wakes_person"]:
            call.waits_for = call.waits_for or "approval"
        return None

    def dump(self) -> Any:
        return self._over or None

    def load(self, state: Any) -> None:
        self._over = state
