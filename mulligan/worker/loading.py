"""What a worker serves: the agents, scripts, workflows and activities of the modules that it is given by `--load`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from mulligan.activities.registry import Registry
from mulligan.agent import Agent
from mulligan.errors import DeclarationError
from mulligan.script import Script
from mulligan.tool import Tool
from mulligan.wire.agent_facts import OPEN_RUN
from mulligan.wire.compaction_request import COMPACT_CONVERSATION
from mulligan.wire.model_call import CALL_MODEL
from mulligan.wire.run_end import FINISH_RUN
from mulligan.wire.sub_run import RECORD_SUB_RUN
from mulligan.wire.tool_call import CALL_TOOL, RECORD_LOST_CALL
from mulligan.wire.updates import CHECK_EDIT, RECORD_DECISION

T = TypeVar("T")
DEFINITION = "__temporal_activity_definition"
"""What `@activity.defn` leaves on a function. It is not asked of temporalio, which costs half a second to import."""
ACTIVITY_TYPES = {
    *(OPEN_RUN, CALL_MODEL, CALL_TOOL, FINISH_RUN, RECORD_LOST_CALL),
    *(COMPACT_CONVERSATION, RECORD_DECISION, CHECK_EDIT, RECORD_SUB_RUN),
}
"""Mulligan's own."""
SHIPPED = ("mulligan.workflows.agents.assistant", "mulligan.workflows.agents.demo")

__all__ = ["SHIPPED", "LoadedModules", "load"]


@dataclass(frozen=True)
class LoadedModules:
    """What was found in the modules."""

    registry: Registry
    workflows: tuple[type, ...]
    modules: tuple[str, ...]
    activities: tuple[Callable[..., Any], ...] = ()
    """Functions with `@activity.defn`."""
    resources: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """Each module's `resources()`, by the module's name."""
    modules_of_agents: dict[str, str] = field(default_factory=dict)
    modules_of_tools: dict[str, str] = field(default_factory=dict)


def load_agents(agents: Iterable[Agent], scripts: Iterable[Script]) -> LoadedModules:
    """Agents that are at hand, as if their modules had been loaded: with the `resources()` of those.

    Raises:
        DeclarationError: they cannot be served together.
    """
    return load((), agents=list(agents), scripts=scripts, shipped=())


def _of_type(kind: type[T], things: Iterable[object]) -> list[T]:
    return [thing for thing in things if isinstance(thing, kind)]


def _module_at(file: str) -> ModuleType | None:
    return next((module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == file), None)


def load(
    modules: Iterable[str],
    *,
    agents: Iterable[Agent] = (),
    scripts: Iterable[Script] = (),
    shipped: Iterable[str] = SHIPPED,
) -> LoadedModules:
    """Import modules, and collect what they hold.

    Args:
        modules: each a dotted name, or the path of a `.py` file below the current folder.
        agents: more of them, that are at hand; the `resources()` of their modules are opened too.
        scripts: models that they are scripted by.
        shipped: modules that are imported first: those of the agents that come with Mulligan.

    Raises:
        DeclarationError: a module is not there, fails as it is imported, or declares what cannot work: one sentence.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # last: a module of the current folder shadows nothing that is installed
    names, agents = list(dict.fromkeys([*shipped, *map(_dotted, modules)])), list(agents)
    found = [_imported(name) for name in names]
    things = [thing for module in found for thing in vars(module).values()]
    of_agents = {id(agent): agent for agent in [*_of_type(Agent, things), *agents]}
    of_scripts = {id(script): script for script in [*_of_type(Script, things), *scripts]}
    at_hand = {agent.name: module for agent in agents if (module := _module_at(agent.source)) is not None}
    # Only what is defined there: an import of another module's workflow or activity is not a wish to serve it.
    defined = [
        thing
        for module in found
        for thing in vars(module).values()
        if getattr(thing, "__module__", None) == module.__name__
    ]
    workflows = [each for each in defined if inspect.isclass(each) and "__temporal_workflow_definition" in vars(each)]
    activities = [each for each in defined if inspect.isfunction(each) and hasattr(each, DEFINITION)]
    tools = {id(tool): tool for tool in _of_type(Tool, things)}
    all_modules = {module.__name__: module for module in [*found, *at_hand.values()]}
    _refuse_taken_names(activities)
    return LoadedModules(
        Registry(of_agents.values(), of_scripts.values(), tools.values()),
        tuple(dict.fromkeys(workflows)),
        tuple(all_modules),
        tuple(dict.fromkeys(activities)),
        {name: _resources(module) for name, module in all_modules.items() if _has_resources(module)},
        {name: module.__name__ for name, module in at_hand.items()} | _modules_of(Agent, found),
        _modules_of(Tool, found),
    )


def _refuse_taken_names(activities: Iterable[Callable[..., Any]]) -> None:
    """Activity types are names: two of one name cannot be served together."""
    taken = dict.fromkeys(ACTIVITY_TYPES, "Mulligan itself")
    for each in dict.fromkeys(activities):
        name = getattr(each, DEFINITION).name
        if name in taken:
            raise DeclarationError(
                f"{each.__module__}.{each.__name__}: there is an activity of type {name!r} of {taken[name]} already; "
                "give this one another name: @activity.defn(name=…)."
            )
        if name is not None:
            taken[name] = f"{each.__module__}.{each.__name__}"


def _has_resources(module: ModuleType) -> bool:
    """Whether it defines them: `from importlib import resources` does not."""
    return callable(vars(module).get("resources"))


def _resources(module: ModuleType) -> Callable[[], Any]:
    """A module's `resources()`, called as the worker starts."""
    given = module.resources
    if inspect.iscoroutinefunction(given) or inspect.isasyncgenfunction(given):
        raise DeclarationError(
            f"{module.__file__}: resources must be an async context manager: `async def resources()` that yields once, "
            "under contextlib's @asynccontextmanager."
        )
    return cast("Callable[[], Any]", given)


def _modules_of(kind: type[Agent] | type[Tool], found: Iterable[ModuleType]) -> dict[str, str]:
    """By name, the module in which a thing was found first; one with `resources()` before one without."""
    by_name: dict[str, str] = {}
    for module in sorted(found, key=lambda module: not _has_resources(module)):
        for thing in vars(module).values():
            if isinstance(thing, kind):
                by_name.setdefault(thing.name, module.__name__)
    return by_name


def _dotted(name: str) -> str:
    """A path below this folder as a dotted name; any other name as it is."""
    if not name.endswith(".py"):
        return name
    if Path(name).is_absolute() and not Path(name).is_file():
        raise DeclarationError(f"there is no file {name}; it is looked for from {os.getcwd()}.")
    path = Path(os.path.relpath(name)).with_suffix("")
    if ".." in path.parts:
        raise DeclarationError(
            f"{name} is not below {os.getcwd()}; start the worker where it is, or give a dotted name."
        )
    return ".".join(path.parts)


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except DeclarationError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise DeclarationError(
                f"there is no module {name!r}; it is looked for from {os.getcwd()} (give a dotted name, like shop.agents)."
            ) from None
        raise DeclarationError(f"module {name!r} imports {error.name!r}, which is not installed.") from error
    except SyntaxError as error:
        raise DeclarationError(f"{error.filename}, line {error.lineno}: {error.msg}.") from error
    except (Exception, SystemExit) as error:
        line = _line(error)
        raise DeclarationError(
            f"module {name!r} fails as it is imported{line}: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def _line(error: BaseException) -> str:
    """Where in the user's own files it went wrong: the last frame outside of Python's library, packages, and this file."""
    others = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), "<", __file__)
    where = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(others):
            where = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return where
