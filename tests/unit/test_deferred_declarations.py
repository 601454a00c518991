"""What a deferred tool may declare, and its tokens by the keys that workers and servers have."""

from __future__ import annotations

from typing import Any

import pytest

from mulligan import ToolContext, tool
from mulligan.client.callback_tokens import CallbackTokens, DeferredCallId, callback_tokens, parse_callback_keys
from mulligan.errors import DeclarationError

CALL = DeferredCallId("my-run", "0af7651916cd43dd8448eb211c80319c", "0", "call_1")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"deferred_timeout": 5}, "add deferred=True"),
        ({"result_type": int}, "add deferred=True"),
        ({"on_cancel": print}, "add deferred=True"),
        ({"deferred": True, "local": True}, "it cannot be local, isolated, or a question"),
        ({"deferred": True, "asks_person": True}, "it cannot be local, isolated, or a question"),
        ({"deferred": True, "deferred_timeout": 0}, "deferred_timeout must be more than 0 seconds"),
        ({"deferred": True, "on_cancel": "stop"}, "on_cancel must be a function"),
        ({"deferred": True, "result_type": object()}, "result_type must be a type"),
        ({"deferred": True, "result_type": "no type at all"}, "result_type must be a type"),
        ({"deferred": True, "result_type": "unknown"}, "result_type must be a type"),
        ({"deferred": True, "result_type": "1 / 0"}, "result_type must be a type"),
    ],
)
def test_options_of_a_deferred_tool_that_cannot_work_are_refused(options: dict[str, Any], sentence: str) -> None:
    def begin() -> str:
        """Begin."""
        return "begun"

    with pytest.raises(DeclarationError, match=sentence):
        tool(**options)(begin)


def tokens(*keys: bytes) -> CallbackTokens:
    async def read() -> list[bytes]:
        return list(keys)

    return CallbackTokens(read)


async def test_a_token_is_read_with_any_key_and_made_with_the_first() -> None:
    old, new = b"o" * 32, b"n" * 32
    made = await tokens(old).seal(CALL)
    assert await tokens(old).seal(CALL) == made
    assert await tokens(new, old).open(made) == CALL
    assert await tokens(new).open(made) is None
    assert await tokens(old).open(await tokens(new, old).seal(CALL)) is None


async def test_workers_and_servers_make_tokens_with_the_keys_of_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ask Temporal for none."""

    def connected() -> Any:
        raise AssertionError("The namespace was asked for its key.")

    monkeypatch.setenv("MULLIGAN_CALLBACK_KEYS", f"{'n' * 32}, {'o' * 32}")
    of_settings = callback_tokens(connected)
    assert await of_settings.seal(CALL) == await tokens(b"n" * 32).seal(CALL)
    assert await of_settings.open(await tokens(b"o" * 32).seal(CALL)) == CALL


async def test_the_length_of_a_token_does_not_tell_the_length_of_an_id() -> None:
    made = tokens(b"k" * 32)
    lengths = {len(await made.seal(DeferredCallId("r" * size, CALL.trace_id, "0", "c"))) for size in range(1, 16)}
    assert len(lengths) == 1


def test_a_short_key_is_refused_without_being_quoted() -> None:
    with pytest.raises(DeclarationError, match="fewer than 32 characters") as caught:
        parse_callback_keys("secret-key")
    assert "secret-key" not in str(caught.value)


def test_a_token_is_not_in_the_repr_of_a_context() -> None:
    context = ToolContext("key", 1, "run", "agent", "call", 1, callback_token="token-of-the-call")
    assert "token-of-the-call" not in repr(context)
