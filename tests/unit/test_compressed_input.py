"""Long run inputs are compressed, and their decompression is bounded."""

from __future__ import annotations

import json

import pytest
import zstandard

from mulligan import InvalidRunInputError, RunInput, UserMessage
from mulligan.client.origins.chained_run import continuation_ids
from mulligan.wire.compressed_input import LONGEST_MESSAGE, MOST_BYTES, PACKED_BYTES, compress_input, decompress_input
from tests.support.large_payload_agent import noise, prose


def long(*texts: str) -> RunInput:
    return RunInput(agent="a", messages=[UserMessage(role="user", text=text) for text in texts])


def test_a_short_input_is_not_compressed() -> None:
    assert compress_input(given := long("hello")) is given


def test_three_megabytes_of_text_are_compressed_and_read_back() -> None:
    """Compressed it is below Temporal's limit for a payload."""
    given = long(*(prose(1_000_000, n) for n in range(3)))
    sent = compress_input(given)
    assert isinstance(sent, bytes)
    assert len(sent) < PACKED_BYTES
    assert RunInput.model_validate_json(decompress_input(sent)) == given


def test_an_input_too_long_even_compressed_is_refused_with_its_length() -> None:
    """The error says what to do. With external storage the limit is higher."""
    given = long(*(noise(1_000_000, n) for n in range(3)))
    with pytest.raises(InvalidRunInputError, match=r"too long to begin a run with: 3,000,\d+ bytes, compressed 2,2"):
        compress_input(given)
    assert isinstance(compress_input(given, most=32_000_000), bytes)
    with pytest.raises(
        InvalidRunInputError, match=r'"messages\[1\]" has 2,000,\d+ bytes; a message can have 1,900,000'
    ):
        compress_input(long("x", "x" * 2_000_000), longest_message=LONGEST_MESSAGE)


def test_bytes_that_are_not_compressed_stay_unchanged() -> None:
    assert decompress_input(b'{"agent": "a"}') == b'{"agent": "a"}'
    assert decompress_input(b"") == b""


def frame(data: bytes, claims: bool) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=claims).compress(data)


@pytest.mark.parametrize("claims", [True, False])
def test_no_more_than_the_limit_is_decompressed(claims: bool) -> None:
    """Whether or not the frame states its size."""
    bomb = frame(bytes(MOST_BYTES + 1), claims)
    assert len(bomb) < 10_000
    with pytest.raises(InvalidRunInputError, match=r"more than 64,000,000 bytes when decompressed"):
        decompress_input(bomb)
    assert len(decompress_input(frame(bytes(MOST_BYTES), claims))) == MOST_BYTES


def test_a_frame_that_states_a_false_size_allocates_no_memory_for_it() -> None:
    """The header of a small frame states 2**40 bytes."""
    small = bytearray(frame(json.dumps({"agent": "a"}).encode() * 50, True))
    lies = bytes([*small[:4], 0xE0, *(2**40).to_bytes(8, "little"), *small[7:]])
    assert zstandard.frame_content_size(lies) == 2**40
    with pytest.raises(InvalidRunInputError, match="begins like zstd"):
        decompress_input(lies)


@pytest.mark.parametrize(
    ("before", "after"),
    [("a", "a-resumed"), ("a-resumed", "a-resumed-2"), ("a-resumed-9", "a-resumed-10"), ("a-2", "a-2-resumed")],
)
def test_the_default_id_of_a_resumed_run_counts_the_resumptions(before: str, after: str) -> None:
    assert next(continuation_ids(before)) == after
