"""The model of the exam, in a process that may be killed: it remembers nothing, and reads all from the conversation.

    python -m tests.exam.gold_player PORT FACTS [--no-mistakes]

It plays the gold calls of the run's task, in their order, with mistakes before each (`mistakes.py`): one a step, or all of a call
in one step. A gold call of a tool that reads is made twice in one step, of a tool that writes in two steps that follow each
other. If a call is said to have been lost, it may or may not have done its work: then the model looks at the list of changes, and
makes the call again if it is not among them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.exam.mistakes import wrong_calls
from tests.exam.run_names import CHANGES, seed_and_task
from tests.support.openai_server import OpenAIServer
from tests.support.openai_turn import Turn

LONGEST_THOUGHT_SECONDS = 0.2
LOST = "may or may not"
"""It is in the text of a lost call."""
DONE = "It is done."

Call = tuple[str, str]
Steps = Generator[Sequence[Call], Sequence[str], None]


@dataclass(frozen=True)
class GoldPlay:
    """What the model does for one gold call: `steps`, of which each is the calls of one step."""

    name: str
    arguments: dict[str, Any]
    steps: Sequence[Sequence[Call]]

    def turns(self) -> Steps:
        """The calls of each step; it is sent the texts of their results."""
        for calls in self.steps:
            results = yield calls
            if any(LOST in text for text in results):
                yield from self._until_done()
                return

    def _until_done(self) -> Steps:
        """Look whether the call is done, and make it if it is not, until it is known to have ended."""
        while True:
            [changes] = yield [(CHANGES, "{}")]
            if LOST in changes:
                continue
            if [self.name, self.arguments] in json.loads(changes):
                return
            [result] = yield [(self.name, json.dumps(self.arguments))]
            if LOST not in result:
                return


def plays(task: dict[str, Any], tools: dict[str, dict[str, Any]], seed: int, mistakes: bool) -> list[GoldPlay]:
    """What the model does in a task, as the seed decides. `tools`: those of the domain, by name."""
    made = []
    for number, gold in enumerate(task["gold"]):
        name, arguments = gold["name"], gold["arguments"]
        chance = random.Random(f"{seed} {task['id']} {number}")
        right = (name, json.dumps(arguments))
        steps: list[Sequence[Call]] = [[right]]
        if mistakes:
            wrong = list(wrong_calls(name, arguments, tools[name]["schema"], chance).values())
            twice = [[right], [right]] if tools[name]["writes"] else [[right, right]]
            steps = [*([wrong] if chance.random() < 0.5 else [[each] for each in wrong]), *twice]
        made.append(GoldPlay(name, arguments, steps))
    return made


def script(facts: dict[str, Any], mistakes: bool) -> Callable[[dict[str, Any], int], Turn]:
    """The answer of the model to a request: it plays the task again, with the results that the conversation has."""
    tools = {tool["name"]: tool for tool in facts["tools"]}

    def turn(request: dict[str, Any], nth: int) -> Turn:
        prompt = next(each["content"] for each in request["messages"] if each["role"] == "user")
        seed, number = seed_and_task(prompt)
        task = facts["tasks"][number]
        steps = _all(plays(task, tools, seed, mistakes))
        calls = next(steps, None)
        for results in _results(request["messages"]):
            try:
                calls = steps.send(results)
            except StopIteration:
                calls = None
        delay = random.Random(f"{seed} {task['id']} {nth}").uniform(0, LONGEST_THOUGHT_SECONDS)
        if calls is None:
            return Turn(DONE, delay=delay)
        return Turn(calls=[(*call, f"c{nth}_{place}") for place, call in enumerate(calls)], delay=delay)

    return turn


def _all(played: Sequence[GoldPlay]) -> Steps:
    for each in played:
        yield from each.turns()


def _results(messages: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The texts of the results of each step."""
    steps: list[list[str]] = []
    for message in messages:
        if message["role"] == "assistant":
            steps.append([])
        elif message["role"] == "tool":
            content = message["content"]
            steps[-1].append(content if isinstance(content, str) else "".join(part["text"] for part in content))
    return steps


async def main() -> None:
    """Serve until killed; prints a line when it does."""
    parser = argparse.ArgumentParser(prog="python -m tests.exam.gold_player", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("facts", type=Path)
    parser.add_argument("--no-mistakes", action="store_true")
    given = parser.parse_args()
    async with OpenAIServer(port=given.port) as server:
        server.script("exam", script(json.loads(given.facts.read_text()), not given.no_mistakes))
        print("serving", flush=True)
        while True:
            await asyncio.sleep(5)
            for each in server.refusals:
                print(each.message, flush=True)
            server.requests.clear()  # a test would look at them


if __name__ == "__main__":
    asyncio.run(main())
