"""What a worker serves: the agents, scripts and workflows of the modules that it is given by `--load`."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from mulligan.agent import Agent, Registry
from mulligan.script import Script
from mulligan.tool import DeclarationError

SHIPPED = ("workflows.agents.assistant", "workflows.agents.demo")

__all__ = ["SHIPPED", "Loaded", "load"]


@dataclass(frozen=True)
class Loaded:
    """What was found in the modules."""

    registry: Registry
    workflows: tuple[type, ...]
    modules: tuple[str, ...]


def load(modules: Iterable[str]) -> Loaded:
    """Import the shipped agents and the modules, and collect what they hold.

    A module is a dotted name, or the path of a `.py` file below the current folder.

    Raises:
        DeclarationError: a module is not there, fails as it is imported, or declares what cannot work: one sentence.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    names = list(dict.fromkeys([*SHIPPED, *map(_dotted, modules)]))
    found = [_imported(name) for name in names]
    things = [thing for module in found for thing in vars(module).values()]
    agents = {id(thing): thing for thing in things if isinstance(thing, Agent)}
    scripts = {id(thing): thing for thing in things if isinstance(thing, Script)}
    workflows = {
        thing: None
        for module in found
        for thing in vars(module).values()
        # Only what is defined there: an import of another module's workflow is not a wish to serve it.
        if inspect.isclass(thing)
        and "__temporal_workflow_definition" in vars(thing)
        and thing.__module__ == module.__name__
    }
    return Loaded(Registry(agents.values(), scripts.values()), tuple(workflows), tuple(names))


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
