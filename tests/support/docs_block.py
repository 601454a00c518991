"""Code blocks of the pages, and Temporal's own command, which some of them call."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from mulligan.devserver import DevServer, find_temporal
from tests.support.command_fixtures import Outcome, command
from tests.support.temporal import environment_of

ROOT = Path(__file__).parents[2]


def docs_block(page: str, containing: str) -> str:
    """The page's one block that has the text. `page`: its path in the repository."""
    blocks = re.findall(r"^ *```\w+\n(.*?)^ *```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    [found] = [str(text) for text in blocks if containing in text]
    return found


def shell_lines(block: str) -> list[str]:
    """The commands of a block, each as one line."""
    return [line for line in block.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


async def temporal_command(line: str, server: DevServer) -> str:
    """What a line that begins with `temporal` prints at that server. It fails the test if the command fails."""
    program = await find_temporal(print)
    name, *words = shlex.split(line, comments=True)
    assert name == "temporal"
    ran: Outcome = await command(str(program), *words, env={"HOME": "/nonexistent", **environment_of(server)})
    assert ran.code == 0, ran.err or ran.out
    return ran.out
