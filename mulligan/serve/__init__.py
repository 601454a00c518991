"""`mulligan serve`: agents over HTTP. It keeps nothing: every replica answers for every run (docs/serving.md).

A request passes gate.py (host, origin, token; arriving_body.py limits its body), then the routes of a protocol, which call
`Runs` (runs.py). A route reads its body with `parse_body` (json_body.py), and a public one checks its sender before that.

**A protocol is one file, which only translates.** api.py is the example. It has

- an `APIRouter` with its routes. Each gets `runs: Serving` and `caller: Calling` (both from http_protocol.py), and passes
  the caller to every method;
- a `Protocol(prefix=…, router=…, refuse=…)`, where `refuse` makes a response of a `Problem` in the protocol's form. It
  is used for everything that goes wrong: exceptions of `Runs` need not be caught. Its name is added to `PROTOCOLS` of
  create_app.py.

What `Runs` offers: `start` (once for an id), `resume`, `describe`, `find`, `read`, `steps`, `messages`, `pending`,
`agents`, `agent`, `send_message`, `decide`, `answer`, `stop`, `cancel`, and

    watched = await runs.watch(caller, run_id, since)     # raises before the response begins; None: all was read
    async with aclosing(watched) as events:
        async for each in events:                         # a WatchedEvent: `event` (docs/events.md), `token`, `json`
            ...

`each.token` is the id for a stream: no other event of the run has it, and on any replica `since` continues after it. The
iterator ends after the event `run_ended`; while Temporal or the workers do not answer, it waits. What it raises once the
response has begun, `problem_of` makes a `Problem` of: end the stream with the protocol's error. `each.position` is a
tuple that never goes back: a protocol can make sequence numbers of it that are the same on every replica (leave out
`sub_run` and `tool_progress` there). Send
streams with `EventStream` (http_protocol.py): it cuts off clients that do not read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mulligan.serve.caller import Caller

if TYPE_CHECKING:
    from starlette.types import ASGIApp
    from temporalio.client import Client

    from mulligan.serve.own_sign_in import Authenticate

__all__ = ["Caller", "app"]


def app(  # noqa: PLR0913 - an option is a parameter
    *,
    client: Client | None = None,
    tokens: str | None = None,
    allow_hosts: Iterable[str] = (),
    allow_origins: Iterable[str] = (),
    task_queue: str | None = None,
    strict: bool = False,
    stop_on_disconnect: bool = False,
    authenticate: Authenticate | None = None,
) -> ASGIApp:
    """The server as an ASGI application, to run by itself or to mount in another one.

    Args:
        client: a client of the runs' Temporal server; None: `mulligan.connect()` makes one at the first request.
        tokens: who may call, as in `MULLIGAN_SERVE_TOKENS`; None: that variable; empty: everybody who reaches it.
        allow_hosts: names in the Host header beside this machine's own; `*`: any, where something in front checks it.
        allow_origins: origins of the pages that may call it, beside its own.
        task_queue: where runs are started; None: `MULLIGAN_TASK_QUEUE`.
        strict: whether a request is refused (400) of which an agent would ignore something, such as a temperature.
        stop_on_disconnect: whether a run stops when the client of `/v1` that waits for it disconnects; otherwise it goes on.
        authenticate: who may call, in place of tokens: a function, async or not, that gets each request without its body
            (Starlette's `HTTPConnection`) and returns a `Caller`, or None: 401 (docs/serving-sign-in.md).

    Raises:
        DeclarationError: the extra `serve` is not installed; a token, host or origin is invalid; or there are tokens and
            `authenticate`.
    """
    from mulligan.extras import require_extra

    require_extra("serve", "mulligan.serve")
    from mulligan.serve.create_app import create_app

    return create_app(
        client=client,
        tokens=tokens,
        hosts=allow_hosts,
        origins=allow_origins,
        task_queue=task_queue,
        strict=strict,
        stop_on_disconnect=stop_on_disconnect,
        authenticate=authenticate,
    )
