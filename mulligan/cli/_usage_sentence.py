"""What the terminal says of a command line that cannot be parsed."""

from __future__ import annotations

from typing import Any

from mulligan.schema.fault_text import required_form

_WITHOUT_BRACES = str.maketrans("", "", "{}")
"""Typer puts required arguments between braces, which a person would type."""


def usage_sentence(error: Exception) -> str:
    """What was wrong, the value that was given, and what to do; empty if the error is none of the parser's, or is the help.

    The parser's classes are private in some versions of Typer, and click's in others: they are known by what they have.
    """
    told = getattr(error, "format_message", None)
    if told is None or type(error).__name__ == "NoArgsIsHelpError":
        return ""
    context: Any = getattr(error, "ctx", None)
    sentence = _of_value(error) or str(told()).rstrip(".")
    if context is None:
        return f"{sentence}."
    if sentence.startswith("Missing"):
        usage = context.get_usage().removeprefix("Usage: ").translate(_WITHOUT_BRACES)
        sentence = f"{sentence}; write `{' '.join(usage.split())}`"
    return f"{sentence}{'' if sentence.endswith('?') else '.'} See `{context.command_path} --help`."


def _of_value(error: Exception) -> str:
    """`--limit is 'x'; it must be an integer`, where pydantic has refused the value."""
    faults = getattr(error.__cause__, "errors", None)
    parameter: Any = getattr(error, "param", None)
    if faults is None or parameter is None:
        return ""
    fault = faults()[0]
    name = max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.name.upper()
    return f"{name} is {fault['input']!r}; {required_form(fault)}"
