"""`mulligan codec-server`: encrypted runs, readable in Temporal's UI and command line."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mulligan.cli import _terminal
from mulligan.cli._terminal import fail, run, say

if TYPE_CHECKING:
    from mulligan.client.encryption import EncryptionCodec

DEV_SERVERS_UI = ["http://localhost:8233", "http://127.0.0.1:8233"]
"""Both: to a browser they are two origins."""


def codec_server(
    host: Annotated[str, typer.Option(help="Where it listens. Another than a loopback one needs --token-file.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it listens; 0: any free port.")] = 8081,
    ui_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="Where Temporal's UI is, whose pages may call it; may be given again.",
            show_default="the dev server's UI",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with a token that callers must send as `Authorization: Bearer …`.")
    ] = None,
) -> None:
    """Decrypt payloads for Temporal's UI and command line, until Ctrl-C.

    Example: `mulligan codec-server`, then `temporal workflow show -w ID --codec-endpoint http://127.0.0.1:8081`

    Whoever reaches it reads what MULLIGAN_ENCRYPTION_KEYS encrypts. It listens on this machine only; see docs/connecting.md.
    """
    from mulligan.client.codec_server import is_loopback, parse_origin
    from mulligan.client.encryption import EncryptionCodec, parse_keys
    from mulligan.client.settings import settings
    from mulligan.errors import DeclarationError

    try:
        if not (keys := settings().encryption_keys.get_secret_value()):
            fail("MULLIGAN_ENCRYPTION_KEYS is not set: a codec server needs the keys that the workers have.")
        codec = EncryptionCodec(parse_keys(keys))
        origins = [parse_origin(each) for each in ui_origin or DEV_SERVERS_UI]
    except DeclarationError as error:
        fail(str(error))
    if token_file is None and not is_loopback(host):
        fail(f"--host {host} can be reached from other machines: give a --token-file, as of `openssl rand -hex 32`.")
    run(_serve(codec, host, port, origins, _token_in(token_file) if token_file else ""))


async def _serve(codec: EncryptionCodec, host: str, port: int, origins: list[str], token: str) -> int:
    from mulligan.client import codec_server as serving
    from mulligan.errors import DeclarationError

    stop = asyncio.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    try:
        async with serving.codec_server(codec, host, port, origins, token) as url:
            say(f"Codec server at {url} for {', '.join(origins)}. Ctrl-C ends it.")
            if not serving.is_loopback(host):
                say("It speaks plain HTTP: let others reach it only through a proxy that ends TLS.")
            await stop.wait()
    except DeclarationError as error:
        fail(str(error))
    return _terminal.OK


def _token_in(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        fail(f"--token-file {path}: {error.strerror}.")
    except ValueError:
        token = ""
    if not re.fullmatch(r"[\x21-\x7e]{32,}", token):
        fail(
            f"--token-file {path} holds no token: 32 characters or more, without spaces, as of `openssl rand -hex 32`."
        )
    return token
