"""Whether a server's refusal says that it has forgotten the session, and whether the refused call may have run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_IS_SILENT_ABOUT_SESSIONS = frozenset({408, 413, 425, 429})
"""Statuses that are about the request or its moment only."""
_BEFORE_THE_CALL = frozenset({400, 401, 403, 404, 410, 422})
"""Statuses by which a server refuses a request before it begins with it."""
_OF_THE_REQUEST = frozenset({-32_601, -32_602})
"""Codes of an unknown method and of invalid parameters."""
_GONE = (
    r"(?:not (?:found|known|valid|exist(?:ing)?|active|initiali[sz]ed)|unknown|invalid|expired|gone|lost|missing|closed"
    r"|terminated|ended|no longer|does ?n[o']t exist|no valid|no such|no active|not recogni[sz]ed|required)"
)
_SESSION = r"(?:mcp[ -]?)?session(?:[ -_]?id)?s?|transport|connection id"
_SAID = (rf"\b(?:{_SESSION})\b.{{0,60}}\b{_GONE}\b", rf"\b{_GONE}\b.{{0,40}}\b(?:{_SESSION})\b")
_NOT_BEGUN = (r"\bnot (?:been |yet )?initiali[sz]ed", r"before initiali[sz]ation")
_WORDS = re.compile("|".join((*_SAID, *_NOT_BEGUN)), re.IGNORECASE | re.DOTALL)
_OF_A_TOOL = re.compile(r"\b(?:tools?|execut\w+|calling|running)\b", re.IGNORECASE)
"""Words of a refusal that comes from the tool, which has begun then."""
_LONGEST_STATEMENT = 100
"""Characters of a message of the protocol that says nothing but that the session is not known."""
_LONGEST_WORDS = 300
"""Characters of a refusal that is read as one about the session. A longer one may quote anything."""


@dataclass(frozen=True)
class Refusal:
    """How a server refused a request.

    Args:
        status: The HTTP status of the response; None where the refusal is a message of the protocol.
        words: What the server wrote.
        code: Its code by the protocol; 0 where it has none.
        is_streamed: It came in a stream of events, which began before the server knew the outcome.
        has_session: The request named a session. A program's session is its process.
    """

    status: int | None
    words: str
    code: int = 0
    is_streamed: bool = False
    has_session: bool = True


def forgotten(refusal: Refusal) -> Literal["yes", "perhaps", "no"]:
    """Whether the server has forgotten the session. "perhaps": it has, if it refuses everything else in it, too."""
    if not refusal.has_session or refusal.status in _IS_SILENT_ABOUT_SESSIONS:
        return "no"
    is_of_session = _is_of_session(refusal.words)
    if refusal.status is None:
        # Also the error of a tool that has sessions of its own: a browser's, a shop's.
        return "perhaps" if is_of_session else "no"
    if is_of_session and refusal.status < 500:
        return "yes"
    if refusal.code in _OF_THE_REQUEST:
        return "no"
    return "yes" if refusal.status in (404, 410) else "perhaps"


def cannot_have_run(refusal: Refusal, *, has_begun: bool) -> bool:
    """Whether the refused call has certainly not run, where the server has forgotten the session.

    Args:
        refusal: How it was refused.
        has_begun: The server has sent something of the call already: progress, a question, a part of its answer.
    """
    if has_begun or refusal.is_streamed:
        return False
    if refusal.status is None:
        return len(refusal.words) <= _LONGEST_STATEMENT and not _OF_A_TOOL.search(refusal.words)
    return refusal.status in _BEFORE_THE_CALL


def _is_of_session(words: str) -> bool:
    return len(words) <= _LONGEST_WORDS and _WORDS.search(words) is not None
