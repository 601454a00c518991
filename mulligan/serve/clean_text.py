"""Texts without what must stay in this process: the folders of its machine in answers, and secrets of paths in logs."""

from __future__ import annotations

import logging
import re
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import mulligan
from mulligan.client.settings import settings

_SECRET = re.compile(r"(/api/callbacks/)[^\s?]+")
"""The token of a callback is in the path: whoever reads a log could end the call with it."""


def without_folders(text: str) -> str:
    """A text for clients, without the folders of this machine: those of the installation, its user and the storage. The name
    of a file in them is left, as in `…/orders.csv`.
    """
    return _folders().sub("…", text) if "/" in text else text


@cache
def _folders() -> re.Pattern[str]:
    chosen = settings()
    named = [chosen.content_dir, unquote(urlsplit(chosen.external_storage).path)]
    folders = [Path(sys.prefix), Path(sys.base_prefix), Path(mulligan.__file__).parents[1], Path(tempfile.gettempdir())]
    folders += [Path(each) for each in named if each]
    with suppress(OSError, RuntimeError):  # the folder was deleted; the user has none
        folders += [Path.cwd(), Path.home()]
    known = {str(each) for folder in folders for each in (folder.absolute(), folder.resolve())} - {"/"}
    return re.compile(
        "|".join(rf"(?<![\w.-]){re.escape(each)}(?![\w.-])" for each in sorted(known, key=len, reverse=True))
    )


def logged_path(path: str) -> str:
    """A path, or a line of a log with one, without the token of a callback."""
    return _SECRET.sub(r"\1…", path)


class _WithoutSecrets(logging.Filter):
    """Takes secrets out of the paths in uvicorn's log, which is written where somebody else runs the application."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(logged_path(each) if isinstance(each, str) else each for each in record.args)
        return True


_FILTER = _WithoutSecrets()


def hide_secrets_in_logs() -> None:
    """Take secrets out of the paths that uvicorn logs in this process."""
    for name in ("uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).addFilter(_FILTER)
