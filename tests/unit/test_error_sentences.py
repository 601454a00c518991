"""What commands say of errors of Temporal: a refusal is another thing than no answer."""

from __future__ import annotations

import pytest
import typer
from temporalio.service import RPCError, RPCStatusCode

from mulligan.cli._terminal import _sentence_of, fail, print_line, print_progress


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (RPCStatusCode.UNAVAILABLE, "Temporal did not answer: why"),
        (RPCStatusCode.DEADLINE_EXCEEDED, "Temporal did not answer: why"),
        (RPCStatusCode.CANCELLED, "Temporal did not answer: why"),
        (RPCStatusCode.PERMISSION_DENIED, "Temporal refused this: why"),
        (RPCStatusCode.INVALID_ARGUMENT, "Temporal refused this: why"),
    ],
)
def test_no_answer_is_not_called_a_refusal(status: RPCStatusCode, said: str) -> None:
    assert _sentence_of(RPCError("why", status, b"")) == said


def test_square_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Of extras, of tables in TOML, and of names that others chose: none is taken for the markup of a style."""
    text = "uv add 'mulligan[mcp]', below [tool.pytest], [bold]x[/bold], [/no such tag]"
    print_line(text)
    print_progress(text)
    with pytest.raises(typer.Exit):
        fail(text)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (f"{text}\n", f"{text}\nerror: {text}\n")
