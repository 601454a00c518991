"""Programs in Go that system tests need: installed once, by version, into the user's cache."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

from platformdirs import user_cache_path

from mulligan.devserver._cache import making
from mulligan.devserver.build import find_go, run_telling

JAEGER = "2.13"
_JAEGER_SOURCE = Path(__file__).parent / "jaeger"


async def jaeger_program() -> Path:
    """Jaeger v2, built from the `go.mod` and `go.sum` in `tests/support/jaeger` (about 4 minutes on 2 cores)."""
    return await _made(
        "jaeger", JAEGER, ("build", "-v", "-ldflags", "-s -w"), "github.com/jaegertracing/jaeger/cmd/jaeger"
    )


async def go_program(package: str, version: str) -> Path:
    """The program of a Go package, by `go install package@version`."""
    # As Go names it: a last element that is the module's major version does not count.
    name = re.sub(r"/v\d+$", "", package).rsplit("/", 1)[-1]
    return await _made(name, version, ("install", "-v"), f"{package}@{version}")


async def _made(name: str, version: str, command: tuple[str, ...], package: str) -> Path:
    made = user_cache_path("mulligan") / "tests" / f"{name}-{version}" / name
    if made.exists():
        return made
    async with making(made, _say) as scratch:
        if not made.exists():
            go, env = await find_go(scratch, _say)
            source = shutil.copytree(_JAEGER_SOURCE, scratch / "source") if command[0] == "build" else scratch
            target = ("-o", scratch / name) if command[0] == "build" else ()
            await run_telling(
                (go, *command, *target, package),
                lambda seconds, lines: (
                    f"building {name} {version} for the tests, once: {seconds:.0f} s, {len(lines)} packages"
                ),
                _say,
                cwd=source,
                env={**env, "GOBIN": str(scratch)},
            )
            os.replace(scratch / name, made)
    return made


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
