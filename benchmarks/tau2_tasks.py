"""The tasks, tools and databases of tau²-bench, as its package on PyPI has them. It imports nothing of Mulligan: the package
may be in an environment of its own (`tests/support/tau2_environment.py`).

In retail and airline the agent alone has tools. In telecom the user has some too: there this is the benchmark's solo mode,
in which the agent gets a ticket, and the user's tools beside its own.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

DOMAINS = ("retail", "airline", "telecom")


@dataclass(frozen=True)
class GoldCall:
    """A call of a task's solution."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class GoldTask:
    """A task: what the user wants, and the calls that do it (`gold`), in their order."""

    id: str
    prompt: str
    gold: Sequence[GoldCall]
    source: Any = field(repr=False, compare=False, default=None)
    """The benchmark's own object."""

    def as_json(self) -> dict[str, Any]:
        """The task without the benchmark's object."""
        return {"id": self.id, "prompt": self.prompt, "gold": [asdict(call) for call in self.gold]}


@dataclass(frozen=True)
class DomainTool:
    """A tool of a domain. `writes`: it changes the database."""

    name: str
    description: str
    schema: dict[str, Any]
    writes: bool


class Database:
    """The database of one task, from its state at the task's start, and the tools that work on it."""

    def __init__(self, environment: Any, task: GoldTask | None = None) -> None:
        self._environment = environment
        if (state := task.source.initial_state if task else None) is not None:
            environment.set_state(state.initialization_data, state.initialization_actions, [])

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The result of a tool.

        Raises:
            ValueError: what its tools raise for what does not exist, or may not be done.
        """
        result = self._environment.make_tool_call(name, **arguments)
        self._environment.sync_tools()
        return str(self._environment.to_json_str(result))

    @property
    def digest(self) -> str:
        """That of the database, by which the benchmark judges a task; in telecom, that of the user's device too."""
        hashes = (self._environment.get_db_hash(), self._environment.get_user_db_hash())
        return "-".join(each for each in hashes if each)


class Domain:
    """A domain: its policy, its tasks, and its tools."""

    def __init__(self, name: str) -> None:
        self._module: Any = import_module(f"tau2.domains.{name}.environment")
        self.name = name
        self.is_solo = name == "telecom"
        first = self._module.get_environment(**self._mode(self.is_solo))
        toolkits = [first.tools, first.user_tools] if self.is_solo else [first.tools]
        # To load a copy takes a fifth of the time of a deep copy.
        databases = {"db": first.tools.db} | ({"user_db": first.user_tools.db} if self.is_solo else {})
        self._databases = {key: pickle.dumps(each) for key, each in databases.items()}
        self.policy: str = first.get_policy()
        self.tools = [
            DomainTool(
                each.name,
                each.openai_schema["function"]["description"],
                each.openai_schema["function"]["parameters"],
                toolkit.tool_type(each.name).value == "write",
            )
            for toolkit in toolkits
            for each in toolkit.get_tools().values()
        ]
        splits = ["full"] if self.is_solo else []
        self.tasks = [_task(each) for each in self._module.get_tasks(*splits)]

    def typed(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with a float for each number that need not be whole. For JSON, 2 and 2.0 are the same number; for
        the digest of a database they are not.
        """
        fields: dict[str, Any] = next((tool.schema["properties"] for tool in self.tools if tool.name == name), {})
        floats = {field for field, schema in fields.items() if schema.get("type") == "number"}
        return {key: float(each) if key in floats else each for key, each in arguments.items()}

    def open(self, task: GoldTask | None = None) -> Database:
        """A database for a task, which no other task sees."""
        return Database(self.environment(self.is_solo), task)

    def environment(self, solo_mode: bool = False) -> Any:
        """The benchmark's environment of the domain, with a database of its own."""
        databases = {key: pickle.loads(each) for key, each in self._databases.items()}
        return self._module.get_environment(**databases, **self._mode(solo_mode))

    def _mode(self, solo_mode: bool) -> dict[str, bool]:
        """The argument of the benchmark's constructor, which some domains refuse."""
        return {"solo_mode": True} if solo_mode else {}


def _task(task: Any) -> GoldTask:
    instructions = task.user_scenario.instructions
    prompt = task.ticket or "\n\n".join(filter(None, (instructions.reason_for_call, instructions.known_info)))
    actions = task.evaluation_criteria.actions or []
    return GoldTask(task.id, prompt, [GoldCall(each.name, dict(each.arguments)) for each in actions], task)
