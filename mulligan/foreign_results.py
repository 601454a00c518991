"""The results in an agent's context that others may have written: what a run remembers of them, and hands to other runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from mulligan.schema.optional_field import optional_field
from mulligan.schema.well_formed import WellFormedText

Trust = Literal["trusted", "untrusted"]
"""Whether a tool's results may contain instructions of others."""
GuardAction = Literal["ask", "deny"]
"""What `Guarded` does with a guarded call: ask a person, or deny it."""
MOST_RESULTS = 20
"""The newest untrusted results that a run remembers; of the others, it knows how many there were."""
EXCERPT_CHARS = 200
"""The characters of a result that people are shown."""
_CALL_ID_CHARS, _NAME_CHARS = 100, 100
_PLAIN_NAME = re.compile(r"[\w.:/-]+", re.ASCII)


class ForeignResult(BaseModel):
    """A result that others may have written."""

    call_id: Annotated[WellFormedText, Field(max_length=_CALL_ID_CHARS)]
    """The id of the call."""
    tool: Annotated[WellFormedText, Field(max_length=_NAME_CHARS)]
    """The name of the tool."""
    text: WellFormedText = Field(max_length=EXCERPT_CHARS)
    """The beginning of the result. It is not to be trusted."""
    step: int = optional_field(0)
    """The number of the step; 0 if it is another run's."""

    @classmethod
    def of(cls, call_id: str, tool: str, text: str, step: int = 0) -> ForeignResult:
        """The entry of a result, with the beginning of its text.

        Args:
            call_id: The id of the call.
            tool: The tool's name.
            text: The whole text.
            step: The number of the step.
        """
        return cls(call_id=call_id[:_CALL_ID_CHARS], tool=tool[:_NAME_CHARS], text=text[:EXCERPT_CHARS], step=step)

    @property
    def line(self) -> str:
        """The result as a line for people: quoted, so that nothing in it looks like a line of ours."""
        return f"{quoted_name(self.tool)} ({quoted_name(self.call_id)}), untrusted: {json.dumps(self.text)}"


class ForeignResults(BaseModel):
    """The untrusted results in the context of an agent, the oldest first, and what guards the agent.

    `count`: how many there were, `results` among them. `guard`: of this run, or of a run before or above it.
    """

    model_config = ConfigDict(extra="forbid")

    results: list[ForeignResult] = Field(default=[], max_length=MOST_RESULTS)
    count: Annotated[int, Field(ge=0, le=1_000_000_000)] = 0
    guard: GuardAction | None = optional_field()

    def add(self, result: ForeignResult) -> None:
        """Add a `result`, in place of the oldest one if there are too many."""
        self.results = [*self.results, result][-MOST_RESULTS:]
        self.count += 1

    def add_all(self, others: ForeignResults) -> None:
        """Add those of another run, `others`. The stricter of both guards stays."""
        self.results = [*self.results, *others.results][-MOST_RESULTS:]
        self.count += others.count
        self.guard = strictest((self.guard, others.guard))

    def before(self, step: int) -> ForeignResults:
        """What an agent has read before a `step`. Results that are remembered as a number only count as older ones."""
        results = [each for each in self.results if each.step < step]
        return ForeignResults(results=results, count=self.count - len(self.results) + len(results), guard=self.guard)

    def for_other_run(self) -> ForeignResults | None:
        """What another run gets that continues this one, or works for it; None if there is nothing to know."""
        if not self.count and self.guard is None:
            return None
        return self.model_copy(update={"results": [each.model_copy(update={"step": 0}) for each in self.results]})


def quoted_name(name: str) -> str:
    """The name of a tool, or the id of a call: as a JSON text if it is more than a name. A client's messages have any."""
    return name if _PLAIN_NAME.fullmatch(name) else json.dumps(name)


def strictest(guards: Iterable[GuardAction | None]) -> GuardAction | None:
    """The strictest of several guards; None if there is none."""
    given = {*guards}
    return "deny" if "deny" in given else "ask" if "ask" in given else None


def described(results: Sequence[ForeignResult], count: int, most: int = 5) -> str:
    """Sentences for the person who decides on a call: which untrusted results the agent has read, the newest first."""
    lines = [f"- {each.line}" for each in results[::-1][:most]]
    if count > len(lines):
        lines.append(f"- and {count - len(lines):,} more")
    head = "The agent has read what others may have written. Nothing that is quoted here is an instruction to you:"
    return "\n".join([head, *lines])
