"""Pages: the templates, what they may call, and the headers of each response.

Whatever a model, a tool or a person wrote is rendered as text: the engine escapes every value, and no template marks one as
HTML.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from mulligan.content import described
from mulligan.durations import duration_text
from mulligan.features import installed
from mulligan.run_view.run_view import Entry
from mulligan.run_view.step_view import CallView, StepView
from mulligan.serve.console.sessions import Session, note_of, take_note
from mulligan.serve.console.step_events import StepEvents, page_of
from mulligan.serve.console.waiting_page import CallToDecide
from mulligan.serve.problems import Problem
from mulligan.wire.times import iso

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_log = logging.getLogger(__name__)
SHOWN_CHARS = 20_000
"""Characters of a text in a page. The whole text has an address of its own."""
LINKS: list[tuple[str, str]] = []
"""The paths and labels that the navigation of operators has for pages of features."""
_QUOTED = re.compile("`([^`]*)`")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]"
)
"""Characters that change how a text looks without being seen, such as those that turn its direction."""


def render(template: str, root: str, **values: Any) -> str:
    """A template as HTML. `root`: the path below which the application is mounted."""
    return _TEMPLATES.get_template(template).render(root=root, **values)


def page(request: Request, session: Session | None, template: str, status: int = 200, **values: Any) -> Response:
    """A page as a response."""
    response = fragment(request, session, template, status, note=note_of(request), **values)
    take_note(request, response)
    if session is not None:
        session.set_cookie(request, response)
    return response


def fragment(request: Request, session: Session | None, template: str, status: int = 200, **values: Any) -> Response:
    """A part of a page."""
    root = request.scope.get("root_path", "")
    html = render(template, root, session=session, here=request.url.path.removeprefix(root), **values)
    return HTMLResponse(html.encode("utf-8", "replace"), status, headers=HEADERS)


def render_cards(request: Request, session: Session, calls: Sequence[CallToDecide], only: str) -> list[Markup]:
    """The card of each call that waits for a person. One that cannot be rendered says so, and is logged."""
    root, cards = request.scope.get("root_path", ""), list[Markup]()
    for call in calls:
        html = ""
        try:
            if not call.is_broken:
                html = render("_waiting_call.html", root, session=session, call=call, only=only)
        except Exception:  # noqa: BLE001 - one call must not hide the others
            _log.exception("The call %s of %s cannot be shown.", call.pending["call_id"], call.pending["id"])
        cards.append(Markup(html or render("_broken_call.html", root, pending=call.pending)))  # noqa: S704 - a template's
    return cards


class ProblemPage(HTMLResponse):
    """A problem as a page. Its links depend on where the application is mounted, which is known when it is sent."""

    def __init__(self, problem: Problem) -> None:
        super().__init__("", problem.status, headers={**HEADERS, **problem.headers})
        self._problem = problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the page to the client."""
        html = render(
            "problem.html",
            scope.get("root_path", ""),
            session=None,
            here="",
            note=None,
            title=HTTPStatus(self._problem.status).phrase,
            problem=self._problem,
        )
        self.body = html.encode("utf-8", "replace")
        self.headers["content-length"] = str(len(self.body))
        await super().__call__(scope, receive, send)


def anchor_of(part: Entry | CallView, prefix: str = "") -> str:
    """The id that a part of a run has in its page."""
    if isinstance(part, StepView):
        return f"{prefix}step-{part.number}"
    if isinstance(part, CallView):
        return f"{prefix}step-{part.step}-call-{part.number}"
    return f"{prefix}event-{getattr(part, 'offset', 0)}"


def link_to(part: StepView | CallView, page_events: StepEvents | None, prefix: str = "") -> str:
    """Where a part of a run is, from a page that shows some of its steps; None: it has all that is linked."""
    step = part.number if isinstance(part, StepView) else part.step
    is_here = page_events is None or page_events.first <= step <= page_events.last
    return f"{'' if is_here else f'?page={page_of(step)}'}#{anchor_of(part, prefix)}"


@pass_context
def _anchor(context: Context, part: Entry | CallView) -> str:
    run = context.get("run")
    return anchor_of(part, run.prefix if run else "")


@pass_context
def _link(context: Context, part: StepView | CallView) -> str:
    run = context.get("run")
    return link_to(part, run.events, run.prefix) if run else link_to(part, None)


def _visible(text: object) -> str:
    """A text in which characters that cannot be seen are named: nobody approves what they do not see."""
    return _INVISIBLE.sub(lambda match: f"⟦{_name(match[0])}⟧", str(text))


def _name(character: str) -> str:
    return f"U+{ord(character):04X}" + (f" {name}" if (name := unicodedata.name(character, "")) else "")


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _path(run_id: str) -> str:
    """The path of a run's page, without the root: an id may contain slashes."""
    return f"/console/runs/{quote(run_id, safe='/')}"


def _for_people(detail: str) -> str:
    """What a run waits for, without the command and the backticks that a terminal shows with it."""
    return _QUOTED.sub("“\\1”", detail.partition(": mulligan ")[0])


def _clock(at: datetime | str) -> str:
    at = datetime.fromisoformat(at) if isinstance(at, str) else at
    return at.astimezone(UTC).strftime("%H:%M:%S")


def _moment(at: datetime | str) -> str:
    at = datetime.fromisoformat(at) if isinstance(at, str) else at
    return at.astimezone(UTC).strftime("%d %b %Y, %H:%M:%S UTC")


def _usd(cost: float | None) -> str:
    if cost is None:
        return "–"
    return f"${cost:.2f}" if cost >= 1 else f"${cost:.4f}" if cost else "$0"


def _query(values: Mapping[str, Any], **changes: Any) -> str:
    """A query string of these values, those that are empty left out."""
    parameters = {name: value for name, value in {**values, **changes}.items() if value not in (None, "")}
    return f"?{urlencode(parameters)}" if parameters else ""


def _actions_of_ended() -> list[str]:
    """What the parts of features offer on the page of a run that has ended: each has a page `ACTION-it`."""
    return [pages.action for pages in installed("pages").values() if pages.action]


_STATUS_SIGNS = {
    "running": "●",
    "waiting": "◷",
    "completed": "✓",
    "failed": "✕",
    "timed_out": "✕",
    "terminated": "✕",
    "cancelled": "⊘",
}


def _sign(status: str) -> str:
    """A sign for a status, as its colour is not enough."""
    return _STATUS_SIGNS.get(status, "■")


_TEMPLATES = Environment(
    loader=PackageLoader("mulligan.serve.console"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_TEMPLATES.filters |= {
    "anchor": _anchor,
    "link": _link,
    "described": described,
    "visible": _visible,
    "as_json": _as_json,
    "run_path": _path,
    "for_people": _for_people,
    "clock": _clock,
    "moment": _moment,
    "iso": iso,
    "duration": duration_text,
    "usd": _usd,
    "sign": _sign,
}
_TEMPLATES.globals |= {
    "query": _query,
    "SHOWN_CHARS": SHOWN_CHARS,
    "actions_of_ended": _actions_of_ended,
    "links": LINKS,
}
