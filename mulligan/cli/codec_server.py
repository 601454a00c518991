"""`mulligan codec-server`: decrypt runs for Temporal's UI and command line."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mulligan.cli._terminal import OK, fail

if TYPE_CHECKING:
    from mulligan.client.encryption import EncryptionCodec

DEV_SERVER_UI = ["http://localhost:8233", "http://127.0.0.1:8233"]
"""Two origins, because browsers treat the two names as different."""


async def codec_server(
    host: Annotated[
        str, typer.Option(help="The address to listen at. Without --token-file only a loopback address.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0: a free port.")] = 8081,
    ui_origin: Annotated[
        list[str] | None,
        typer.Option(
            help="The origin of a Temporal UI whose pages may call this server; the option can be repeated.",
            show_default="the dev server's UI",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with a token that callers must send as `Authorization: Bearer …`.", show_default=False
        ),
    ] = None,
) -> int:
    """Decrypt payloads for Temporal's UI and command line, until Ctrl-C.

    Example: `mulligan codec-server`, then `temporal workflow show -w ID --codec-endpoint http://127.0.0.1:8081`

    Everyone who can reach it can read what MULLIGAN_ENCRYPTION_KEYS encrypts. By default only this machine can reach it; see
    docs/encryption.md.
    """
    from mulligan.client.encryption import EncryptionCodec, parse_keys
    from mulligan.client.settings import settings
    from mulligan.client.web_origin import is_loopback, parse_origin

    if not (keys := settings().encryption_keys.get_secret_value()):
        fail("MULLIGAN_ENCRYPTION_KEYS is not set: a codec server needs the keys of the workers.")
    codec = EncryptionCodec(parse_keys(keys))
    origins = [parse_origin(each) for each in ui_origin or DEV_SERVER_UI]
    if token_file is None and not is_loopback(host):
        fail(
            f"--host {host} can be reached from other machines: give a --token-file, for example made by "
            "`openssl rand -hex 32`."
        )
    return await _serve(codec, host, port, origins, _read_token(token_file) if token_file else "")


async def _serve(codec: EncryptionCodec, host: str, port: int, origins: list[str], token: str) -> int:
    from mulligan.client import codec_server as endpoint
    from mulligan.client.settings import settings
    from mulligan.client.web_origin import is_loopback
    from mulligan.worker.logs import say, set_up_logging

    set_up_logging(settings().log_format, is_encrypted=True)
    stop = asyncio.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    async with endpoint.codec_server(codec, host, port, origins, token) as url:
        say(f"Codec server at {url} for {', '.join(origins)}. Ctrl-C stops it.")
        if not is_loopback(host):
            say("It uses plain HTTP: other machines should reach it only through a TLS proxy.")
        await stop.wait()
    return OK


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        fail(f"--token-file {path}: {error.strerror}.")
    except ValueError:
        token = ""
    if not re.fullmatch(r"[\x21-\x7e]{32,}", token):
        fail(
            f"--token-file {path} has no valid token: it needs 32 or more characters without spaces, for "
            "example from `openssl rand -hex 32`."
        )
    return token
