"""The ids of the items of a response. Each names the run that the item belongs to, so any replica finds it again by the id.

`mcpr_CALL@RUN`: neither the prefix nor the id of a call has an `@`, but the id of a run may.
"""

from __future__ import annotations

from typing import Any, NamedTuple

APPROVAL_PREFIX, CALL_PREFIX, QUESTION_PREFIX, MESSAGE_PREFIX, IMAGE_PREFIX = "mcpr_", "mcp_", "fc_", "msg_", "ig_"
CONVERSATION_PREFIX = "item_"
"""Of the items of a conversation, whose ids name the conversation: they stay the same from turn to turn."""
REFERENCE = "item_reference"
_PREFIXES = (APPROVAL_PREFIX, CALL_PREFIX, QUESTION_PREFIX, MESSAGE_PREFIX, IMAGE_PREFIX)


def item_id(prefix: str, name: str, run_id: str) -> str:
    """The id of an item of a run. `name`: that of no other item of the run with this prefix."""
    return f"{prefix}{name}@{run_id}"


def run_of(item: str) -> str:
    """The run that an item's id names; "" if it names none, as ids of other servers do."""
    return item.partition("@")[2] if item.startswith(_PREFIXES) else ""


class NewItems(NamedTuple):
    """The items of an `input` that are new, and what the ones before them continue: a run, a conversation, or nothing."""

    items: Any
    run: str = ""
    conversation: str = ""


def split_new_items(items: Any) -> NewItems:
    """Clients that keep a conversation send its items again, as references or whole. New are those after the last of them.

    References are continued; whole items may as well begin another conversation.
    """
    if not isinstance(items, list):
        return NewItems(items)
    known = [number for number, item in enumerate(items) if _owner(item)]
    if not known:
        return NewItems(items)
    new = items[known[-1] + 1 :]
    referenced = next((items[number]["id"] for number in reversed(known) if _is_reference(items[number])), "")
    if referenced.startswith(CONVERSATION_PREFIX):
        return NewItems(new, conversation=referenced.partition("@")[2])
    return NewItems(new, run=run_of(referenced))


def _is_reference(item: dict[str, Any]) -> bool:
    """Whether an item is a reference, which may leave out its type. So may a message, which has a role."""
    return item.get("type") == REFERENCE or (item.get("type") is None and "role" not in item)


def _owner(item: Any) -> str:
    """The run, or the conversation, that an item belongs to by its id; "" if it names none."""
    given = item.get("id") if isinstance(item, dict) else None
    if not isinstance(given, str):
        return ""
    return given.partition("@")[2] if given.startswith(CONVERSATION_PREFIX) else run_of(given)
