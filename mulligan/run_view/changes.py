"""How an event changes the view of a run. A door translates each change, and keeps no state of the run."""

from __future__ import annotations

from typing import NamedTuple

from mulligan.run_view.step_view import CallView, StepView, WaitView, WrittenCallView
from mulligan.wire.event_types import Decided, Event, RunEnded, SubRunSource


class StepOpened(NamedTuple):
    """A model is called."""

    step: StepView


class StepClosed(NamedTuple):
    """The next step begins, or the run has ended."""

    step: StepView


class TextOpened(NamedTuple):
    """A text of the step begins. `number`: unique among the texts of the step; 1 unless an earlier one became void."""

    step: StepView
    number: int


class TextExtended(NamedTuple):
    """More text. `seen`: how many characters there are with it. `has_gap`: characters before it are not known yet."""

    step: StepView
    text: str
    seen: int
    has_gap: bool = False


class TextClosed(NamedTuple):
    """The text is complete; or void: its attempt was lost, and another text replaces it."""

    step: StepView
    text: str
    is_void: bool


class InputOpened(NamedTuple):
    """The model begins to write a call."""

    call: WrittenCallView


class InputExtended(NamedTuple):
    """More of a call's arguments."""

    call: WrittenCallView
    text: str


class InputVoid(NamedTuple):
    """A call that the model was writing is void: its attempt was lost, or the answer does not have it."""

    call: WrittenCallView


class StepAnswered(NamedTuple):
    """The step has its whole text and its calls, which are announced next."""

    step: StepView


class CallAnnounced(NamedTuple):
    """The model has made a call. `written`: as it was opened before, with all of its arguments; None: it was not."""

    call: CallView
    written: WrittenCallView | None = None


class WaitOpened(NamedTuple):
    """A call waits for a person."""

    call: CallView
    wait: WaitView


class WaitEnded(NamedTuple):
    """A call has stopped waiting for a person. `wait`: None where the reading began after it."""

    call: CallView
    wait: WaitView | None
    decided: Decided


class CallRunning(NamedTuple):
    """A call runs for the first time, with its validated arguments. A call that is settled without it did not run."""

    call: CallView


class CallSettled(NamedTuple):
    """A call has its result or error."""

    call: CallView


class Noted(NamedTuple):
    """An event that has no change of its own. `step`: the step that it belongs to; None: it stands between steps."""

    event: Event
    step: StepView | None = None


class Below(NamedTuple):
    """A change in the run of a sub-agent."""

    source: SubRunSource
    change: Change


class Ended(NamedTuple):
    """The run, or a turn of it, has ended."""

    end: RunEnded


TextChange = TextOpened | TextExtended | TextClosed
InputChange = InputOpened | InputExtended | InputVoid
CallChange = CallAnnounced | WaitOpened | WaitEnded | CallRunning | CallSettled
Change = StepOpened | StepClosed | StepAnswered | TextChange | InputChange | CallChange | Noted | Below | Ended
