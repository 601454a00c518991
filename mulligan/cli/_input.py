"""What a person gives to a command: a text or a JSON object as an argument, on stdin, in a file, or in an editor."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mulligan.cli._terminal import err, fail


def read_text(argument: str) -> str:
    """A text argument; `-` reads it from stdin. An empty text ends the command."""
    text = sys.stdin.read().rstrip("\n") if argument == "-" else argument
    if not text.strip():
        fail(f"the text is {text!r}; give one that says something, in quotes, or `-` to read it from stdin.")
    return text


def read_files(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The files as parts of a message, as JSON. A file that cannot be used ends the command."""
    from mulligan.content import ContentError, content_file

    try:
        return [content_file(path).model_dump(mode="json") for path in paths]
    except ContentError as error:
        fail(f"--file: {error}")


def read_json_object(argument: str, name: str, example: str) -> dict[str, Any]:
    """A JSON object: the argument itself, `-` for stdin, `@FILE` for a file. Errors name the option `name`."""
    try:
        if argument == "-":
            argument = sys.stdin.read()
        elif argument.startswith("@"):
            argument = Path(argument[1:]).read_text(encoding="utf-8")
    except OSError as error:
        fail(f"{name}: {error.filename}: {error.strerror}.")
    except ValueError as error:
        fail(f"{name} is not JSON: {error}.")
    return parse_json_object(argument, name, example)


def parse_json_object(text: str, name: str, example: str) -> dict[str, Any]:
    """The JSON object in a text; anything else ends the command."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        fail(f"{name} is not JSON: {error}.")
    if not isinstance(value, dict):
        fail(f"{name} is {json.dumps(value)[:80]}; it must be a JSON object like {example}.")
    return value


def prompt(question: str) -> str:
    """Ask the person at the keyboard, on stderr as stdout is for results. Empty at the end of the input."""
    try:
        return err.input(question).strip()
    except EOFError:
        err.print()
        return ""


def is_at_terminal() -> bool:
    """Whether a person can be asked."""
    return sys.stdin.isatty()


def confirmed() -> bool:
    """Whether the person at the keyboard wants it to start. Without a terminal, the command ends."""
    if not is_at_terminal():
        fail("there is no terminal to confirm on; use --yes.")
    return prompt("start it? [y/N] ").lower() in ("y", "yes")


def edit_text(text: str, file_name: str) -> str:
    """Open the text in the person's editor (`VISUAL`, `EDITOR`, or vi) and return what they saved.

    The file is in a folder that only this user can read.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / file_name
        file.write_text(text, encoding="utf-8")
        try:
            code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode  # noqa: S603 - their own editor
            if code:
                fail(f"--edit: the editor {editor!r} ended with exit code {code}; the call still waits.")
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            fail(f"--edit: the editor {editor!r} failed: {error}. Set EDITOR to your editor; the call still waits.")
