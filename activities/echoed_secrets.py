"""Removes the secrets of a request from its response: some servers quote the key that they got.

Answers and errors of an endpoint are recorded in history, and shown to tenants and people. So the key is replaced where the
bytes of a response arrive, before anything reads them: whatever its status and format, whichever provider reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache
from typing import Any

import httpx2

REPLACEMENT = "[key]"
SHORTEST = 8
"""Characters of a secret."""
SECRET_NAME = re.compile(
    r"(?<![a-z])((api|access|auth|secret|session)?(key|token)|secret|password|credential|cookie"
    r"|auth(entication|orization)?)s?(?![a-z])"
)
"""Finds the names of headers and settings, in lower case, whose values are secrets."""
_OURS = ("idempotency-key",)
"""Headers whose names look like those of secrets."""
_WORD = re.compile(r"[a-z]{1,15}\d{0,2}|\d{1,3}[a-z]|\d")
"""A part of a name as people write it, also of a model's: `llama3.1`, `qwen2.5-7b`."""


class EchoedSecrets:
    """The secrets that a request had in its headers.

    Args:
        headers: The request's headers.
        names: The names of more headers whose values are secrets, in lower case.
    """

    def __init__(self, headers: Mapping[str, str], names: Container[str] = ()) -> None:
        given = [
            value.partition(" ")[2] or value if name.endswith("authorization") else value
            for name, value in ((name.lower(), value) for name, value in headers.items())
            if name in names or _names_secret(name)
        ]
        self.values, self._patterns, self._any = _patterns_of(frozenset(given))
        """The longest one first: another one may be a part of it."""

    def clean_bytes(self, data: bytes) -> tuple[bytes, bytes]:
        """The bytes without the secrets, and their end if a secret may begin with it: it belongs before the next bytes."""
        data = self._any.sub(REPLACEMENT.encode(), data)
        held = max((_begun(data, pattern) for pattern in self._patterns), default=0)
        return data[: len(data) - held], data[len(data) - held :]

    def clean_value(self, value: Any) -> Any:
        """A JSON value without the secrets, also in the names of its objects: a stream has its texts in small pieces."""
        if isinstance(value, str):
            for secret in self.values:
                value = value.replace(secret, REPLACEMENT)
            return value
        if isinstance(value, list):
            return [self.clean_value(item) for item in value]
        if isinstance(value, dict):
            return {self.clean_value(name): self.clean_value(inner) for name, inner in value.items()}
        return value

    def clean_pieces(self, write: Callable[[str], None]) -> Callable[..., None]:
        """A function that writes the pieces of a text without the secrets.

        The end of a piece that a secret may begin with waits for the next one, unless `is_last`.
        """
        held = b""

        def write_cleaned(piece: str, *, is_last: bool = False) -> None:
            nonlocal held
            cleaned, held = self.clean_bytes(held + piece.encode(errors="surrogatepass"))
            if cleaned := cleaned + held if is_last else cleaned:
                write(cleaned.decode(errors="surrogatepass"))

        return write_cleaned

    def clean_headers(self, headers: httpx2.Headers) -> None:
        """Remove the secrets from the values of a response's headers."""
        for name, value in headers.items():
            if any(secret in value for secret in self.values):
                headers[name] = self._any.sub(REPLACEMENT.encode(), value.encode()).decode()


@lru_cache(maxsize=1_000)
def _names_secret(name: str) -> bool:
    return SECRET_NAME.search(name) is not None and name not in _OURS


@lru_cache(maxsize=100)
def _patterns_of(given: frozenset[str]) -> tuple[Sequence[str], Sequence[bytes], re.Pattern[bytes]]:
    """The secrets among these values, the forms in which they may be echoed, and the pattern of any of these."""
    secrets = sorted(filter(is_secret, given), key=len, reverse=True)
    # In JSON, PHP escapes a slash, and .NET a plus sign.
    forms = (form for each in secrets for form in (each, each.replace("/", r"\/"), each.replace("+", r"\u002B")))
    patterns = [form.encode() for form in dict.fromkeys(forms)]
    return secrets, patterns, re.compile(b"|".join(map(re.escape, patterns)) or b"(?!)")


def is_secret(value: str) -> bool:
    """Whether a key is more than the placeholder that a local server accepts, such as `sk-no-key-required`.

    To remove that from answers would change what models write.
    """
    words = re.split("[-_./: ]", value.lower() if value.isupper() else value)
    return len(value) >= SHORTEST and not all(map(_WORD.fullmatch, words))


def _begun(data: bytes, pattern: bytes) -> int:
    """The length of the pattern's longest beginning that is the data's end."""
    end = data[max(0, len(data) - len(pattern) + 1) :]
    at = end.find(pattern[:1])
    while at >= 0 and not pattern.startswith(end[at:]):
        at = end.find(pattern[:1], at + 1)
    return len(end) - at if at >= 0 else 0
