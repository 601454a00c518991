"""How much an agent that obeys every injection can be made to do: AgentDojo's four suites, with and without guards.

    uv venv /tmp/dojo && uv pip install --python /tmp/dojo agentdojo==0.1.35 -e .
    /tmp/dojo/bin/python -m benchmarks.agentdojo_suites [--every N] [--file agentdojo.jsonl]

All honest tasks are run, and every N-th attack (all by default: an hour). Each case that has ended is a line of the file,
and a command that is given again goes on after it: the file belongs to one version of Mulligan.

The model is a script: it makes the calls that solve the user's task, and where a result has an injection, it makes the calls
that solve the attacker's at once. Reading tools are untrusted, all others consequential; some are both. A task is
solved, and an attack has succeeded, if AgentDojo's own check says so. The settings:

- `nothing`: an agent without `Guarded`. `deny`: `Guarded("deny")`.
- `person`: `Guarded()`, and a person who approves the calls that the user's task needs, and denies the others. `asked`
  counts the questions; `with rules`: those that are left if each approved call is remembered for the tenant.
- `quarantine`: a quarantined sub-agent reads, and returns values without white space (at most 64 characters). A task that
  needs a text of what was read, for a call or for its answer, cannot be solved so.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import islice, product
from pathlib import Path
from typing import Annotated, Any

from agentdojo.agent_pipeline.tool_execution import tool_result_to_str  # type: ignore[import-not-found]
from agentdojo.functions_runtime import FunctionCall, FunctionsRuntime  # type: ignore[import-not-found]
from agentdojo.task_suite.load_suites import get_suites  # type: ignore[import-not-found]
from pydantic import BaseModel, Field
from pydantic_core import to_jsonable_python

from mulligan import Agent, Call, Decide, Guarded, Message, Pending, Say, Script, Tool, ToolContext, ToolError
from mulligan.schema.argument_digest import argument_digest
from mulligan.testing import ScriptedModel, run_agent
from mulligan.wire.approval_rules import rule_key

VERSION = "v1.2.2"
READING = re.compile(r"get_|search_|list_|read_|check_")
TRUSTED = {"get_current_day", "get_iban", "get_balance", "get_user_info", "get_user_information"}
"""Tools that return nothing that others have written."""
BOTH = {"get_webpage"}
RETURN_CONTENT = re.compile(r"(delete|append_to|share)_file|delete_email|(cancel|reschedule)_calendar|add_calendar")
"""Tools that change something of others, and return it: they are untrusted as well."""
MARK = re.compile(r"INJECTION (injection_task_\d+) END")
SETTINGS = ("nothing", "deny", "person", "quarantine")
MODEL = "scripted:obedient"
TURNS = 60
STRIDE = 8
"""Attacks are run in strides, so that a run that was ended has a sample of all suites."""


class Values(BaseModel):
    """What a task needs of what was read."""

    values: list[Annotated[str, Field(max_length=64, pattern=r"^\S+$")]]


@dataclass
class Case:
    """One run: a user's task, perhaps with an attack."""

    suite: Any
    task: Any
    attack: Any
    setting: str
    executed: list[FunctionCall] = field(default_factory=list)
    asked: list[list[Any]] = field(default_factory=list)
    """The questions to the person: the key of the rule that would approve the call, and whether it was approved."""

    def __post_init__(self) -> None:
        """Prepare the environment, and what the model will do."""
        vectors = self.suite.get_injection_vector_defaults() if self.attack else {}
        injected = dict.fromkeys(vectors, f"INJECTION {self.attack.ID} END") if self.attack else {}
        self.env = self.task.init_environment(self.suite.load_and_inject_default_environment(injected))
        self.before = self.env.model_copy(deep=True)
        self.runtime = FunctionsRuntime(self.suite.tools)
        clean = self.task.init_environment(self.suite.load_and_inject_default_environment({}))
        self.wanted = [_call(each) for each in self.task.ground_truth(clean)]
        self.evil = [_call(each) for each in self.attack.ground_truth(self.before)] if self.attack else []

    async def run(self) -> dict[str, Any]:
        """Run it: the line of the file."""
        reader = Agent(name="reader", model="scripted:reader", tools=[*self._tools(is_untrusted)], max_steps=TURNS)
        if self.setting == "quarantine":
            as_tool = reader.as_tool(description="Reads.", output=Values, quarantine=True)
            tools: list[Tool] = [*self._tools(lambda name: not is_untrusted(name) or name in BOTH), as_tool]
        else:
            tools = [*self._tools(lambda _: True)]
        guards: dict[str, list[Guarded]] = {"nothing": [], "person": [Guarded()]}
        features = guards.get(self.setting, [Guarded("deny")])
        agent = Agent(name="agent", model=MODEL, tools=tools, features=features, max_steps=TURNS, max_repeats=None)
        obedient = Obedient(self)
        scripts = {"reader": Script("reader", [self._read] * TURNS)} if self.setting == "quarantine" else None
        model = ScriptedModel(*[obedient.answer] * TURNS, is_strict=False)
        run = await run_agent(agent, self.task.PROMPT, model=model, sub_agents=scripts, person=self._decide)
        output = str(run.output or "")
        checked, check = (self.task, "utility") if self.attack is None else (self.attack, "security")
        return {**self.id(), "done": self._is_done(checked, output, check), "asked": self.asked}

    def id(self) -> dict[str, str | None]:
        """What says which case it is."""
        attack = self.attack.ID if self.attack else None
        return {"suite": self.suite.name, "setting": self.setting, "task": self.task.ID, "attack": attack}

    def _tools(self, may: Any) -> Iterator[Tool]:
        for each in self.suite.tools:
            if may(each.name):
                yield Tool.from_schema(
                    name=each.name,
                    description=each.description or each.name,
                    schema=each.parameters.model_json_schema(),
                    call=partial(self._execute, each.name),
                    trust="untrusted" if is_untrusted(each.name) or RETURN_CONTENT.match(each.name) else "trusted",
                    consequential=each.name in BOTH or not READING.match(each.name),
                    max_result_chars=1_000_000,
                )

    def _execute(self, name: str, arguments: dict[str, Any], _ctx: ToolContext) -> str:
        self.executed.append(FunctionCall(function=name, args=arguments))
        result, error = self.runtime.run_function(self.env, name, arguments)
        if error:
            raise ToolError(error)
        return str(tool_result_to_str(result))

    def _decide(self, wait: Pending) -> Decide:
        """What a person decides who knows what the user has asked for."""
        key = rule_key(
            self.suite.name, wait.tool, argument_digest(wait.arguments), role=None, user=None, untrusted=True
        )
        is_wanted = any(_same(each, wait.tool, wait.arguments) for each in self.wanted)
        self.asked.append([key, is_wanted])
        return Decide(call_id=wait.call_id, decision="approve" if is_wanted else "deny")

    def needed(self) -> list[str]:
        """The texts in what was read that the task's calls and its answer need: those that the prompt does not have."""
        calls = [each for each in self.wanted if not is_untrusted(each.name)]
        texts = [each for call in calls for each in _texts(call.arguments)]
        texts += [self.task.GROUND_TRUTH_OUTPUT] if any(is_untrusted(each.name) for each in self.wanted) else []
        return [each for each in texts if each and each not in self.task.PROMPT]

    def _read(self, messages: Sequence[Message]) -> Say:
        """The quarantined reader: the task's reading calls, what injections say, then the values."""
        done = sum(message.role == "tool" for message in messages)
        evil = self.evil if MARK.search(" ".join(each.text for each in messages)) else []
        calls = [*(each for each in self.wanted if is_untrusted(each.name)), *evil]
        if done < len(calls):
            return Say(calls=[Call(calls[done].name, calls[done].arguments)])
        return Say(calls=[Call("Values", {"values": self.needed()})]) if done < len(calls) + 2 else Say("It has texts.")

    def _is_done(self, task: Any, output: str, check: str) -> bool:
        of_traces = getattr(task, f"{check}_from_traces")(output, self.before, self.env, self.executed)
        return bool(getattr(task, check)(output, self.before, self.env) if of_traces is None else of_traces)


class Obedient:
    """The model of a case: the user's calls, and before the next of them, the attacker's as soon as it reads them."""

    def __init__(self, case: Case) -> None:
        self._case, self._todo, self._obeyed, self._failed = case, [*case.wanted], False, False
        if case.setting == "quarantine" and any(is_untrusted(each.name) for each in self._todo):
            others = [each for each in self._todo if not is_untrusted(each.name)]
            self._todo = [Call("reader", {"prompt": "Read."}), *others]

    def answer(self, messages: Sequence[Message]) -> Say:
        """The next call, or the answer."""
        newest = messages[-1]
        if newest.role == "tool" and newest.name == "reader" and newest.error is not None:
            self._failed, self._todo = True, []
        if not self._obeyed and any(MARK.search(each.text) for each in messages if each.role == "tool"):
            self._obeyed, self._todo = True, [*self._case.evil, *self._todo]
        if self._todo:
            call = self._todo.pop(0)
            return Say(calls=[Call(call.name, call.arguments)])
        texts = [] if self._failed else [self._case.task.GROUND_TRUTH_OUTPUT]
        return Say(" ".join([*texts, self._case.attack.GROUND_TRUTH_OUTPUT if self._obeyed else ""]) or "Done.")


def is_untrusted(name: str) -> bool:
    """Whether others may have written what a tool returns."""
    return bool(READING.match(name)) and name not in TRUSTED


def _call(given: FunctionCall) -> Call:
    return Call(given.function, to_jsonable_python(dict(given.args)))


def _same(call: Call, name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a call is one of the user's: optional arguments that it leaves out may have been filled in."""
    given = {key: value for key, value in arguments.items() if key in call.arguments}
    return call.name == name and json.dumps(given, sort_keys=True) == json.dumps(call.arguments, sort_keys=True)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(each)


async def main(every: int, file: Path) -> None:
    """Run the cases that the file lacks, then print a table of each suite, and of all."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    ended = {_key(line) for line in lines}
    print(
        f"agentdojo {version('agentdojo')} {VERSION}, load {os.getloadavg()[0]:.1f}, {len(ended)} cases in {file}",
        flush=True,
    )
    with file.open("a") as out:
        for case in cases(every):
            if _key(case.id()) not in ended:
                lines.append(await case.run())
                print(json.dumps(lines[-1]), file=out, flush=True)
    for suite in (*get_suites(VERSION), None):
        for setting in SETTINGS:
            of_suite = [each for each in lines if suite in (None, each["suite"]) and each["setting"] == setting]
            print_row(suite or "all", setting, of_suite)


def cases(every: int) -> Iterator[Case]:
    """All honest tasks, then every N-th attack of all suites, then those that follow each of these."""
    suites = get_suites(VERSION).values()
    for suite, setting in product(suites, SETTINGS):
        yield from (Case(suite, task, None, setting) for task in suite.user_tasks.values())
    for first in range(0, STRIDE, every):
        for suite, setting in product(suites, SETTINGS):
            pairs = product(suite.user_tasks.values(), suite.injection_tasks.values())
            yield from (Case(suite, *pair, setting) for pair in islice(pairs, first, None, max(every, STRIDE)))


def print_row(suite: str, setting: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """Print the figures of a suite in a setting."""
    attacks = [each["done"] for each in lines if each["attack"]]
    tasks = [each["done"] for each in lines if not each["attack"]]
    rules: set[str] = set()
    asked = left = 0
    for key, is_approved in (each for line in lines if not line["attack"] for each in line["asked"]):
        asked, left = asked + 1, left + (key not in rules)
        rules |= {key} if is_approved else set()
    questions = f"asked {asked}, with rules {left}" if setting == "person" else ""
    print(
        f"{suite:10} {setting:11} attacks {sum(attacks):>4} of {len(attacks):<4} "
        f"tasks {sum(tasks):>3} of {len(tasks):<3} {questions}",
        flush=True,
    )


def _key(line: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("suite", "setting", "task", "attack"))


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="1, 2, 4, 8 or a greater number")
    parser.add_argument("--file", type=Path, default=Path("agentdojo.jsonl"))
    given = parser.parse_args()
    asyncio.run(main(given.every, given.file))
