"""How well tools on demand are found, and what a first request has: over all functions of the Berkeley leaderboard (BFCL).

    uv pip install --no-deps --target /tmp/bfcl bfcl-eval
    uv run --with rank-bm25 python -m benchmarks.tool_search /tmp/bfcl/bfcl_eval/data

The functions of all its categories with one right answer are one pool, with the users' questions as queries. Recall: the
share of the right functions that are among the first 5, or 10. The rivals are `rank_bm25`, and search by a regular
expression as Anthropic's API offers it: a pattern of the question's words, which a model would choose better.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from mulligan import Agent, Tool
from mulligan.activities.models.openai.openai_chat import OpenAIChat
from mulligan.activities.models.protocol import Request
from mulligan.activities.run_data.definitions import define
from mulligan.activities.tool_search.tool_index import COMMON, ToolIndex
from mulligan.values import UserMessage
from mulligan.wire.agent_facts import ToolDefinition

NOT_USED = re.compile(r"irrelevance|relevance|format|memory|web_search|multi_turn")
"""Categories without a right function, or whose functions stand elsewhere."""
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
BYTES_PER_TOKEN = 4
Search = Callable[[str, int], list[str]]


def main() -> None:
    """Print the tables. The argument is the folder `data` of bfcl-eval."""
    tools, queries = pool(Path(sys.argv[1]))
    print(f"{len(tools):,} functions, {len(queries):,} questions\n\n| search | recall@5 | recall@10 | ms a search |")
    print("|---|---:|---:|---:|")
    index = ToolIndex(tools)
    rivals = {"find_tools": index.find, "rank_bm25 (BM25Okapi)": okapi(tools)}
    rivals["regular expression, in order"] = pattern(tools)
    rivals["regular expression, most words first"] = pattern(tools, best=True)
    for name, search in rivals.items():
        started = time.perf_counter()
        answers = [(search(question, 10), right) for question, right in queries]
        took = (time.perf_counter() - started) / len(queries) * 1_000
        count = sum(len(right) for _, right in answers)
        found = [sum(len(right & {*names[:most]}) for names, right in answers) / count for most in (5, 10)]
        print(f"| {name} | {found[0]:.1%} | {found[1]:.1%} | {took:.1f} |")
    print("\n| tools | first request, all visible | on demand |\n|---:|---:|---:|")
    for count in (178, 1_000):
        all_of_them, on_demand = (first_request(tools[:count], on_demand=each) for each in (False, True))
        print(f"| {count:,} | {all_of_them:,} tokens | {on_demand:,} tokens |")


def pool(data: Path) -> tuple[list[ToolDefinition], list[tuple[str, set[str]]]]:
    """All functions, each name once, and each question with the names of its right functions."""
    functions: dict[str, dict[str, Any]] = {}
    queries: list[tuple[str, set[str]]] = []
    for path in sorted(data.glob("BFCL_v4_*.json")):
        answers = data / "possible_answer" / path.name
        if NOT_USED.search(path.name) or not answers.exists():
            continue
        right = {entry["id"]: entry["ground_truth"] for entry in _lines(answers)}
        for entry in _lines(path):
            functions |= {each["name"]: each for each in entry["function"] if each["name"] not in functions}
            names = {name for call in right.get(entry["id"], ()) for name in call}
            question = " ".join(
                said["content"] for turn in entry["question"] for said in turn if said["role"] == "user"
            )
            queries.append((question, names))
    for path in sorted((data / "multi_turn_func_doc").glob("*.json")):
        functions |= {each["name"]: each for each in _lines(path) if each["name"] not in functions}
    tools = [
        ToolDefinition(name=name, description=each["description"], parameters=_schema(each["parameters"]))
        for name, each in functions.items()
    ]
    return tools, [(question, names) for question, names in queries if names]


def okapi(tools: Sequence[ToolDefinition]) -> Search:
    """Search by rank_bm25, with the same words."""
    names = [tool.name for tool in tools]
    ranking = import_module("rank_bm25").BM25Okapi([_words(tool) for tool in tools])

    def search(question: str, most: int) -> list[str]:
        scores = ranking.get_scores(_split(question))
        return [names[at] for at in sorted(range(len(names)), key=lambda at: -scores[at])[:most]]

    return search


def pattern(tools: Sequence[ToolDefinition], *, best: bool = False) -> Search:
    """Search by a regular expression of the question's words: the first tools that match, or those that most words match."""
    texts = [(tool.name, f"{tool.name} {tool.description} {json.dumps(tool.parameters)}".lower()) for tool in tools]

    def search(question: str, most: int) -> list[str]:
        words = {*_split(question)} - COMMON
        if not words:
            return []
        if not best:
            any_word = re.compile("|".join(map(re.escape, words)))
            return list(islice((name for name, text in texts if any_word.search(text)), most))
        counts = [(-sum(word in text for word in words), at) for at, (_, text) in enumerate(texts)]
        return [texts[at][0] for count, at in sorted(counts)[:most] if count]

    return search


def first_request(tools: Sequence[ToolDefinition], *, on_demand: bool) -> int:
    """About how many tokens the first request of an agent with these tools has."""

    async def call(arguments: dict[str, Any], ctx: Any) -> str:
        del arguments, ctx
        return ""

    names = [re.sub(r"[^a-zA-Z0-9_-]", "_", tool.name)[:64] for tool in tools]
    declared = {
        name: Tool.from_schema(
            name=name, description=tool.description, schema=tool.parameters, call=call, on_demand=on_demand
        )
        for name, tool in zip(names, tools, strict=True)
    }
    agent = Agent(name="many", model="openai-chat:m", tools=list(declared.values()))
    definition = define(agent, "You are an assistant.", "openai-chat:m")
    sent = definition.model_copy(update={"tools": definition.visible_tools, "on_demand": []})
    provider, prompt = OpenAIChat(), UserMessage(role="user", text="Which of my invoices are open?")
    request = Request(model="m", definition=sent, items=provider.encode(prompt), messages=[prompt])
    body = provider.batch_body(request, plain=True)
    asyncio.run(provider.close())
    return len(body) // BYTES_PER_TOKEN


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text().splitlines() if line.strip())


def _schema(written: Any) -> Any:
    """A schema of the data, whose types are Python's, as JSON Schema."""
    if isinstance(written, list):
        return [_schema(each) for each in written]
    if not isinstance(written, dict):
        return written
    schema = {name: _schema(value) for name, value in written.items()}
    if isinstance(kind := schema.get("type"), str):
        schema["type"] = TYPES.get(
            kind, kind if kind in ("object", "array", "integer", "number", "boolean") else "string"
        )
    return schema


def _words(tool: ToolDefinition) -> list[str]:
    return _split(f"{tool.name} {tool.description} {json.dumps(tool.parameters)}")


def _split(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).lower())


if __name__ == "__main__":
    main()
