"""Who may see the console: the page where people sign in, and the check that all other pages begin with."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from mulligan.serve.arriving_body import ArrivingBody, read_body
from mulligan.serve.caller_rights import check_caller
from mulligan.serve.console.rendering import HEADERS, page
from mulligan.serve.console.sessions import Session, check_form, find_session, sign_in, sign_out
from mulligan.serve.console.sign_ins import sign_ins_of
from mulligan.serve.off_loop import off_loop
from mulligan.serve.problems import Problem

PREFIX = "/console"
MOST_FORM_FIELDS = 1_000
MOST_SIGN_IN_BYTES = 16_000
"""Of the only form that everybody may send."""
_PATH = re.compile(r"/(?![/\\])[\x21-\x7e]*")


class SignInNeeded(Problem):
    """Nobody has signed in. It is answered with the page for that."""

    def __init__(self, headers: dict[str, str]) -> None:
        super().__init__(303, "sign_in_needed", "Sign in first.", headers)


def path_in(request: Request, path: str) -> str:
    """A path of the application as the browser needs it, which may be mounted below another one."""
    return f"{request.scope.get('root_path', '')}{path}"


def redirect(request: Request, path: str) -> Response:
    """Send the browser to a page, with GET."""
    return RedirectResponse(path_in(request, path), 303, headers=HEADERS)


async def _viewer(request: Request) -> Session:
    """The session of a request.

    Raises:
        SignInNeeded: there is none.
    """
    session = await find_session(request, request.app.state.access)
    if session is None:
        root = request.scope.get("root_path", "")
        wanted = request.url.path.removeprefix(root) + (f"?{request.url.query}" if request.url.query else "")
        wanted = wanted if request.method == "GET" else "/"
        raise SignInNeeded({"Location": f"{path_in(request, f'{PREFIX}/sign-in')}?next={quote(wanted, safe='/')}"})
    check_caller(request, session.caller)
    return session


Viewing = Annotated[Session, Depends(_viewer)]
"""The session of a request; without one the browser is sent to the page where people sign in."""


async def _fields(request: Request, most_bytes: int | None = None) -> dict[str, str]:
    """The fields of a form, the last of each name.

    Raises:
        Problem: they cannot be read.
    """
    body = await read_body(request, most_bytes)

    def parse() -> dict[str, str]:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FORM_FIELDS, errors="strict"))

    try:
        return await off_loop(len(body), parse)
    except ValueError:
        raise Problem(400, "invalid_form", "The form cannot be read, or has too many fields.") from None
    finally:
        ArrivingBody.forget(request)


async def _checked_fields(request: Request, session: Viewing) -> dict[str, str]:
    fields = await _fields(request)
    check_form(session, request, fields.pop("csrf", ""))
    return fields


Form = Annotated[dict[str, str], Depends(_checked_fields)]
"""The fields of a form of this session."""

sign_in_pages = APIRouter(prefix=PREFIX, include_in_schema=False)


@sign_in_pages.get("/sign-in")
async def show_sign_in(request: Request, next: str = "/") -> Response:  # noqa: A002 - the query's name
    """The page where people sign in."""
    session = await find_session(request, request.app.state.access)
    if session is not None:
        return redirect(request, _local(next))
    return page(request, None, "sign_in.html", title="Sign in", next=_local(next), refused="")


@sign_in_pages.post("/sign-in")
async def send_sign_in(request: Request) -> Response:
    """Sign in with a token. There is no session yet that a foreign page could use: `Origin` is checked by gate.py."""
    fields = await _fields(request, MOST_SIGN_IN_BYTES)
    # From here on nothing is waited for, so many attempts at the same time are not more than one after the other.
    sign_ins, address = sign_ins_of(request), request.client.host if request.client else ""
    sign_ins.check(address)
    wanted = _local(fields.get("next", "/"))
    response = redirect(request, wanted)
    if not request.app.state.access.has_tokens:
        return response
    try:
        sign_in(request, response, request.app.state.access, fields.get("token", ""))
    except Problem:
        sign_ins.fail(address)
        refused = "This token is not known. Ask whoever runs the server for one."
        return page(request, None, "sign_in.html", 401, title="Sign in", next=wanted, refused=refused)
    return response


@sign_in_pages.post("/sign-out", dependencies=[Depends(_checked_fields)])
async def send_sign_out(request: Request, session: Viewing) -> Response:
    """Sign out."""
    response = redirect(request, f"{PREFIX}/sign-in")
    sign_out(request, response, session)
    return response


def _local(path: str) -> str:
    """A path of this application; anything else could lead to a foreign page."""
    return path if _PATH.fullmatch(path) and len(path) < 2_000 else "/"
