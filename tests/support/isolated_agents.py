"""An agent with isolated tools that hang, crash or take memory, beside an ordinary tool."""

from __future__ import annotations

import os

from mulligan import Agent, Model, ToolError, tool
from tests.support import isolated_functions as functions

PLAIN = tool(functions.add)
OWN = Model("openai-chat@own:model", base_url="http://127.0.0.1:9/v1", api_key_env="OF_OWN_MODEL")
VARIABLES = ("MULLIGAN_SERVE_TOKENS", "OF_OWN_MODEL", "OPENAI_API_KEY", "MAIL_TOKEN")


@tool(isolated=True)
def variables() -> list[str]:
    """List the variables that an isolated call has."""
    return [name for name in VARIABLES if name in os.environ]


@tool(isolated=True, isolated_env=["OPENAI_API_KEY", "-MAIL_TOKEN"])
def named_variables() -> list[str]:
    """List the variables that an isolated call has whose tool names some."""
    return [name for name in VARIABLES if name in os.environ]


@tool(isolated=True)
def greet(name: str) -> dict[str, str]:
    """Greet somebody."""
    return {"hello": name}


@tool(isolated=True, timeout=1)
def backtrack() -> str:
    """Match an expression that backtracks for ever, in C, while it holds the interpreter's lock."""
    return str(functions.backtracks())


@tool(isolated=True)
def take_memory() -> int:
    """Take more memory than a child may have."""
    return functions.takes_memory()


@tool(isolated=True)
def crash() -> None:
    """End the process by a segmentation fault."""
    functions.crashes()


@tool(isolated=True)
def refuse() -> None:
    """Raise a ToolError."""
    raise ToolError("not today")


@tool(isolated=True, attempts=2, retry_on=LookupError)
def fail() -> None:
    """Raise an exception that is known in the child only."""
    functions.raises_own()


isolated = Agent(
    name="isolated",
    model="scripted:isolated",
    instructions="Call tools.",
    tools=[PLAIN, variables, named_variables, greet, backtrack, take_memory, crash, refuse, fail],
)
