"""docs/options.md lists every option of `@tool` and `Agent`, with its default where that is a number."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

from mulligan import Agent, tool

PAGE = (Path(__file__).parents[2] / "docs/options.md").read_text()


def rows(title: str) -> dict[str, str]:
    """The default of each option in the section's table, by the option's name."""
    section = PAGE.split(f"## `{title}`\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\| (`[^|]*) \|([^|]*)\|", section, re.MULTILINE)
    return {name: default.strip() for names, default in lines for name in re.findall(r"`(\w+)`", names)}


def test_each_option_of_a_tool_is_in_the_table() -> None:
    options = {name: option for name, option in inspect.signature(tool).parameters.items() if name != "function"}
    assert rows("@tool").keys() == options.keys()
    assert rows("@tool")["attempts"] == str(options["attempts"].default)
    assert rows("@tool")["max_result_chars"] == f"{options['max_result_chars'].default:,}"


def test_each_option_of_an_agent_is_in_the_table() -> None:
    options = {field.name: field.default for field in dataclasses.fields(Agent) if field.init}
    assert rows("Agent").keys() == options.keys()
    for name in ("max_steps", "max_depth", "max_sub_runs"):
        assert rows("Agent")[name] == str(options[name])
    assert rows("Agent")["model_timeout"] == f"{options['model_timeout']} s"
