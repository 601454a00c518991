"""How an event changes the view of a run. A door translates each change, and keeps no state of the run."""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.run_view.step_view import CallView, StepView, WaitView
from mulligan.wire.event_types import Event, RunEnded, SubRunSource

__all__ = [
    "Below",
    "CallAnnounced",
    "CallRunning",
    "CallSettled",
    "Change",
    "Ended",
    "Noted",
    "StepAnswered",
    "StepClosed",
    "StepOpened",
    "TextClosed",
    "TextExtended",
    "TextOpened",
    "WaitEnded",
    "WaitOpened",
]


@dataclass(frozen=True)
class StepOpened:
    """A model is called."""

    step: StepView


@dataclass(frozen=True)
class StepClosed:
    """The next step begins, or the run has ended."""

    step: StepView


@dataclass(frozen=True)
class TextOpened:
    """A text of the step begins. `number`: unique among the texts of the step; 1 unless an earlier one became void."""

    step: StepView
    number: int


@dataclass(frozen=True)
class TextExtended:
    """More text. `seen`: how many characters there are with it. `has_gap`: characters before it are not known yet."""

    step: StepView
    text: str
    seen: int
    has_gap: bool = False


@dataclass(frozen=True)
class TextClosed:
    """The text is complete; or void: its attempt was lost, and another text replaces it."""

    step: StepView
    text: str
    is_void: bool


@dataclass(frozen=True)
class StepAnswered:
    """The step has its whole text and its calls, which are announced next."""

    step: StepView


@dataclass(frozen=True)
class CallAnnounced:
    """The model has made a call."""

    call: CallView


@dataclass(frozen=True)
class WaitOpened:
    """A call waits for a person."""

    call: CallView
    wait: WaitView


@dataclass(frozen=True)
class WaitEnded:
    """A call has stopped waiting for a person. `wait`: None where the reading began after it."""

    call: CallView
    wait: WaitView | None


@dataclass(frozen=True)
class CallRunning:
    """A call runs for the first time, with its validated arguments. A call that is settled without it did not run."""

    call: CallView


@dataclass(frozen=True)
class CallSettled:
    """A call has its result or error."""

    call: CallView


@dataclass(frozen=True)
class Noted:
    """An event that has no change of its own. `step`: the step that it belongs to; None: it stands between steps."""

    event: Event
    step: StepView | None = None


@dataclass(frozen=True)
class Below:
    """A change in the run of a sub-agent."""

    source: SubRunSource
    change: Change


@dataclass(frozen=True)
class Ended:
    """The run, or a turn of it, has ended."""

    end: RunEnded


Change = (
    StepOpened
    | StepClosed
    | TextOpened
    | TextExtended
    | TextClosed
    | StepAnswered
    | CallAnnounced
    | WaitOpened
    | WaitEnded
    | CallRunning
    | CallSettled
    | Noted
    | Below
    | Ended
)
