"""A run's input that is too large to be sent as JSON: the same JSON, compressed with zstd."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import zstandard

from mulligan.errors import InvalidRunInputError
from mulligan.run_input import RunInput
from mulligan.schema.json_limits import MOST_DEPTH, JsonMeter

PLAIN_BYTES = 1_000_000
"""Bytes of JSON above which an input is compressed. The server refuses 2 MB, and a smaller history is faster."""
PACKED_BYTES = 1_800_000
"""Bytes of compressed JSON at most; the same for the state of continue-as-new."""
MOST_BYTES = 64_000_000
"""Bytes of decompressed JSON at most: a few compressed bytes can contain gigabytes, which would fill a worker's memory."""
LONGEST_MESSAGE = 1_900_000
"""Bytes of one message as JSON: workers get it as the result of a query, which is one payload."""

MOST_VALUES = 200_000
"""Lists, objects and commas in an input at most. A conversation of 64 MB with short texts would take 1.5 GB as objects."""

_PIECE_BYTES = 256 * 1024
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
            f"the limits are {MOST_BYTES:,} and {most:,}. Set MULLIGAN_EXTERNAL_STORAGE (docs/long-runs.md), "
            "or give the agent the feature `Compaction`."
        )
    return small


def decompress_input(data: bytes) -> bytes:
    """The JSON that `compress_input` compressed; data that is not compressed is returned unchanged.

    Both are measured first: what passes can be parsed in a workflow task.

    Raises:
        InvalidRunInputError: it is cut off or damaged, would take more than `MOST_BYTES`, has more than `MOST_VALUES`,
            or is nested too deep.
    """
    if not data.startswith(_ZSTD_MAGIC):
        return _read_measured([data])
    try:
        # As a stream, as the size in the header of a frame may be false.
        with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(data) as stream:
            json_data = _read_measured(_pieces(stream))
        claimed = zstandard.frame_content_size(data)
    except (zstandard.ZstdError, MemoryError):
        raise InvalidRunInputError("The run's input begins like zstd, but cannot be decompressed.") from None
    if claimed not in (-1, len(json_data)):
        raise InvalidRunInputError("The run's input begins like zstd, but is cut off.")
    return json_data


def _pieces(stream: zstandard.ZstdDecompressionReader) -> Iterator[bytes]:
    while piece := stream.read(_PIECE_BYTES):
        yield piece


def _read_measured(pieces: Iterable[bytes]) -> bytes:
    """All pieces as one; reading ends with the first that exceeds a limit."""
    meter, data = JsonMeter(), bytearray()
    for piece in pieces:
        data += piece
        meter.add(piece)
        if len(data) > MOST_BYTES:
            raise InvalidRunInputError(f"The run's input is more than {MOST_BYTES:,} bytes when decompressed.")
        if meter.values > MOST_VALUES:
            raise InvalidRunInputError(f"The run's input has more than {MOST_VALUES:,} values; send fewer messages.")
        if meter.depth > MOST_DEPTH:
            raise InvalidRunInputError(f"The run's input is nested more than {MOST_DEPTH} levels deep.")
    return bytes(data)
