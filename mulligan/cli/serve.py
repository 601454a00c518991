"""`mulligan serve`: agents over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from mulligan.cli._terminal import fail, print_progress

_TrustProxy = Annotated[
    list[str] | None,
    typer.Option(
        help="The address or network of a proxy whose X-Forwarded-For and X-Forwarded-Proto are believed; the option can be "
        "repeated.",
        show_default="none",
    ),
]


def serve(
    host: Annotated[
        str, typer.Option(help="The address to listen at. Without MULLIGAN_SERVE_TOKENS only a loopback address.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0: a free port.")] = 8300,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name under which clients reach this server, in the Host header; the option can be repeated.",
            show_default="this machine's",
        ),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="The origin of pages that may call this server; the option can be repeated.", show_default="its own"
        ),
    ] = None,
    trust_proxy: _TrustProxy = None,
    task_queue: Annotated[
        str | None, typer.Option(help="The task queue on which runs are started.", show_default="agents")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse a request of which an agent would ignore something (400).")
    ] = False,
    stop_on_disconnect: Annotated[
        bool,
        typer.Option(
            "--stop-on-disconnect",
            help="Stop a run when the client of /v1 that waits for it disconnects. Without it, the run goes on.",
        ),
    ] = False,
) -> None:
    """Serve agents over HTTP until Ctrl-C. Runs go on without it, and any number of these servers may run.

    Example: `mulligan serve`, then `curl -d '{"agent": "assistant", "prompt": "Hello"}' http://127.0.0.1:8300/api/runs`

    MULLIGAN_SERVE_TOKENS says who may call it (docs/serving.md). It speaks plain HTTP: other machines should use it
    through a TLS proxy.

    Exit code: 2 if a setting is invalid, or nothing can listen at the address.
    """
    from mulligan.extras import require_extra

    require_extra("serve", "mulligan serve")
    _check_tokens(host)
    from mulligan.serve.listen import listen

    listen(
        host,
        port,
        allow_hosts=allow_host or [],
        allow_origins=allow_origin or [],
        task_queue=task_queue,
        strict=strict,
        stop_on_disconnect=stop_on_disconnect,
        proxies=trust_proxy or [],
        say=print_progress,
    )


def _check_tokens(host: str) -> None:
    from mulligan.client.settings import settings
    from mulligan.client.web_origin import is_loopback

    if not settings().serve_tokens.get_secret_value().strip() and not is_loopback(host):
        fail(
            f"--host {host} can be reached from other machines: set MULLIGAN_SERVE_TOKENS to name:token, the token for "
            "example from `openssl rand -hex 32`."
        )
