"""docs/tutorial.md, done as it says: its files are written, its commands run in its order, and they print what it shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:into\s+`([\w.]+)`:\n\n)?```(\w+)\n(.*?)```", re.DOTALL)
STAYS = re.compile(r"mulligan (dev|worker)\b")
"""Commands that keep their terminal."""


class Terminals:
    """The reader's terminals: one for the server, one for the worker, and one for all other commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_ports(1)[0]
        self.open: dict[str, subprocess.Popen[bytes]] = {}
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_", "MULLIGAN_"))
        }
        kept.pop("VIRTUAL_ENV", None)
        # An address where nothing listens: the trace comes from Temporal's history.
        self.environment = kept | {
            "TEMPORAL_ADDRESS": f"localhost:{self.port}",
            "MULLIGAN_JAEGER_URL": "http://localhost:1",
            "COLUMNS": "120",
        }

    def type(self, command: str) -> str:
        """Run a block of commands in its terminal; returns what it prints, if it ends."""
        command = command.replace("uv add ../mulligan", f"uv add {ROOT}")
        if stays := STAYS.search(command):
            self.stay(stays[1], command.replace("mulligan dev", f"mulligan dev --port {self.port}"))
            return ""
        ran = subprocess.run(
            ["bash", "-ec", command], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False, timeout=100
        )  # fmt: skip
        assert ran.returncode == 0, command + ran.stdout + ran.stderr
        self.enter(command)
        return ran.stdout

    def enter(self, command: str) -> None:
        """Follow a `cd`."""
        for folder in re.findall(r"^cd (\S+)$", command, re.MULTILINE):
            self.folder = self.folder / folder

    def stay(self, name: str, command: str) -> None:
        """Run a command that keeps its terminal, in place of the one before; wait until it says that it is ready."""
        self.stop(name)
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            self.open[name] = subprocess.Popen(
                ["bash", "-c", command], cwd=self.folder, env=self.environment, stdout=out, stderr=out, start_new_session=True
            )  # fmt: skip
        until = time.monotonic() + 300
        while not re.search(r"Serving|Ctrl-C stops", log.read_text()):
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)

    def stop(self, name: str) -> None:
        """Ctrl-C, for all processes of the terminal."""
        if process := self.open.pop(name, None):
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    opened = Terminals(tmp_path)
    yield opened
    for name in ("worker", "dev"):
        opened.stop(name)


def test_the_tutorial_can_be_followed_to_its_end(terminals: Terminals) -> None:
    """Each `text` block has lines of what the command before printed; `…` stands for anything."""
    printed = ""
    blocks = BLOCK.findall((ROOT / "docs/tutorial.md").read_text())
    assert len(blocks) > 25
    for file, language, text in blocks:
        if language == "python":
            assert file
            (terminals.folder / file).write_text(text)
        elif language == "sh":
            printed = terminals.type(text)
            print(f"$ {text}{printed}")
        else:
            assert language == "text"
            for line in text.splitlines():
                pattern = r"[^\n]*".join(re.escape(part) for part in line.split("…"))
                assert re.search(pattern, printed), f"{line!r} is not in:\n{printed}"
