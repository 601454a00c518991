"""`mulligan agents`: the agents and tools that a worker would serve."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from mulligan.cli._steps import counted, short
from mulligan.cli._terminal import AgentFiles, AsJson, Modules, out, print_json, print_progress
from mulligan.schema.printable import json_line, printable

if TYPE_CHECKING:
    from mulligan.agent import Agent

WAITS = {
    "approval": "needs approval  ",
    "approval of some calls": "may need approval  ",
    "answer": "asks a person  ",
}
"""What is said of a tool whose calls wait for a person, by `waits` in its JSON."""


async def agents(
    load: Modules = None,
    folder: AgentFiles = None,
    with_shipped: Annotated[
        bool, typer.Option("--with-shipped", help="Also list the agents that come with Mulligan.")
    ] = False,
    versions: Annotated[
        bool, typer.Option("--versions", help="List the versions of the agents that are files, and their labels.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of the front matter of an agent's file.")
    ] = False,
    mcp: Annotated[
        bool, typer.Option("--mcp", help="Start the MCP servers, and list their tools, also those that are left out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the agents and tools that a worker would serve, with their schemas. MCP servers are started with `--mcp` only.

    With no module named, these are the agents that come with Mulligan. What is wrong with the file of an agent is said on
    stderr. Former versions are listed if the content storage has them (`MULLIGAN_CONTENT_DIR`).

    Examples: `mulligan agents --load shop`, `mulligan agents --agents prompts --versions`

    Exit code: 2 if a declaration is invalid, with one sentence that names the file, the tool and the error.
    """
    from mulligan.activities.agent_files.front_matter import front_matter_schema
    from mulligan.activities.list_agents import agent_json
    from mulligan.client.settings import settings
    from mulligan.worker.agent_folder import agent_folder, names_in_folder
    from mulligan.worker.all_endpoints import all_endpoints, check_endpoints
    from mulligan.worker.loading import load as load_modules
    from mulligan.worker.loading import modules_to_load

    if schema:
        print_json(front_matter_schema())
        return
    names = modules_to_load(settings().load, load or [], with_shipped=with_shipped)
    loaded = load_modules(names, file_names=names_in_folder(folder))
    files = agent_folder(folder, loaded.registry, print_progress)
    if files is not None:
        await files.load()
    if versions:
        _print_versions(await files.versions() if files is not None else [], as_json=as_json)
        return
    warnings = [*loaded.warnings, *check_endpoints(loaded.registry, settings().endpoints)]
    endpoints = all_endpoints(loaded.registry, settings().endpoints)
    for warning in warnings:
        print_progress(f"warning: {warning}")
    declared, listed = _sorted(loaded.registry.agents), loaded.registry.files.listed
    descriptions = [{**agent_json(one), **_endpoints_json(one, endpoints), **listed(one.name)} for one in declared]
    if mcp:
        await _add_mcp_tools(zip(declared, descriptions, strict=True))
    if as_json:
        print_json(descriptions)
        return
    for agent in descriptions:
        _print_agent(agent)
    _print_others(endpoints, sorted(loaded.registry.tools))


def _sorted(agents: Mapping[str, Any]) -> list[Any]:
    return [agent for _, agent in sorted(agents.items())]


async def _add_mcp_tools(agents: Iterable[tuple[Agent, dict[str, Any]]]) -> None:
    """Add the tools that each server offers to its JSON, those that are left out, or why it is not there."""
    from mulligan.doctor.mcp_servers import list_tools

    rows = [(server, row) for agent, shown in agents for server, row in zip(agent.mcp, shown["mcp"], strict=True)]
    for (_, row), listing in zip(rows, await list_tools(server for server, _ in rows), strict=True):
        if isinstance(listing, str):
            row["unavailable"] = listing
        else:
            row["tools"] = [definition.name for _, definition, _ in listing.tools]
            row["left_out"] = listing.left_out


def _print_others(endpoints: Mapping[str, Any], tools: list[str]) -> None:
    for name, endpoint in sorted(endpoints.items()):
        key = f"  key: {endpoint.api_key_env}" if endpoint.api_key_env else ""
        address = endpoint.base_url or "the provider's default address"
        out.print(Text.assemble("endpoint ", (name, "bold"), f"  {address}{key}"))
    if tools:
        out.print(Text.assemble("tools for agents of other workers: ", (", ".join(tools), "cyan")))


def _print_agent(agent: dict[str, Any]) -> None:
    models = ", fallback ".join([agent["model"], *agent["fallbacks"]])
    out.print(Text.assemble((agent["name"], "bold"), f"  {models}, {counted(agent['max_steps'], 'step')}"))
    for tool in agent["tools"]:
        fields = ", ".join(_field_label(name, tool["parameters"]) for name in tool["parameters"].get("properties", {}))
        first_line = tool["description"].split("\n")[0]
        runs = f"→ agent {tool['agent']}  " if "agent" in tool else ""
        out.print(Text.assemble("  ", (tool["name"], "cyan"), f"({fields})  ", _waits(tool), runs, (first_line, "dim")))
    for hosted in agent.get("provider_tools", []):
        definition = short(json_line(hosted["tool"]), 100)
        out.print(Text.assemble("  ", (f"{hosted['provider']}: ", "cyan"), definition, "  run by the provider"))
    if "tools_function" in agent:
        out.print(Text.assemble("  ", (agent["tools_function"], "cyan"), "  returns the tools of each run"))
    for server in agent["mcp"]:
        out.print(
            Text.assemble("  ", (f"{server['name']}__…", "cyan"), "  ", _waits(server), f"MCP: {server['address']}")
        )
        for name in server.get("tools", ()):
            out.print(Text.assemble("    ", (name, "cyan")))
        for sentence in (*server.get("left_out", ()), *filter(None, [server.get("unavailable")])):
            out.print(Text.assemble("    ", (printable(sentence), "yellow")), soft_wrap=True)
    for kind in agent["output"]:
        fields = ", ".join(_field_label(name, kind["schema"]) for name in kind["schema"].get("properties", {}))
        out.print(Text.assemble("  → ", (kind["name"], "green"), f"({fields})"))


def _print_versions(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    if not rows:
        print_progress("no versions: no agent is a file; name their folder with --agents")
    for row in rows:
        labels = "  ".join(" ".join(filter(None, (each["label"], each.get("share")))) for each in row["labels"])
        served = "served" if row["served"] else ""
        out.print(
            Text.assemble(
                (row["agent"], "bold"), f"  {row['version']}  ", (f"{served:<6}", "green"), f"  {row.get('since', '')}  ",
                (labels, "cyan"),
            ),
            soft_wrap=True,
        )  # fmt: skip


def _waits(source: dict[str, Any]) -> tuple[str, str]:
    """The mark of a tool or a server whose calls wait for a person, with its colour."""
    return WAITS.get(source.get("waits", ""), ""), "yellow"


def _endpoints_json(agent: Any, endpoints: Mapping[str, Any]) -> dict[str, Any]:
    """The endpoints that the agent's models name: nothing if there are none."""
    from mulligan.model_name import ModelName

    names = sorted({ModelName.parse(model).endpoint for model in agent.all_models(agent.models)} - {""})
    addresses = {
        name: {"base_url": endpoints[name].base_url, "api_key_env": endpoints[name].api_key_env} for name in names
    }
    return {"endpoints": addresses} if addresses else {}


def _field_label(name: str, schema: dict[str, Any]) -> str:
    return name if name in schema.get("required", []) else f"[{name}]"
