"""The ids of the items of a response. Each names the run that the item belongs to, so any replica finds it again by the id.

`mcpr_CALL@RUN`: neither the prefix nor the id of a call has an `@`, but the id of a run may.
"""

from __future__ import annotations

from typing import Any

APPROVAL_PREFIX, CALL_PREFIX, QUESTION_PREFIX, MESSAGE_PREFIX = "mcpr_", "mcp_", "fc_", "msg_"
REFERENCE = "item_reference"
_PREFIXES = (APPROVAL_PREFIX, CALL_PREFIX, QUESTION_PREFIX, MESSAGE_PREFIX)


def item_id(prefix: str, name: str, run_id: str) -> str:
    """The id of an item of a run. `name`: that of no other item of the run with this prefix."""
    return f"{prefix}{name}@{run_id}"


def run_of(item: str) -> str:
    """The run that an item's id names; "" if it names none, as ids of other servers do."""
    return item.partition("@")[2] if item.startswith(_PREFIXES) else ""


def split_new_items(items: Any) -> tuple[str, Any]:
    """The run to continue by the item references of an `input`, "" if there are none, and the items after the last item that
    the client has from this server.

    Clients that keep a conversation send its items again: as references, or whole.
    """
    if not isinstance(items, list):
        return "", items
    known = [number for number, item in enumerate(items) if _is_known(item)]
    references = [item["id"] for item in items if _is_known(item) and item.get("type") == REFERENCE]
    return run_of(references[-1]) if references else "", items[known[-1] + 1 :] if known else items


def _is_known(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("id"), str) and run_of(item["id"]) != ""
