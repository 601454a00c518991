"""The databases of the tasks, in a process that nobody kills: it applies the benchmark's tools, and keeps a ledger.

    python -m tests.exam.databases DOMAIN PORT LEDGER

It runs in the benchmark's environment, and imports nothing of Mulligan. Each run has a database of its own. A tool is applied
when its request arrives, each time: nothing here makes a repeated call harmless. The answer comes a moment later, so that kills
hit runs whose effect has happened and whose result is not known. The ledger is a file of JSON objects, as that of
`tests/chaos/ledger.py`.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from loguru import logger  # type: ignore[import-not-found]

from benchmarks.tau2_tasks import Database, Domain, GoldTask
from tests.exam.run_names import CHANGES

LONGEST_ANSWER_SECONDS = 0.3


@dataclass
class Played:
    """The database of a run, and all that has happened to it."""

    task: GoldTask
    database: Database
    calls: list[dict[str, Any]] = field(default_factory=list)
    """In the order in which they were applied."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Databases:
    """The databases of a domain's runs."""

    def __init__(self, domain: Domain, ledger: str) -> None:
        self._domain, self._ledger = domain, ledger
        self._writes = {tool.name for tool in domain.tools if tool.writes}
        self._played: dict[str, Played] = {}
        self._lock = threading.Lock()

    def domain(self) -> dict[str, Any]:
        """The policy, the tools and the tasks."""
        changes = {
            "name": CHANGES,
            "description": "List the changes that were made since the conversation began.",
            "schema": {"type": "object", "properties": {}},
            "writes": False,
        }
        return {
            "name": self._domain.name,
            "policy": self._domain.policy,
            "tools": [*map(asdict, self._domain.tools), changes],
            "tasks": [task.as_json() for task in self._domain.tasks],
        }

    def call(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Apply a tool: {run, task (its place in the list), name, arguments, call (its key), attempt, pid} -> {text, failed}."""
        played = self._of_run(asked["run"], asked["task"])
        name, arguments = asked["name"], self._domain.typed(asked["name"], asked["arguments"])
        with played.lock:
            if name == CHANGES:
                text, failed = json.dumps(self._effects(played)), False
            else:
                text, failed = _applied(played.database, name, arguments)
            entry = {
                **asked,
                "arguments": arguments,
                "event": "start",
                "tool": name,
                "failed": failed,
                "text": text,
                "at": time.time(),
            }
            played.calls.append(entry)
        with open(self._ledger, "ab", buffering=0) as file:
            file.write(json.dumps({key: each for key, each in entry.items() if key != "text"}).encode() + b"\n")
        chance = random.Random(f"{asked['run']} {asked['call']} {asked['attempt']}")
        time.sleep(chance.uniform(0, LONGEST_ANSWER_SECONDS))
        return {"text": text, "failed": failed}

    def judge(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Compare the database of a run with that of the gold calls, made once each; and forget it: {run, task}."""
        played = self._of_run(asked["run"], asked["task"])
        gold = self._domain.open(played.task)
        expected = Counter[str]()
        for call in played.task.gold:
            _, failed = _applied(gold, call.name, call.arguments)
            if call.name in self._writes and not failed:
                expected[_key(call.name, call.arguments)] += 1
        effects = Counter(_key(*each) for each in self._effects(played))
        writes = [each for each in played.calls if each["name"] in self._writes and not each["failed"]]
        attempts = Counter(each["call"] for each in writes)
        del self._played[asked["run"]]
        return {
            "same_database": gold.digest == played.database.digest,
            "reward": self._reward(played),
            "effects": effects.total(),
            "of_attempts": sum(count - 1 for count in attempts.values()),
            "repeated": sum((effects - expected)[each] for each in expected),
            "unexpected": sorted(each for each in effects if each not in expected),
            "lost": sorted((expected - effects).elements()),
            "applied_calls": sorted(attempts),
        }

    def _of_run(self, run: str, task: int) -> Played:
        with self._lock:
            if run not in self._played:
                chosen = self._domain.tasks[task]
                self._played[run] = Played(chosen, self._domain.open(chosen))
            return self._played[run]

    def _effects(self, played: Played) -> list[tuple[str, dict[str, Any]]]:
        return [
            (each["name"], each["arguments"])
            for each in played.calls
            if each["name"] in self._writes and not each["failed"]
        ]

    def _reward(self, played: Played) -> float:
        """The judgement of the benchmark's evaluator on the calls as they were applied. It plays them again, and refuses to
        judge if a result is another one."""
        from tau2.data_model.message import AssistantMessage, ToolCall, ToolMessage  # type: ignore[import-not-found]
        from tau2.evaluator.evaluator_env import EnvironmentEvaluator  # type: ignore[import-not-found]

        messages: list[Any] = []
        for number, each in enumerate(each for each in played.calls if each["name"] != CHANGES):
            call = ToolCall(id=str(number), name=each["name"], arguments=each["arguments"])
            messages.append(AssistantMessage(role="assistant", content=None, tool_calls=[call]))
            messages.append(ToolMessage(id=str(number), role="tool", content=each["text"], error=each["failed"]))
        verdict = EnvironmentEvaluator.calculate_reward(
            self._domain.environment, played.task.source, messages, self._domain.is_solo
        )
        return float(verdict.reward)


def _applied(database: Database, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
    """The text of a call's result, and whether it has failed."""
    try:
        return database.call(name, arguments), False
    except Exception as error:  # as the benchmark's environment does
        return f"Error: {error}", True


def _key(name: str, arguments: dict[str, Any]) -> str:
    return f"{name} {json.dumps(arguments, sort_keys=True)}"


def serve(name: str, port: int, ledger: str) -> None:
    """Serve until killed; prints a line when it does."""
    databases = Databases(Domain(name), ledger)
    paths = {"/call": databases.call, "/judge": databases.judge, "/domain": lambda _: databases.domain()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = json.dumps(paths[self.path](asked)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing: the ledger says it all."""

        def log_error(self, *_: object) -> None:
            """Nothing: callers are killed."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Nothing: callers are killed."""

    with Server(("127.0.0.1", port), Handler) as server:
        print("serving", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    logger.remove()
    serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
