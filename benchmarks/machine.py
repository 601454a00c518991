"""Facts for the page about the machine and the versions of the measurements."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.contenders import ROOT, WorkerKind
from benchmarks.results import commit

OURS = ("temporalio", "pydantic", "openai", "aiohttp")
_TELL = (
    "import json, sys; from importlib.metadata import version as v; print(json.dumps({n: v(n) for n in sys.argv[1:]}))"
)


class OtherMachineError(Exception):
    """The folder contains measurements of another machine."""


def facts(server: Path, rivals: list[WorkerKind], command: list[str]) -> dict[str, Any]:
    """CPU, memory, versions, the date, and the command line of the benchmark."""
    cpu = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line[:10] == "model name"), "?")
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line[:8] == "MemTotal"), 0)
    told = subprocess.run([server, "--version"], capture_output=True, text=True).stdout
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 1024 / 1024, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "server": told.strip(),
        "versions": {name: version(name) for name in OURS},
        "rivals": {kind.name: _versions(kind) for kind in rivals},
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(command),
    }


def write(told: dict[str, Any], folder: Path) -> None:
    """Save the facts beside the measurements, with date, commit and versions of the last call.

    Raises:
        OtherMachineError: the folder contains measurements of another machine.
    """
    file = folder / "machine.json"
    before = json.loads(file.read_text()) if file.exists() else told
    for fact in ("cpu", "cores", "memory_gib"):
        if before[fact] != told[fact]:
            raise OtherMachineError(
                f"{os.path.relpath(folder)} contains figures of another machine ({fact}: {before[fact]}, here "
                f"{told[fact]}); give another folder with --results, or remove it."
            )
    folder.mkdir(parents=True, exist_ok=True)
    told = {**told, "rivals": {**before["rivals"], **told["rivals"]}}
    file.write_text(json.dumps(told, indent=2) + "\n")


def _versions(kind: WorkerKind) -> dict[str, str]:
    python = kind.command("")[0]
    asked = [python, "-c", _TELL, *kind.packages]
    told = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=ROOT)
    versions: dict[str, str] = json.loads(told.stdout)
    return versions


def _lines(file: str) -> list[str]:
    return Path(file).read_text().splitlines() if sys.platform == "linux" else []
