"""The agents that are files, as a worker serves them now."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mulligan.activities.agent_files.agent_file import AgentFile
from mulligan.activities.agent_files.labels import Label, label_of
from mulligan.agent import Agent
from mulligan.wire.agent_version import CURRENT, LEAST_DIGITS


@dataclass(frozen=True)
class FileVersion:
    """A version of an agent's file, and the agent that it describes.

    `missing`: what the file names and this worker does not have, as a sentence; "": nothing. A version that lacks something
    is for runs that have pinned it only: no run begins with it.
    """

    file: AgentFile
    agent: Agent
    missing: str = ""


@dataclass(frozen=True)
class ServedFiles:
    """The newest version of each agent by the agent's name, and its labels.

    `labelled`: the versions that labels name; `former`: those that this process has served before. Both by the name of the
    agent and the digest. `labels` has each agent whose labels are known, whether it has any. `unlabelled`: the agents whose
    labels are not: runs of them begin with versions that they name alone.
    """

    current: Mapping[str, FileVersion] = field(default_factory=dict)
    labels: Mapping[str, Sequence[Label]] = field(default_factory=dict)
    labelled: Mapping[tuple[str, str], FileVersion] = field(default_factory=dict)
    former: Mapping[tuple[str, str], FileVersion] = field(default_factory=dict)
    unlabelled: Container[str] = ()

    def listed(self, agent: str) -> dict[str, Any]:
        """An agent's version and labels as JSON, for a list of agents; {} if it is no file."""
        version = self.current.get(agent)
        if version is None:
            return {}
        labels = [each.listed for each in self.labels.get(agent, ())]
        return {"version": version.file.digest, **({"labels": labels} if labels else {})}

    def label_named(self, agent: str, name: str) -> Label | None:
        """The label of an agent with a name."""
        return next((each for each in self.labels.get(agent, ()) if each.name == name), None)

    def label_for(self, agent: str, wanted: str | None, conversation: str) -> Label | None:
        """The label by which a run begins; None: a version without one.

        Args:
            agent: The name of the run's agent.
            wanted: What the run's input asks for: a label, the beginning of a digest, `current`; None: nothing.
            conversation: The key of its conversation.
        """
        if wanted is not None:
            return self.label_named(agent, wanted)
        return label_of(agent, self.labels.get(agent, ()), conversation)

    def find(self, agent: str, wanted: str) -> FileVersion | None:
        """The version of an agent whose digest begins with some digits, or is `current`; None: it is not here."""
        current = self.current.get(agent)
        if wanted == CURRENT or len(wanted) < LEAST_DIGITS:
            return current if wanted == CURRENT else None
        if current is not None and current.file.digest.startswith(wanted):
            return current
        known = {**self.former, **self.labelled}
        named = [each for (name, digest), each in known.items() if name == agent and digest.startswith(wanted)]
        return named[0] if len(named) == 1 else None
