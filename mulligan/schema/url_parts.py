"""The parts of a URL that comes from outside."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

_NONE = SplitResult("", "", "", "", "")


def url_parts(text: str) -> SplitResult:
    """The parts of a URL; all are empty for a text that is none, such as `https://[`, for which `urlsplit` raises."""
    try:
        return urlsplit(text)
    except ValueError:
        return _NONE
