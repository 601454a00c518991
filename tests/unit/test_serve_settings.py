"""What `mulligan serve` refuses to start with. tests/system/features/test_serve_command.py has that a process says it and ends."""

from __future__ import annotations

import httpx2
import pytest

from mulligan import DeclarationError
from mulligan.serve.connections import HEAD_SECONDS, Connections
from mulligan.serve.create_app import create_app
from mulligan.serve.listen import listen

SECRET = "5ecret-5ecret-5ecret"
TOKENS = {
    "a b:SECRET": "entry 1 of MULLIGAN_SERVE_TOKENS has no valid name",
    "ada:SECRET,bob:": "entry 2 of MULLIGAN_SERVE_TOKENS (bob) has no token",
    "ada:SECRET,bob:SECRET": "entry 2 of MULLIGAN_SERVE_TOKENS (bob) has the token of another entry",
    "ada:SECRET:|": "entry 1 of MULLIGAN_SERVE_TOKENS (ada) has an empty name among its agents",
    "ada:SECRET::x|": "entry 1 of MULLIGAN_SERVE_TOKENS (ada) has an empty name among its roles",
    "ada:SECRET:desk:a b": "entry 1 of MULLIGAN_SERVE_TOKENS (ada) has the role 'a b'",
    "ada:SECRET:desk:x:y": "entry 1 of MULLIGAN_SERVE_TOKENS (ada) has the role 'x:y'",
}


def started(host: str = "127.0.0.1", *, origin: str = "", name: str = "", proxy: str = "") -> str:
    """The reason why the server does not start."""
    with pytest.raises(DeclarationError) as refused:
        listen(
            host, 0, allow_hosts=[name] if name else [], allow_origins=[origin] if origin else [], task_queue=None,
            proxies=[proxy] if proxy else [], say=lambda line: pytest.fail(line),
        )  # fmt: skip
    assert SECRET not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("tokens", TOKENS)
def test_wrong_tokens_are_refused_with_one_sentence_without_the_token(
    tokens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULLIGAN_SERVE_TOKENS", tokens.replace("SECRET", SECRET))
    assert TOKENS[tokens] in started()


def test_a_wrong_name_address_or_origin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "'shop' is not an origin; give the scheme and the host of the page" in started(origin="shop")
    assert "--allow-host is 'http://x'; give a host as in a URL" in started(name="http://x")
    monkeypatch.setenv("MULLIGAN_SERVE_TOKENS", f"ada:{SECRET}")
    assert "--trust-proxy is 'localhost'; give an address or a network" in started(proxy="localhost")
    assert "nothing can listen at 203.0.113.1 port" in started("203.0.113.1")


def test_an_idle_connection_is_kept_longer_than_clients_reuse_theirs() -> None:
    """Otherwise both ends close it at the same moment, and a request that is just sent breaks."""
    reused = httpx2.Limits(max_connections=1000, max_keepalive_connections=100).keepalive_expiry
    assert reused is not None
    assert reused < Connections(10).config(create_app(tokens="")).timeout_keep_alive < HEAD_SECONDS
