"""A text in the editor of the person at the keyboard."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from mulligan.cli._terminal import fail


def edited(text: str, name: str) -> str:
    """The text as the person leaves it, in a file of that name that nobody else reads: `VISUAL`, `EDITOR`, or vi."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_text(text, encoding="utf-8")
        try:
            code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode  # noqa: S603 - their own editor
            if code:
                fail(f"--edit: {editor!r} ended with {code}; nothing is decided.")
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            fail(f"--edit: {editor!r} cannot be used: {error}. Set EDITOR to yours; nothing is decided.")
