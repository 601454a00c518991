"""Sign-in to the console: a cookie that stands for a token, and the CSRF token of its forms.

The server keeps no sessions. A cookie is signed with the token itself: every replica can check it, and it ends with the
token, or after `SESSION_SECONDS`. The token is not in it. The process at which somebody signs out refuses the cookie from
then on (sign_ins.py); another replica, or this one after a restart, cannot know of that.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response

from mulligan.serve.caller import Caller
from mulligan.serve.console.sign_ins import sign_ins_of
from mulligan.serve.problems import Problem
from mulligan.serve.security import Access, for_user

COOKIE = "mulligan_session"
FORM_COOKIE = "mulligan_form"
"""The CSRF token where the server has no tokens: every form repeats it, which a page of another origin cannot read."""
NOTE_COOKIE = "mulligan_note"
"""A cookie, as a sentence in an address could be anybody's."""
NOTE_CHARS = 400
SESSION_SECONDS = 12 * 3600
_SEPARATOR = "."


@dataclass(frozen=True)
class Session:
    """Who looks at a page. `csrf`: what its forms contain. `is_new`: the cookie of the CSRF token must be set. `id`: of a
    cookie's session, and `ends`: when it ends, in seconds since the epoch. `waiting`: how many calls wait for a person, for
    the navigation.
    """

    caller: Caller
    csrf: str
    is_new: bool = False
    id: str = ""
    ends: int = 0
    waiting: str = ""

    def set_cookie(self, request: Request, response: Response) -> None:
        """Set the cookie of the CSRF token, if the browser does not have it."""
        if self.is_new:
            _set(request, response, FORM_COOKIE, self.csrf, None)


async def find_session(request: Request, access: Access) -> Session | None:
    """The session of a request: by its cookie, or by the header `Authorization`; None: nobody has signed in.

    An own sign-in is asked instead. Its forms always need the CSRF token, also with `Authorization`: it may know people by
    what a browser or a proxy adds to each request by itself.

    Raises:
        Problem: the own sign-in has refused the request.
    """
    if not access.has_tokens:
        caller = await access.authenticate(request)
        known = request.cookies.get(FORM_COOKIE, "")
        is_valid = len(known) == 43 and known.isascii()
        return Session(caller, known if is_valid else secrets.token_urlsafe(32), is_new=not is_valid)
    if request.headers.get("authorization"):
        try:
            return Session(await access.authenticate(request), "")
        except Problem:
            return None
    cookie = request.cookies.get(COOKIE, "")
    ends, _, signature = cookie.partition(_SEPARATOR)
    nonce, _, signature = signature.partition(_SEPARATOR)
    if not (ends.isascii() and ends.isdecimal() and len(ends) < 12 and int(ends) > time.time()):
        return None
    for secret, caller in access.secrets():
        expected = _signature(secret, "session", ends, nonce)
        if hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            if sign_ins_of(request).has_ended(caller.name, nonce):
                return None
            csrf = _signature(secret, "form", ends, nonce)
            return Session(for_user(caller, request), csrf, id=nonce, ends=int(ends))
    return None


def sign_in(request: Request, response: Response, access: Access, token: str) -> None:
    """Set the cookie for a token.

    Raises:
        Problem: there is no such token.
    """
    access.by_token(f"Bearer {token}")
    ends, nonce = str(int(time.time()) + SESSION_SECONDS), secrets.token_urlsafe(16)
    cookie = _SEPARATOR.join((ends, nonce, _signature(token.strip().encode(), "session", ends, nonce)))
    _set(request, response, COOKIE, cookie, SESSION_SECONDS)


def sign_out(request: Request, response: Response, session: Session) -> None:
    """End the session, and remove its cookie."""
    if session.id:
        sign_ins_of(request).end(session.caller.name, session.id, session.ends)
    _set(request, response, COOKIE, "", 0)


def check_form(session: Session, request: Request, csrf: str) -> None:
    """Refuse a form that is not of a page of this session.

    A browser adds the cookie to a request that another site has made; `Origin` (gate.py), `SameSite` and this token each
    refuse it. A request with `Authorization` needs none of them: no browser adds that header by itself.

    Raises:
        Problem: it is not.
    """
    if "authorization" in request.headers and not session.csrf:
        return
    if not session.csrf or not hmac.compare_digest(session.csrf.encode(), csrf.encode("utf-8", "replace")):
        raise Problem(403, "foreign_form", "The form is too old, or is not of this page. Load the page again.")


def leave_note(request: Request, response: Response, kind: str, text: str) -> None:
    """Leave a sentence for the next page of this browser, on what a form has done (`done`) or not (`problem`)."""
    _set(request, response, NOTE_COOKIE, quote(f"{kind} {text[:NOTE_CHARS]}"), 60)


def take_note(request: Request, response: Response) -> None:
    """Remove the sentence, as a page shows it."""
    if NOTE_COOKIE in request.cookies:
        _set(request, response, NOTE_COOKIE, "", 0)


def note_of(request: Request) -> tuple[str, str] | None:
    """The sentence that was left for this page, and its kind."""
    kind, _, text = unquote(request.cookies.get(NOTE_COOKIE, ""))[: NOTE_CHARS + 10].partition(" ")
    return (kind, text) if kind in ("done", "problem") and text else None


def _signature(secret: bytes, *parts: str) -> str:
    return hmac.new(secret, _SEPARATOR.join(("mulligan-console", *parts)).encode(), hashlib.sha256).hexdigest()


def _set(request: Request, response: Response, name: str, value: str, seconds: int | None) -> None:
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=request.scope.get("root_path") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
