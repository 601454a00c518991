"""Every command of `mulligan` with its arguments and options, from the Typer application: described, and checked."""

from collections.abc import Iterator
from typing import Any

import typer.main

from mulligan.cli.app import app

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def as_markdown() -> str:
    """A section per command."""
    return "\n\n".join(_rendered(name, command) for name, command in COMMANDS.items())


def problems() -> Iterator[str]:
    """Commands, arguments and options without a help text."""
    for name, command in COMMANDS.items():
        if not command.help:
            yield f"mulligan {name}: no description"
        yield from (
            f"mulligan {name}: {_spelled(parameter)} has no help text"
            for parameter in command.params
            if not parameter.help
        )


def _rendered(name: str, command: Any) -> str:
    synopsis = " ".join(["mulligan", name, *(_synopsis(parameter) for parameter in command.params)])
    rows = [f"| `{_spelled(parameter)}` | {_about(parameter)} |" for parameter in command.params]
    table = "\n".join(["| argument or option | what it means |", "|---|---|", *rows]) if rows else ""
    return f"## mulligan {name}\n\n```text\n{synopsis}\n```\n\n{command.help or ''}\n\n{table}"


def _synopsis(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return parameter.name.upper() if parameter.required else f"[{parameter.name.upper()}]"
    text = max(parameter.opts, key=len) + ("" if parameter.is_flag else f" {parameter.name.upper()}")
    return (text if parameter.required else f"[{text}]") + ("…" if parameter.multiple else "")


def _spelled(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def _about(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split()).replace("|", "\\|")
    facts = [f"Environment variable: `{parameter.envvar}`."] if parameter.envvar else []
    default = parameter.default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        facts.append(f"Default: `{default}`.")
    return " ".join([text, *facts])
