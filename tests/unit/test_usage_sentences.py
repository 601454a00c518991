"""A command line that cannot be parsed: one sentence with what was wrong, the value that was given, and what to do."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from mulligan.cli.app import app

WRONG = {
    "start a b --max-steps x": "--max-steps is 'x'; it must be an integer. See `mulligan start --help`.",
    "whatif --max-cost dear": "--max-cost is 'dear'; it must be a number. See `mulligan whatif --help`.",
    "show run --context seven": "--context is 'seven'; it must be an integer. See `mulligan show --help`.",
    "list --limit 0": "--limit is '0'; it must be at least 1. See `mulligan list --help`.",
    "start a b --userr Ada": "No such option: --userr (Possible options: --user). See `mulligan start --help`.",
    "--bogus": "No such option: --bogus. See `mulligan --help`.",
    "fly": "No such command 'fly'. See `mulligan --help`.",
    "strat": "No such command 'strat'. Did you mean 'start'? See `mulligan --help`.",
    "schedule fly": "No such command 'fly'. See `mulligan schedule --help`.",
    "stop run now": "Got unexpected extra argument(s) (now). See `mulligan stop --help`.",
    "approve": "Missing argument 'ID'; write `mulligan approve [OPTIONS] ID [CALL_ID]`. See `mulligan approve --help`.",
    "start a b --model": "Option '--model' requires an argument.",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_ends_with_one_sentence(line: str) -> None:
    ran = CliRunner().invoke(app, line.split(), prog_name="mulligan")
    assert (ran.exit_code, ran.stdout, ran.stderr) == (2, "", f"error: {WRONG[line]}\n")


def test_a_group_without_a_command_prints_its_help() -> None:
    ran = CliRunner().invoke(app, ["schedule"], prog_name="mulligan")
    assert "Usage: mulligan schedule" in ran.output
    assert "error:" not in ran.output
