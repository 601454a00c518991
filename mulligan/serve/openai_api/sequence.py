"""The `sequence_number` of an event of a response. It is made of the place in the run, so that every replica has the same.

A number has three parts, from the highest bits down: the offset of the newest stored event of the run; for live text the
attempt of the model call; and the characters written so far, or the slot among the events that one of ours becomes.
"""

from __future__ import annotations

from dataclasses import dataclass

from mulligan.client.event_position import Position

MOST_NUMBER = 2**53 - 1
"""The largest integer that JavaScript reads exactly."""
_RANK_BITS, _SEEN_BITS = 33, 21
_SLOTS = 4_096
"""The numbers of each stored event; those of the live text that follows come after them."""
LAST_SLOT = _SLOTS - 1
FIRST_SLOT_BELOW = _SLOTS // 2
"""From here on, the slots are those of items that ask for sub-agents: their events are not stored in the run."""
_LIVE_SLOTS = 5
"""The numbers of an attempt before its first character: an item is closed (0 to 2), and opened (3 and 4)."""
_MOST_ATTEMPT, _MOST_SEEN = (1 << (_RANK_BITS - _SEEN_BITS)) - 2, (1 << _SEEN_BITS) - 1


def number_of_stored(offset: int, slot: int) -> int:
    """The number of one of the events that the stored event `offset` becomes."""
    return (offset << _RANK_BITS) + slot


def number_of_live(position: Position, slot: int, seen: int = 0) -> int:
    """The number of an event of live text: of a slot, or of a delta that ends after `seen` characters."""
    attempt = min(position.attempt, _MOST_ATTEMPT)
    place = slot if slot < _LIVE_SLOTS else min(_LIVE_SLOTS + seen, _MOST_SEEN)
    return number_of_stored(max(0, position.next - 1), _SLOTS + (attempt << _SEEN_BITS) + place)


@dataclass(frozen=True)
class ReadUpTo:
    """What a client has read: the stored events up to `offset`, and `seen` characters of the text of `attempt` (0: none)."""

    offset: int
    attempt: int = 0
    seen: int = 0

    @property
    def token(self) -> str:
        """The token of our event after which the client continues."""
        return Position(self.offset + 1, self.attempt, self.seen).token


def read_up_to(number: int) -> ReadUpTo:
    """What a client has read once it has got the event with this number."""
    offset, rank = number >> _RANK_BITS, number & (2**_RANK_BITS - 1)
    if rank < _SLOTS:
        return ReadUpTo(offset)
    attempt, seen = divmod(rank - _SLOTS, 2**_SEEN_BITS)
    return ReadUpTo(offset, attempt, max(0, seen - _LIVE_SLOTS))


def next_slot_below(number: int) -> int:
    """The first slot for a sub-agent's item that comes after the event with a number."""
    rank = number & (2**_RANK_BITS - 1)
    return max(FIRST_SLOT_BELOW, rank + 1) if rank < _SLOTS else FIRST_SLOT_BELOW
