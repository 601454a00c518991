"""An agent of its file: the names in it are looked up among what loaded modules declare."""

from __future__ import annotations

import logging
from collections.abc import Container
from typing import Any

from mulligan.activities.agent_files.agent_file import AgentFile, parse_agent_file
from mulligan.activities.agent_files.named_parts import ByName, NamedParts, T
from mulligan.activities.agent_files.served_files import FileVersion
from mulligan.agent import Agent
from mulligan.errors import DeclarationError
from mulligan.model_name import ModelName
from mulligan.schema.error_text import error_text, type_name
from mulligan.schema.yaml_fields import FileFault

logger = logging.getLogger("mulligan.agents")


def build_agent(file: AgentFile, parts: NamedParts, source: str) -> Agent:
    """The agent that a file describes. `source`: the path of the file, for people.

    Raises:
        FileFault: it names something that no loaded module declares, or options that do not go together.
    """
    if fault := _missing(file, parts):
        raise fault
    try:
        return agent_of(file, parts, source)
    except (DeclarationError, TypeError) as error:
        # A feature that lacks an option is a TypeError.
        text = str(error).partition(f"agent {file.name!r}")[2].lstrip(":, ").rstrip(".") or str(error).rstrip(".")
        raise FileFault(file.line_of(text), text) from None
    except Exception as error:  # noqa: BLE001 - features of users' modules are checked too; one file must not stop the others
        text = f"the agent cannot be built: {type_name(error)}: {error_text(error)}".rstrip(".")
        raise FileFault(file.line_of(text), text) from None


def agent_of(file: AgentFile, parts: NamedParts, source: str) -> Agent:
    """The agent that a file describes, without what it names and no loaded module declares any more.

    Raises:
        DeclarationError: its options do not go together.
    """
    front_matter = file.front_matter
    options: dict[str, Any] = front_matter.options()
    features = [*front_matter.features_of_mulligan(), *_present(parts.features, front_matter.other_features)]
    plain, tools = file.instructions.plain, _present(parts.tools, front_matter.tools)
    agent: Agent = Agent(
        name=file.name,
        instructions=file.instructions.write if plain is None else plain,
        tools=tools,
        mcp=_present(parts.servers, front_matter.mcp),
        features=features,
        **options,
    )
    object.__setattr__(agent, "source", source)
    return agent


def _missing(file: AgentFile, parts: NamedParts) -> FileFault | None:
    """The fault of the first name in a file by which nothing can be meant here."""
    front_matter = file.front_matter
    for key, names, known in (
        ("tools", front_matter.tools, parts.tools),
        ("mcp", front_matter.mcp, parts.servers),
        ("features", front_matter.other_features, parts.features),
    ):
        for name in names:
            if fault := known.fault(name):
                return FileFault(file.line_of(name, under=key), fault)
    return None


def former_version(name: str, text: str, parts: NamedParts) -> FileVersion | None:
    """A version that was served once, with what loaded modules still declare of it; None: it cannot be built here."""
    try:
        file = parse_agent_file(name, text.encode())
        fault = _missing(file, parts)
        version = FileVersion(file, agent_of(file, parts, f"{name}.md"), "" if fault is None else str(fault))
    except Exception as error:  # noqa: BLE001 - as in build_agent
        logger.warning("A former version of the agent %r cannot be served here: %s", name, error)
        return None
    if version.missing:
        logger.warning(
            "The version %s of the agent %r lacks something here, so that only runs that have begun with it go on: %s",
            file.digest[:12], name, version.missing,
        )  # fmt: skip
    return version


def check_endpoints_of(file: AgentFile, agent: Agent, endpoints: Container[str]) -> None:
    """Check that the worker knows the endpoints that the models of a file name.

    Raises:
        FileFault: it does not know one.
    """
    for model in agent.all_models(agent.models):
        name = ModelName.parse(model).endpoint
        if name and name not in endpoints:
            text = (
                f"model names the endpoint {name!r}, which no loaded module and no file of MULLIGAN_ENDPOINTS declares"
            )
            raise FileFault(file.line_of(text), text)


def _present(known: ByName[T], names: list[str]) -> list[T]:
    return [thing for name in names if (thing := known.find(name)) is not None]
