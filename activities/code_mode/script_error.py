"""`ScriptError`: how a script ends without a result."""

from __future__ import annotations


class ScriptError(Exception):
    """The script has ended without a result, or was not run.

    `kind`: as of an ErrorInfo. `detail`: what may quote the script.
    """

    def __init__(self, message: str, detail: str = "", *, kind: str = "tool_exception") -> None:
        super().__init__(message)
        self.detail, self.kind = detail, kind


def invalid_code(detail: str) -> ScriptError:
    """The error of a script that does not parse, or does not fit the types of its functions."""
    message = "The script was not run: it is no valid Python, or does not fit the types of the functions."
    return ScriptError(message, detail, kind="invalid_code")
