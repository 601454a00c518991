"""Continue-as-new: when a workflow run hands over to a fresh one, and how what it hands over is encoded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import zstandard
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from mulligan.workflows import limits
from mulligan.workflows.recorded_decision import recorded_decision

_ZSTD_DIFFERENCE = 0.05
"""How much larger or smaller, as a fraction, the output of another version of zstandard is at most."""
_CHAIN = "mulligan-chain"
"""The key in a state's metadata of the id of the first run of the chain. The server makes it when it has the input of that
run, and cron schedules and retries pass that input on: so no input of a client's has it."""
_PIECE_BYTES, _WINDOW = 1_000_000, 2**27


class ContinueAsNewPolicy:
    """Decides when to continue as new, by how much the history of this workflow run has grown since its start.

    Temporal's own suggestion also counts the input of the run. With a long conversation carried over, it would come again
    after a few steps, and most of what is written to history would be carried conversations.
    """

    def __init__(self, *, is_carried: bool) -> None:
        self._start_bytes = workflow.info().get_current_history_size() if is_carried else 0
        self._retry_at_bytes = self._retry_waiting_at_bytes = 0

    def is_due(self) -> bool:
        """Whether to continue as new at this step boundary."""
        return self._has_grown(self._retry_at_bytes)

    def is_due_while_waiting(self) -> bool:
        """Whether to continue as new within a step, while all of its open calls wait for people. Records nothing."""
        return self._has_grown(self._retry_waiting_at_bytes)

    def _has_grown(self, retry_at_bytes: int) -> bool:
        info = workflow.info()
        size = info.get_current_history_size()
        growth = size - self._start_bytes
        return size >= retry_at_bytes and (
            info.get_current_history_length() >= limits.CONTINUE_AS_NEW_EVENTS
            or growth >= limits.CONTINUE_AS_NEW_GROWTH_BYTES
            or (info.is_continue_as_new_suggested() and growth >= self._start_bytes)
        )

    def may_continue_while_waiting(self, is_small_enough: Callable[[], bool]) -> bool:
        """Whether to do it, which is recorded, as another version of zstandard compresses to another size.

        If not, the next try is made after more history. `is_small_enough` encodes the state.
        """
        info = workflow.info()
        is_allowed = recorded_decision(f"carried-waiting-{info.get_current_history_length()}", is_small_enough)
        if not is_allowed:
            self._retry_waiting_at_bytes = info.get_current_history_size() + limits.CONTINUE_AS_NEW_RETRY_BYTES
        return is_allowed

    def postpone(self) -> None:
        """Wait for more history before the next try: the state did not fit, and encoding it at each step costs time."""
        self._retry_at_bytes = workflow.info().get_current_history_size() + limits.CONTINUE_AS_NEW_RETRY_BYTES


def fits_in_state(size: int, most: int, *, at: int) -> bool:
    """Whether a compressed state of `size` bytes is within the limit. `at`: the number of the next step.

    Another version of zstandard compresses to another size, so near the limit a replay could decide differently. There
    the decision is recorded.
    """
    if abs(size - most) > most * _ZSTD_DIFFERENCE:
        return size <= most
    return recorded_decision(f"carried-{at}", lambda: size <= most)


class InvalidStateError(ValueError):
    """A `DurableAgent` was given a state that `carry()` did not return."""


def size_to_carry(state: bytes) -> int:
    """The size of an encoded state in bytes; larger than any limit if `decode_state` would refuse it."""
    return len(state) if zstandard.frame_content_size(state) <= limits.STATE_BYTES else sys.maxsize


def encode_state(state: Mapping[str, Any]) -> bytes:
    """The state as JSON, compressed with zstd."""
    return zstandard.compress(json.dumps(state, separators=(",", ":")).encode())


def continue_as_new(state: bytes) -> NoReturn:
    """Continue an AgentWorkflow as new. A mark in the argument lets the next run accept it as a state.

    The memo is passed on: by default, Temporal would pass on the memo of the run's start.
    """
    info = workflow.info()
    chain = info.first_execution_run_id.encode()
    argument = RawValue(Payload(metadata={"encoding": b"binary/plain", _CHAIN: chain}, data=state))
    workflow.continue_as_new(argument, memo={name: RawValue(value) for name, value in info.raw_memo.items()})


def carried_state(argument: Payload) -> bytes | None:
    """The state in the argument of an AgentWorkflow, if an earlier run of its chain carried it; None if a client sent it.

    A run that a cron schedule or a retry policy has started continues another run as well, and may have a client's argument.
    """
    info = workflow.info()
    is_carried = info.continued_run_id and argument.metadata.get(_CHAIN) == info.first_execution_run_id.encode()
    return argument.data if is_carried and argument.metadata.get("encoding") == b"binary/plain" else None


def decode_state(encoded: bytes) -> dict[str, Any]:
    """The state that `encode_state` encoded.

    Raises:
        InvalidStateError: the bytes are something else, such as a compressed RunInput, or have more than
            `limits.STATE_BYTES` when decompressed.
    """
    data = bytearray()
    try:
        # As a stream: a frame may have gigabytes, whatever its header says.
        with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(encoded) as stream:
            while len(data) <= limits.STATE_BYTES and (piece := stream.read(_PIECE_BYTES)):
                data += piece
        state = json.loads(data) if len(data) <= limits.STATE_BYTES else None
    except (zstandard.ZstdError, ValueError, MemoryError, RecursionError):
        state = None
    if not isinstance(state, dict) or "conversation" not in state:
        raise InvalidStateError("The state was not returned by DurableAgent.carry().")
    return state
