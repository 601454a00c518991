"""What a run that continues as new hands to the next one: read, and told from everything else."""

from __future__ import annotations

import json
from typing import Any

import zstandard

__all__ = ["InvalidStateError", "read_continue_as_new_state"]


class InvalidStateError(ValueError):
    """A `DurableAgent` was given a state that no `carry()` made."""


def read_continue_as_new_state(state: bytes) -> dict[str, Any]:
    """What `DurableAgent.carry` wrote.

    Raises:
        InvalidStateError: it is something else; a RunInput, for one, that is compressed.
    """
    try:
        carried = json.loads(zstandard.decompress(state))
    except (zstandard.ZstdError, ValueError):
        carried = None
    if not isinstance(carried, dict) or "conversation" not in carried:
        raise InvalidStateError("The state is not what carry() gave.")
    return carried
