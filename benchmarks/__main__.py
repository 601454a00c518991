"""`make bench`: run the missing measurements, and print docs/benchmarks.md from all of them."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import endurance, footprint, machine, pace
from benchmarks.contenders import ALL, ROOT, kinds
from benchmarks.page import write_page
from benchmarks.plan import FIGURES, QUICK, WHOLE, chosen, jobs
from benchmarks.results import Job, Results
from benchmarks.stage import prepare
from benchmarks.start import measure_start
from mulligan.cli.app import run_and_exit
from mulligan.devserver import DevServerError, find_temporal

HERE = Path(__file__).parent
SHORT_TABLES = (ROOT / "README.md",)
"""The pages with the short table, between marks."""
LONGEST = 2 * 60 * 60
"""The time limit of a job in seconds, so that one that hangs does not block the others. `survival` has its own."""


def say(line: str) -> None:
    """Print progress to stderr."""
    print(line, file=sys.stderr, flush=True)


async def measured(job: Job, results: Results) -> None:
    """Run the missing measurements of a job."""
    if job.figure == "start":
        await measure_start(job, results)
    elif job.figure in ("speed", "throughput"):
        await pace.measure(job, results)
    elif job.figure == "history":
        await endurance.measure_history(job, results)
    elif job.figure == "survival":
        await endurance.measure_survival(job, results, say)
    elif job.figure == "memory":
        await footprint.measure_memory(job, results)
    else:
        await footprint.measure_replay(job, results)


async def measure(to_do: Sequence[Job], results: Results) -> int:
    """Measure all jobs; a failed one is reported and skipped. Return the number of failed jobs."""
    server = await find_temporal(say)
    involved = kinds([name for job in to_do for name in (*job.against, job.contender)])
    for kind in involved:
        prepare(kind)
    rivals = [kind for kind in involved if kind.project is not None]
    facts = machine.facts(server, rivals, ["python", "-m", "benchmarks", *sys.argv[1:]])
    machine.write(facts, results.folder)
    results.about["server"] = facts["server"]
    failed = 0
    for number, job in enumerate(to_do, 1):
        say(f"[{number}/{len(to_do)}] {job}")
        began = time.monotonic()
        try:
            async with asyncio.timeout(None if job.figure == "survival" else LONGEST):
                await measured(job, results)
        except Exception as error:  # noqa: BLE001 - a failed job must not lose the hours of the others
            failed += 1
            say(f"  failed: {type(error).__name__}: {error}")
        else:
            say(f"  {time.monotonic() - began:.0f} s")
    return failed


def main(  # noqa: PLR0913 - each is an option of the command
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, in minutes, into a folder of its own.")] = False,
    only: Annotated[str, typer.Option(help=f"Figures, separated by commas: {', '.join(FIGURES)}.")] = "",
    contenders: Annotated[str, typer.Option(help=f"Separated by commas: {', '.join(ALL)}.")] = "",
    sizes: Annotated[str, typer.Option(help="Steps or runs at once, separated by commas: 160,2000.")] = "",
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many measurements of each at most. The page says where there are less than five."
        ),
    ] = None,
    results: Annotated[Path | None, typer.Option(help="The folder of the raw numbers.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure the chosen ones anew.")] = False,
    page: Annotated[bool, typer.Option("--page", help="Measure nothing; print the page.")] = False,
) -> None:
    """Measure Mulligan beside its rivals.

    What was measured before is not measured again: a run that was interrupted continues. The page is docs/benchmarks.md;
    of --quick, and of a folder of your own, it is in the folder.
    """
    figures, names = _list(only, FIGURES, "--only"), _list(contenders, tuple(ALL), "--contenders")
    folder = results or HERE / (".quick" if quick else "results")
    kept = Results(folder)
    planned = jobs(QUICK if quick else WHOLE)
    known_sizes = sorted({str(job.size) for job in planned}, key=int)
    numbers = [int(size) for size in _list(sizes, known_sizes, "--sizes")]
    to_do = chosen(planned, figures, names, numbers, repeats)
    failed = 0
    if not page:
        if again:
            kept.forget(to_do)
        to_do = [job for job in to_do if kept.missing(job)]
        say(f"{len(to_do)} to measure, into {folder}")
        try:
            failed = asyncio.run(measure(to_do, kept)) if to_do else 0
        except (machine.OtherMachineError, DevServerError) as error:
            say(f"error: {error}")
            raise typer.Exit(2) from None
    if not kept.lines:
        say(f"error: there are no figures in {folder}.")
        raise typer.Exit(2)
    docs, others = (ROOT / "docs", SHORT_TABLES) if folder == HERE / "results" else (folder, ())
    say(f"page: {write_page(kept, docs, others)}")
    if failed:
        say(f"{failed} failed; the same command tries them again: {shlex.join(sys.argv)}")
        raise typer.Exit(1)


def _list(given: str, known: Sequence[str], option: str) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"{unknown[0]!r} is not known; {option} takes {', '.join(known)}.")
    return names


if __name__ == "__main__":
    run_and_exit(lambda: typer.run(main))
