"""A run's input that is too large to be sent as JSON: the same JSON, compressed with zstd."""

from __future__ import annotations

import zstandard

from mulligan.errors import InvalidRunInputError
from mulligan.run_input import RunInput

__all__ = ["MOST_BYTES", "compress_input", "decompress_input"]

PLAIN_BYTES = 1_000_000
"""Bytes of JSON above which an input is compressed. The server refuses 2 MB, and a smaller history is faster."""
PACKED_BYTES = 1_800_000
"""Bytes of compressed JSON at most; the same for the state of continue-as-new."""
MOST_BYTES = 64_000_000
"""Bytes of decompressed JSON at most: a few compressed bytes can contain gigabytes, which would fill a worker's memory."""
LONGEST_MESSAGE = 1_900_000
"""Bytes of one message as JSON: workers get it as the result of a query, which is one payload."""

_ZSTD_MAGIC = zstandard.FRAME_HEADER
_WINDOW = 2**27


def compress_input(
    run_input: RunInput, *, most: int = PACKED_BYTES, longest_message: int | None = None
) -> RunInput | bytes:
    """An input in the form that a run is started with: itself, or if it is too large, its JSON compressed with zstd.

    Args:
        run_input: The input.
        most: How many bytes may be sent.
        longest_message: How many bytes a message may have; None: no limit.

    Raises:
        InvalidRunInputError: it is too large, compressed or not.
    """
    data = run_input.model_dump_json().encode()
    if len(data) <= PLAIN_BYTES:
        return run_input
    for index, message in enumerate(run_input.messages if longest_message else ()):
        if (size := len(message.model_dump_json().encode())) > (longest_message or 0):
            raise InvalidRunInputError(
                f'"messages[{index}]" has {size:,} bytes; a message can have {longest_message:,} without external storage.'
            )
    small = zstandard.compress(data)
    if len(small) > most or len(data) > MOST_BYTES:
        raise InvalidRunInputError(
            f"The conversation is too long to begin a run with: {len(data):,} bytes, compressed {len(small):,}; "
            f"{MOST_BYTES:,} and {most:,} are the most. Set MULLIGAN_EXTERNAL_STORAGE (docs/long-runs.md), "
            "or give the agent a `compact_at`."
        )
    return small


def decompress_input(data: bytes) -> bytes:
    """The JSON that `compress_input` compressed; data that is not compressed is returned unchanged.

    Raises:
        InvalidRunInputError: it is cut off or damaged, or would take more than `MOST_BYTES`.
    """
    if not data.startswith(_ZSTD_MAGIC):
        return data
    try:
        # As a stream, as the size in the header of a frame may be false.
        with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(data) as stream:
            found = stream.read(MOST_BYTES + 1)
        claimed = zstandard.frame_content_size(data)
    except (zstandard.ZstdError, MemoryError):
        raise InvalidRunInputError("The run's input begins like zstd, but cannot be decompressed.") from None
    if len(found) > MOST_BYTES:
        raise InvalidRunInputError(f"The run's input is more than {MOST_BYTES:,} bytes when decompressed.")
    if claimed not in (-1, len(found)):
        raise InvalidRunInputError("The run's input begins like zstd, but is cut off.")
    return found
