"""Runs all checks of `mulligan doctor` at the same time, each limited in time; and checks this process itself."""

from __future__ import annotations

import asyncio
import difflib
import os
import platform
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from temporalio.service import RPCError

from mulligan.client.connect import connect, explain_connection_error
from mulligan.client.live_channel import live_folder
from mulligan.client.read_agents import AgentReader
from mulligan.client.settings import Settings, settings
from mulligan.doctor.finding import Finding
from mulligan.doctor.mcp_servers import check_mcp
from mulligan.doctor.model_endpoints import check_models
from mulligan.doctor.temporal_server import (
    check_clock,
    check_namespace,
    check_search_attributes,
    check_server,
    check_task_queue,
)
from mulligan.doctor.tracing import check_jaeger, check_otlp
from mulligan.errors import DeclarationError
from mulligan.live.socket_folder import UnusableFolderError, check_folder
from mulligan.worker.agent_folder import AgentFolder, names_in_folder
from mulligan.worker.loading import LoadedModules

PACKAGES = ("mulligan", "temporalio", "pydantic", "openai", "opentelemetry-sdk")
PREFIX = "MULLIGAN_"
SETTINGS_OF_TOOLS = ("MULLIGAN_WORKSPACE", "MULLIGAN_FETCH_ALLOW")


async def run_checks(loaded: LoadedModules | None, task_queue: str, served: Iterable[str] = ()) -> list[Finding]:
    """All findings, in the order of the report. `loaded`: the user's modules; None: none were named. `served`: agents that
    workers serve beside those of the modules.
    """
    results = await asyncio.gather(
        _check_temporal(loaded, task_queue, served),
        check_models(loaded),
        check_mcp(loaded),
        check_otlp(),
        check_jaeger(),
    )
    of_process = [*_check_versions(), *_check_setting_names(os.environ), *_check_live_text(), *_check_modules(loaded)]
    return [*of_process, *(finding for group in results for finding in group)]


async def check_agent_files(folder: AgentFolder, task_queue: str) -> list[Finding]:
    """Read the folder of agents, as a worker does; a problem for each file that is wrong, with what workers serve."""
    await folder.load()
    if folder.problems:
        with suppress(DeclarationError, RPCError, RuntimeError, ValueError, OSError):  # else another check says so
            served = await AgentReader(await connect(), task_queue).read() or {}
            wrong = {*names_in_folder(str(folder.path))} & served.keys() - {*folder.served}
            folder.elsewhere = {name: served[name]["version"] for name in wrong if "version" in served[name]}
            await folder.load()
    faults = [Finding("agent files", "problem", problem.rstrip(".")) for problem in folder.problems]
    faults += [Finding("agent files", "warning", folder.warning.rstrip("."))] if folder.warning else []
    names = ", ".join(sorted(folder.served)) or "none"
    return faults or [Finding("agent files", "ok", f"{folder.path}: {names}")]


async def _check_temporal(loaded: LoadedModules | None, task_queue: str, served: Iterable[str]) -> list[Finding]:
    try:
        client = await connect()
    except DeclarationError as error:
        return [Finding("server", "problem", str(error).rstrip("."))]
    except (RuntimeError, ValueError, OSError) as error:
        return [Finding("server", "problem", explain_connection_error(error).rstrip("."))]
    namespace = await check_namespace(client)
    if namespace[0].state == "problem":
        return [*await check_server(client), *namespace]
    agents = sorted({*loaded.registry.agents, *served}) if loaded else []
    checks: list[Awaitable[Sequence[Finding]]] = [check_search_attributes(client), check_clock(client)]
    checks += [
        check_task_queue(client, queue, agents if queue == task_queue else [])
        for queue in _task_queues(loaded, task_queue)
    ]
    others = await asyncio.gather(*checks)
    return [*await check_server(client), *namespace, *(finding for findings in others for finding in findings)]


def _task_queues(loaded: LoadedModules | None, task_queue: str) -> list[str]:
    """The queue of the runs, that of their model calls where it is another, and those of tools."""
    queues = [task_queue]
    if settings().limits_model_calls:
        queues.append(f"{task_queue}-models")
    if loaded:
        tools = [tool for agent in loaded.registry.agents.values() for tool in agent.listed_tools]
        queues += sorted({tool.task_queue for tool in tools if tool.task_queue})
    return list(dict.fromkeys(queues))


def _check_modules(loaded: LoadedModules | None) -> list[Finding]:
    """The agents of the named modules, and what is probably a mistake in them."""
    if loaded is None:
        return []
    names = ", ".join(sorted(loaded.registry.agents))
    warnings = [Finding("agents", "warning", warning.rstrip(".")) for warning in loaded.warnings]
    return [*([Finding("agents", "ok", names)] if names else []), *warnings]


def _check_versions() -> list[Finding]:
    """The versions that a report of a fault should name."""
    try:
        packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    except PackageNotFoundError as error:
        return [Finding("versions", "problem", f"the package {error.name} is not installed; install Mulligan again")]
    return [Finding("versions", "ok", f"{packages}, Python {platform.python_version()}")]


def _check_live_text() -> list[Finding]:
    """The folder through which live text goes on this machine, if it can be used."""
    try:
        folder = live_folder()
    except DeclarationError:  # of a setting: another check says so
        return []
    if folder is None:
        return [Finding("live text", "ok", "by heartbeats: MULLIGAN_LIVE is off")]
    try:
        check_folder(folder)
    except UnusableFolderError as error:
        return [Finding("live text", "warning", f"by heartbeats only: {error}")]
    except FileNotFoundError:
        return [Finding("live text", "ok", f"by sockets in {folder}, as soon as a worker runs here")]
    return [Finding("live text", "ok", f"by sockets in {folder}")]


def _check_setting_names(environ: Mapping[str, str]) -> list[Finding]:
    """A warning for each variable that looks like a setting of Mulligan but is not one: a misspelled one has no effect."""
    names = [str(field.validation_alias or f"{PREFIX}{name}").upper() for name, field in Settings.model_fields.items()]
    known = [*names, *SETTINGS_OF_TOOLS]
    findings = []
    for name in sorted(name for name in environ if name.startswith(PREFIX) and name not in known):
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        findings.append(Finding("settings", "warning", f"{name} is not a setting and has no effect{hint}"))
    return findings
