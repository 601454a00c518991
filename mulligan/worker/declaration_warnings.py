"""Warnings about declarations that are valid, but probably mistakes. A worker prints them as it starts."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import docstring_parser

from mulligan.activities.registry import Registry
from mulligan.agent import AgentTool
from mulligan.features import option_classes
from mulligan.model_name import ModelName
from mulligan.schema.plain_function import plain_function
from mulligan.script import BUILT_IN_SCRIPTS
from mulligan.tool import Tool


def declaration_warnings(registry: Registry) -> list[str]:
    """Return a sentence for each probable mistake in the agents and tools that a worker serves."""
    tools = {id(tool): tool for agent in registry.agents.values() for tool in agent.listed_tools}
    tools |= {id(tool): tool for tool in registry.tools.values()}
    kinds = dict.fromkeys(
        [*option_classes().values(), *(type(each) for tool in tools.values() for each in tool.options)]
    )
    return [
        *_script_warnings(registry),
        *(line for agent in registry.agents.values() for kind in kinds for line in kind.warnings(agent)),
        *(line for tool in tools.values() for line in _tool_warnings(tool)),
    ]


def _script_warnings(registry: Registry) -> Iterable[str]:
    for agent in registry.agents.values():
        for model in agent.all_models(agent.models):
            parsed = ModelName.parse(model)
            if parsed.provider == "scripted" and not {parsed.name} & {*registry.scripts, *BUILT_IN_SCRIPTS}:
                yield (
                    f"{agent.source}: agent {agent.name!r}: its model is {model!r}, but no loaded module has a script "
                    f"{parsed.name!r}; its runs will fail."
                )


def _tool_warnings(tool: Tool) -> Iterable[str]:
    if isinstance(tool, AgentTool):
        return  # its function is generated
    context = f"{tool.source}: tool {tool.name!r}"
    if not tool.description.strip():
        yield f"{context} has no description; write a docstring that tells the model what it does."
    function = plain_function(tool.function)
    parameters = list(inspect.signature(function).parameters)
    documented = docstring_parser.parse(inspect.getdoc(function) or "").params
    for name in dict.fromkeys(each.arg_name.lstrip("*") for each in documented if each.args[0] != "attribute"):
        if name not in parameters and name not in tool.schema["properties"]:
            known = ", ".join(parameters) or "none"
            yield f"{context}: its docstring describes {name!r}, which is not a parameter; the parameters are: {known}."
