"""The `sequence_number` of an event of a response. It is made of the place in the run, so that every replica has the same.

A number has three parts, from the highest bits down: the offset of the newest stored event of the run; for live text the
attempt of the model call; and the characters written so far, or the slot among the events that one of ours becomes.
"""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.client.event_position import Position

MOST_NUMBER = 2**53 - 1
"""The largest integer that JavaScript reads exactly."""
_RANK_BITS, _SEEN_BITS = 33, 22
_SLOTS = 4_096
"""The numbers of each stored event; those of the live text that follows come after them."""
LAST_SLOT = _SLOTS - 1
FIRST_SLOT_BELOW = _SLOTS // 2
"""From here on, the slots are those of items that ask for sub-agents: their events are not stored in the run."""
VOID_CALL, CLOSE_VOID, OPEN_TEXT, DELTA, CLOSE_TEXT = 0, 256, 259, 261, 262
"""The slots of what comes when a model writes or has answered, in its order: void calls end (two slots each), a void text
ends (three), a text begins (two), is extended, and ends (three)."""
FIRST_FILE, MOST_FILES = 265, 50
"""The slots of the items of images that the answer has, two each."""
REST_OF_CALL = 400
"""The slot of what is missing of a call's arguments, with the call's number in the answer added."""
_MOST_ATTEMPT, _MOST_SEEN = (1 << (_RANK_BITS - _SEEN_BITS)) - 2, (1 << _SEEN_BITS) - 1


def number_of_stored(offset: int, slot: int) -> int:
    """The number of one of the events that the stored event `offset` becomes."""
    return (offset << _RANK_BITS) + slot


def number_of_live(position: Position, slot: int, seen: int = 0, *, is_call: bool = False) -> int:
    """The number of an event of live text: of a slot, or with `DELTA` of a piece that ends after `seen` characters.

    `is_call`: whether it is one of a call's arguments.
    """
    attempt = min(position.attempt, _MOST_ATTEMPT)
    place = slot if slot < DELTA else min(DELTA + 1 + 2 * seen + is_call, _MOST_SEEN)
    return number_of_stored(max(0, position.next - 1), _SLOTS + (attempt << _SEEN_BITS) + place)


@dataclass(frozen=True)
class ReadUpTo:
    """What a client has read: the stored events up to `offset`, and `seen` characters of the text of `attempt` (0: none).

    `is_call`: whether it has read on into the arguments of calls.
    """

    offset: int
    attempt: int = 0
    seen: int = 0
    is_call: bool = False

    @property
    def token(self) -> str:
        """The token of our event after which the client continues: in arguments, of the one before the whole answer."""
        if self.is_call:
            return Position(self.offset + 1).token
        return Position(self.offset + 1, self.attempt, self.seen).token


def read_up_to(number: int) -> ReadUpTo:
    """What a client has read once it has got the event with this number."""
    offset, rank = number >> _RANK_BITS, number & (2**_RANK_BITS - 1)
    if rank < _SLOTS:
        return ReadUpTo(offset)
    attempt, place = divmod(rank - _SLOTS, 2**_SEEN_BITS)
    seen, is_call = divmod(max(0, place - DELTA - 1), 2)
    return ReadUpTo(offset, attempt, seen, bool(is_call))


def cut_delta(delta: str, number: int, after: int) -> str:
    """What a client has not got of a live delta. `number`: the delta's; `after`: of the event that the client has read."""
    unread = (number - after + 1) // 2
    return delta[-unread:] if unread < len(delta) else delta


def next_slot_below(number: int) -> int:
    """The first slot for a sub-agent's item that comes after the event with a number."""
    rank = number & (2**_RANK_BITS - 1)
    return max(FIRST_SLOT_BELOW, rank + 1) if rank < _SLOTS else FIRST_SLOT_BELOW
