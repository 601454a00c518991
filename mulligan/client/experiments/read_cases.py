"""Read what an agent is evaluated with: cases, or JSON lines of tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mulligan.errors import InvalidRunInputError
from mulligan.run_input import parse_run_input
from mulligan.schema.json_limits import MOST_DEPTH, JsonMeter
from mulligan.wire.case import CASE_BYTES, Case, CaseError, parse_case
from mulligan.wire.experiments import MOST_ROWS, ExperimentContent, Line

_FIELDS = {"input", "expected"}


def read_cases(path: Path, agent: str) -> ExperimentContent:
    """The cases and lines of a folder, in the order of its files, or of one file.

    Args:
        path: A folder with `.json` and `.jsonl` files, or one such file.
        agent: The agent that they are of.

    Raises:
        CaseError: there are none, too many, one cannot be read, or is of another agent, or two have the same id.
        InvalidRunInputError: the input of a line is none.
    """
    files = sorted(each for each in path.iterdir() if each.suffix in (".json", ".jsonl")) if path.is_dir() else [path]
    if not files:
        raise CaseError(f"{path} has no case: no .json file that `mulligan export` has written, and no .jsonl file.")
    cases: list[Case] = []
    lines: list[Line] = []
    for file in files:
        if file.suffix == ".jsonl":
            lines += _lines(file, agent)
        else:
            cases.append(_case(file, agent))
        if len(cases) + len(lines) > MOST_ROWS:
            raise CaseError(f"{path} has more than {MOST_ROWS:,} cases, the limit of an experiment.")
    ids = [*(case.id for case in cases), *(line.id for line in lines)]
    if twice := next((each for each in ids if ids.count(each) > 1), None):
        raise CaseError(f"{path} has two cases of the run {twice!r}; remove one of them.")
    return ExperimentContent(cases=cases, lines=lines, agent=agent)


def _case(file: Path, agent: str) -> Case:
    case = parse_case(_read(file), str(file), starts_run=True)
    if case.agent != agent:
        raise CaseError(f"{file} is a case of the agent {case.agent!r}, not of {agent!r}.")
    return case


def _read(file: Path) -> bytes:
    try:
        if file.stat().st_size > CASE_BYTES:
            raise CaseError(f"{file} has more than {CASE_BYTES:,} bytes.")
        return file.read_bytes()
    except OSError as error:
        raise CaseError(f"{file} cannot be read: {error.strerror}.") from None


def _lines(file: Path, agent: str) -> Iterator[Line]:
    for number, text in enumerate(_read(file).splitlines(), 1):
        if text.strip():
            yield _line(text, f"{file}, line {number}", f"{file.name}:{number}", agent)


def _line(text: bytes, where: str, line_id: str, agent: str) -> Line:
    meter = JsonMeter()
    meter.add(text)
    if meter.depth > MOST_DEPTH:
        raise CaseError(f"{where} is nested too deeply.")
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise CaseError(f"{where} is not JSON ({error}).") from None
    if not isinstance(value, dict) or "input" not in value or value.keys() - _FIELDS:
        raise CaseError(f'{where} must be one JSON object with "input" and perhaps "expected", and no other field.')
    given = value["input"]
    fields = given if isinstance(given, dict) else {"prompt": given}
    if fields.setdefault("agent", agent) != agent:
        raise CaseError(f"{where} is of the agent {str(fields['agent'])[:80]!r}, not of {agent!r}.")
    try:
        run_input = parse_run_input(json.dumps(fields).encode())
    except InvalidRunInputError as error:
        raise CaseError(f"{where}: {error.message}") from None
    return Line(id=line_id, input=run_input, expected=value.get("expected"))
