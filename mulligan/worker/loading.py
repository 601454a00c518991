"""Loads modules for a worker: their agents, scripts, tools, workflows, activities and resources."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard, TypeVar, cast

from mulligan.activities.registry import Registry
from mulligan.agent import Agent
from mulligan.endpoint_model import Model
from mulligan.errors import DeclarationError
from mulligan.features import all_words
from mulligan.features.agent_feature import AgentFeature
from mulligan.features.feature_parts import FeatureParts
from mulligan.provider_plugin import ProviderPlugin
from mulligan.score import Score
from mulligan.script import Script
from mulligan.tool import Tool
from mulligan.wire.agent_facts import OPEN_RUN
from mulligan.wire.model_call import CALL_MODEL
from mulligan.wire.questions import CHECK_ANSWER
from mulligan.wire.run_end import FINISH_RUN
from mulligan.wire.tool_call import CALL_TOOL, RECORD_FAILED_CALL
from mulligan.wire.updates import CHECK_EDIT, RECORD_DECISION
from mulligan.worker.declaration_warnings import declaration_warnings
from mulligan.worker.sdk_workarounds.temporal_definitions import activity_definition, workflow_definition

T = TypeVar("T")
ACTIVITY_TYPES = {
    *(OPEN_RUN, CALL_MODEL, CALL_TOOL, FINISH_RUN, RECORD_FAILED_CALL, RECORD_DECISION, CHECK_EDIT, CHECK_ANSWER),
    *all_words().activities,
}
"""The types of Mulligan's own activities."""
SHIPPED = ("mulligan.workflows.agents.assistant", "mulligan.workflows.agents.demo")
"""The modules of the agents that come with Mulligan."""


@dataclass(frozen=True)
class LoadedModules:
    """What a worker serves."""

    registry: Registry
    workflows: tuple[type, ...]
    modules: tuple[str, ...]
    activities: tuple[Callable[..., Any], ...] = ()
    """Functions with `@activity.defn`."""
    resources: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """The `resources()` of each module that has one, by module name."""
    modules_of_agents: dict[str, str] = field(default_factory=dict)
    """The module of each agent, by the agent's name."""
    modules_of_tools: dict[str, str] = field(default_factory=dict)
    """The module of each tool, by the tool's name."""
    features: tuple[FeatureParts, ...] = ()
    """The features of the agents, and those of the modules, that are not Mulligan's own."""
    warnings: tuple[str, ...] = ()
    """Sentences on what is valid, but probably a mistake."""


def modules_to_load(named: Iterable[str], options: Iterable[str] = (), *, with_shipped: bool = False) -> list[str]:
    """The modules that a worker loads: those that are named, or the shipped agents if none is.

    Args:
        named: the modules of `MULLIGAN_LOAD`.
        options: the values of the option `--load`: each is a module, or several, separated by commas.
        with_shipped: whether to load the shipped agents beside the named modules.
    """
    modules = [*named, *(name.strip() for option in options for name in option.split(",") if name.strip())]
    return [*SHIPPED, *modules] if with_shipped or not modules else modules


def load_agents(
    agents: Iterable[Agent], scripts: Iterable[Script], modules: Iterable[str] = (), file_names: Iterable[str] = ()
) -> LoadedModules:
    """Serve these agents, with the `resources()` of their modules, but nothing else of the modules.

    `modules`: others to load. `file_names`: as of `load`.

    Raises:
        DeclarationError: the agents cannot be served together.
    """
    return load(modules, agents=list(agents), scripts=scripts, file_names=file_names)


def _of_type(kind: type[T], values: Iterable[object]) -> list[T]:
    return [value for value in values if isinstance(value, kind)]


def _values(module: ModuleType) -> list[object]:
    """What stands at the top level of a module, and the agents in lists and dicts that stand there."""
    values = list(vars(module).values())
    held = [[*each.values()] if isinstance(each, dict) else each for each in values]
    return values + [agent for each in held if isinstance(each, list | tuple | set) for agent in _of_type(Agent, each)]


def _module_at(file: str) -> ModuleType | None:
    return next((module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == file), None)


def load(
    modules: Iterable[str],
    *,
    agents: Iterable[Agent] = (),
    scripts: Iterable[Script] = (),
    file_names: Iterable[str] = (),
) -> LoadedModules:
    """Import modules, and collect what a worker serves of them.

    Args:
        modules: dotted names, or paths of `.py` files below the current folder.
        agents: more agents, as objects. The `resources()` of their modules are opened too.
        scripts: more scripted models, as objects.
        file_names: the names of agents that are files, to which others may hand conversations.

    Raises:
        DeclarationError: a module does not exist, cannot be imported, or has an invalid declaration. One sentence.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # last, so that a module in the current folder does not hide an installed one
    agents, given = list(agents), {_module_name(each): each for each in modules}
    imported = [_import(name, where) for name, where in given.items()]
    values = [value for module in imported for value in _values(module)]
    all_agents = {id(agent): agent for agent in [*_of_type(Agent, values), *agents]}
    all_scripts = {id(script): script for script in [*_of_type(Script, values), *scripts]}
    all_tools = {id(tool): tool for tool in _of_type(Tool, values)}
    agent_modules = {agent.name: module for agent in agents if (module := _module_at(agent.source)) is not None}
    # Only workflows and activities that the module defines itself: importing one from another module does not serve it.
    defined = [
        value
        for module in imported
        for value in vars(module).values()
        if getattr(value, "__module__", None) == module.__name__
    ]
    workflows = [each for each in defined if workflow_definition(each)]
    others = (_of_type(Model, values), _of_type(Score, values), [vars(module) for module in imported], file_names)
    registry = Registry(all_agents.values(), all_scripts.values(), all_tools.values(), *others)
    features = _features(registry, values)
    activities: list[Callable[..., Any]] = [each for feature in features for each in _activities(feature)]
    activities += [each for each in defined if inspect.isfunction(each) and activity_definition(each)]
    _check_activity_types(activities)
    of_features = [importlib.import_module(name) for each in features for name in each.modules]
    all_modules = {module.__name__: module for module in [*imported, *agent_modules.values(), *of_features]}
    return LoadedModules(
        registry=registry,
        workflows=tuple(dict.fromkeys(workflows)),
        modules=tuple(all_modules),
        activities=tuple(dict.fromkeys(activities)),
        resources={name: _resources(module) for name, module in all_modules.items() if _has_resources(module)},
        modules_of_agents={name: module.__name__ for name, module in agent_modules.items()}
        | _modules_by_name(Agent, imported),
        modules_of_tools=_modules_by_name(Tool, imported),
        features=features,
        warnings=(*_warnings_of_modules(imported), *declaration_warnings(registry)),
    )


def _features(registry: Registry, values: Iterable[object]) -> tuple[FeatureParts, ...]:
    """The features that are not Mulligan's own: those of the agents, and those that loaded modules define or import.

    Raises:
        DeclarationError: an activity of a feature is not `async def`, or its part in the workflow has another name.
    """
    declared = [type(each) for agent in registry.agents.values() for each in agent.features]
    declared += [type(each) for each in registry.parts.features.all()]
    kinds = filter(_is_own_feature, [*declared, *filter(inspect.isclass, values)])
    features = tuple(
        dict.fromkeys([*(parts for each in kinds if (parts := each.parts)), *_of_type(FeatureParts, values)])
    )
    for each in features:
        if (part := each.workflow) is not None and part.feature != each.name:
            raise DeclarationError(
                f"{part.__module__}.{part.__name__} has the name {part.feature!r}, and its feature {each.name!r}; "
                "set its attribute `feature`, or rename one."
            )
    for found in (each for feature in features for each in _activities(feature)):
        if not activity_definition(found) or not inspect.iscoroutinefunction(found):
            raise DeclarationError(
                f"{found!r} is among the activities of a feature; make it an `async def` function with @activity.defn."
            )
    return features


def _is_own_feature(value: object) -> TypeGuard[type[AgentFeature]]:
    return inspect.isclass(value) and issubclass(value, AgentFeature) and value.parts is not None


def _activities(feature: FeatureParts) -> Sequence[Callable[..., Any]]:
    """Those that need nothing of the worker."""
    return () if feature.activities is None or callable(feature.activities) else feature.activities


def _warnings_of_modules(modules: Iterable[ModuleType]) -> list[str]:
    """A sentence for each module from which a worker serves nothing."""
    return [
        f"{module.__file__ or module.__name__}: the module has no agent, tool, workflow or activity; declare them at its "
        "top level, as in `support = Agent(…)`."
        for module in modules
        if not any(_is_served(value, module) for value in _values(module))
    ]


def _is_served(value: object, module: ModuleType) -> bool:
    if isinstance(value, Agent | Tool | Script | Model | ProviderPlugin | Score | FeatureParts):
        return True
    is_activity = inspect.isfunction(value) and activity_definition(value)
    is_served = is_activity or workflow_definition(value) or _is_own_feature(value)
    return bool(is_served) and getattr(value, "__module__", None) == module.__name__


def _check_activity_types(activities: Iterable[Callable[..., Any]]) -> None:
    """Raise DeclarationError if two activities have the same type."""
    owners = dict.fromkeys(ACTIVITY_TYPES, "Mulligan itself")
    for each in dict.fromkeys(activities):
        name = activity_definition(each).name
        if name in owners:
            raise DeclarationError(
                f"{each.__module__}.{each.__name__}: {owners[name]} already has an activity of type {name!r}; give this "
                "one another name with @activity.defn(name=…)."
            )
        if name is not None:
            owners[name] = f"{each.__module__}.{each.__name__}"


def _has_resources(module: ModuleType) -> bool:
    """Whether the module has a callable `resources`. The module of `from importlib import resources` is none."""
    return callable(vars(module).get("resources"))


def _resources(module: ModuleType) -> Callable[[], Any]:
    """A module's `resources`, which is called when the worker starts."""
    factory = module.resources
    if inspect.iscoroutinefunction(factory) or inspect.isasyncgenfunction(factory):
        raise DeclarationError(
            f"{module.__file__}: resources must be an async context manager: `async def resources()` that yields once, "
            "under contextlib's @asynccontextmanager."
        )
    return cast("Callable[[], Any]", factory)


def _modules_by_name(kind: type[Agent] | type[Tool], modules: Iterable[ModuleType]) -> dict[str, str]:
    """The first module of each agent or tool, by its name. Modules with `resources()` come before others."""
    by_name: dict[str, str] = {}
    for module in sorted(modules, key=lambda module: not _has_resources(module)):
        for value in _values(module):
            if isinstance(value, kind):
                by_name.setdefault(value.name, module.__name__)
    return by_name


def _module_name(name: str) -> str:
    """The dotted name for the path of a `.py` file below the current folder; any other name unchanged."""
    if not name.endswith(".py"):
        return name
    if Path(name).is_absolute() and not Path(name).is_file():
        raise DeclarationError(
            f"there is no file {name}; give the path of a Python file, or a dotted name such as shop.agents."
        )
    path = Path(os.path.relpath(name)).with_suffix("")
    if ".." in path.parts:
        raise DeclarationError(
            f"the file {name} is not below the current folder {os.getcwd()}; start the worker in its folder, or give a "
            "dotted name."
        )
    return ".".join(path.parts)


def _import(name: str, given: str) -> ModuleType:
    """Import the module of this dotted name. `given`: the user's name of it, which may be a path."""
    try:
        module = importlib.import_module(name)
        if given.endswith(".py") and module.__file__ and not os.path.samefile(module.__file__, given):
            raise DeclarationError(
                f"the file {given} is hidden by {module.__file__}: Python finds {name!r} there; rename the file."
            )
        return module
    except DeclarationError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise DeclarationError(
                f"there is no module {name!r} in {os.getcwd()} or among the installed packages; give a dotted name, such as "
                "shop.agents."
            ) from None
        raise DeclarationError(
            f"module {name!r} imports {error.name!r}, which is not installed; add its package: uv add PACKAGE."
        ) from error
    except SyntaxError as error:
        raise DeclarationError(f"{error.filename}, line {error.lineno}: {error.msg.rstrip('?')}.") from error
    except (Exception, SystemExit) as error:
        line = _user_line(error)
        raise DeclarationError(
            f"module {name!r} cannot be imported{line}: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from error


def _user_line(error: BaseException) -> str:
    """The file and line of the last frame that is not in the standard library, a package, or this file."""
    other_files = (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        "<",
        __file__,
    )
    line = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(other_files):
            line = f" ({file}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return line
