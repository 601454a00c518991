"""Run examples of a framework by its own runner, and adopted by Mulligan: `FRAMEWORK`, in an environment that has it.

It prints a line of JSON for each example: {`name`, `theirs`, `ours`}, each with {`requests`, `output`}. `TEMPORAL_ADDRESS`
names a server.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import re
import sys
import types
import uuid
import warnings
from typing import Any

from pydantic_core import to_jsonable_python
from temporalio.client import WorkflowFailureError

from mulligan import adopt, connect
from mulligan.observe.telemetry import Telemetry
from mulligan.worker.loading import load
from mulligan.worker.wiring import running_worker
from tests.support.adopting.adopted_example import Example
from tests.support.openai_server import OpenAIServer, Recorded

MODEL = "gpt-test"
WRAPPERS = ("response", "value", "result")
REFUSED = "refused by "


def request(recorded: Recorded) -> dict[str, Any]:
    """What a request says, without what the two ways of running spell differently."""
    sent = recorded.json
    tools = [_tool(each) for each in sent.get("tools", [])]
    system = [each for each in recorded.conversation if each.get("role") in ("system", "developer")]
    instructions = [*(_text(each["content"]) for each in system), sent.get("instructions")]
    return {
        "instructions": "\n\n".join(filter(None, instructions)),
        "items": [_item(each) for each in recorded.conversation if each not in system],
        "tools": sorted(tools, key=json.dumps),
        "output": _unwrapped(_schema(sent.get("text", {}).get("format", {}).get("schema"))),
        "settings": {name: sent[name] for name in ("temperature", "top_p", "max_output_tokens") if name in sent},
    }


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool["type"] != "function":
        return {name: value for name, value in tool.items() if value is not None}
    if tool["name"].lower().startswith("transfer_to_"):
        return {"name": tool["name"].lower()}
    if tool["name"].startswith(("final_result", "return_")):  # an output: its description is the framework's
        takes = _schema(tool["parameters"])
        takes.pop("description", None)
        return {"name": tool["name"], "takes": takes}
    strict = bool(tool.get("strict"))
    return {
        "name": tool["name"],
        "description": tool["description"],
        "strict": strict,
        "takes": _schema(tool["parameters"]),
    }


def _unwrapped(schema: Any) -> Any:
    """A schema without the object in which a list, or for openai-agents a dataclass, is."""
    properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
    return properties[name] if len(properties) == 1 and (name := next(iter(properties))) in WRAPPERS else schema


def _schema(schema: Any, root: Any = None) -> Any:
    """A schema without what says nothing of the values: titles, defaults (strict mode ignores them), the order of `required`.

    Definitions stand where they are used.
    """
    root = schema if root is None else root
    if isinstance(schema, list):
        return [_schema(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(reference := schema.get("$ref"), str):
        schema = {**root["$defs"][reference.rpartition("/")[2]], **schema}
    left_out = ("default", "$schema", "$ref", "$defs")
    plain = {name: _schema(each, root) for name, each in schema.items() if name not in left_out}
    if isinstance(plain.get("title"), str):
        del plain["title"]
    if isinstance(plain.get("required"), list):
        plain["required"] = sorted(plain["required"])
    return {name: each for name, each in plain.items() if each not in ({}, [], False)}


def _item(item: dict[str, Any]) -> dict[str, Any]:
    if item.get("type") == "function_call":
        return {
            "calls": item["name"].lower(),
            "arguments": json.loads(item["arguments"] or "{}"),
            "id": item["call_id"],
        }
    if item.get("type") == "function_call_output":
        return {"result": _value(_text(item["output"])), "id": item["call_id"]}
    return {item["role"]: _text(item["content"])}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(each.get("text", "") for each in content)


def _value(text: str) -> Any:
    """A result: theirs may be the text of a Python value where ours is its JSON. The words of a handoff do not count."""
    if text.startswith(("The conversation was handed over", '{"assistant":')):
        return "handed over"
    if refused := re.match(r"(?s)The validator `\w+` does not accept the answer\.\s*(.*)", text):
        text = refused[1]
    text = text.removesuffix("\n\nFix the errors and try again.").strip()
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value["error"] if isinstance(value, dict) and [*value] == ["error"] else value


async def _ours(example: Example, client: Any, telemetry: Telemetry) -> Any:
    name, queue = f"adopted_{uuid.uuid4().hex[:8]}", f"adopt-{uuid.uuid4().hex[:8]}"
    module: Any = types.ModuleType(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        module.agent = adopt(example.agent, lambda ctx: example.context, model=f"openai:{MODEL}")
    sys.modules[name] = module
    async with running_worker(client, load([name]), telemetry, queue):
        handle = await client.start_workflow(
            "AgentWorkflow", {"agent": module.agent.name, "prompt": example.prompt}, id=name, task_queue=queue
        )
        if example.denies:
            while not (waiting := await handle.query("pending")):
                await asyncio.sleep(0.05)
            for each in waiting:
                await handle.execute_update("decide", {"call_id": each["call_id"], "decision": "deny"})
        try:
            result: Any = await handle.result()
        except WorkflowFailureError:
            if example.ends == "failed":
                return example.ends
            raise
    if example.ends == "refused":
        return f"{REFUSED}{result['reason'].split('`')[1]}" if result["status"] == "refused" else result
    return result["output"] if result["status"] == example.ends else result


async def main(framework: str) -> None:
    """Run all examples of a framework."""
    async with OpenAIServer() as server:
        os.environ |= {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "test", "OTEL_SDK_DISABLED": "true"}
        module = importlib.import_module(f"tests.support.adopting.adopted_{framework}")
        client, telemetry = await connect(os.environ["TEMPORAL_ADDRESS"]), Telemetry()
        for example in module.EXAMPLES:
            told: dict[str, Any] = {"name": example.name}
            server.script(MODEL, example.turns)
            for who in ("theirs", "ours"):
                begin = len(server.requests)
                module.fresh_clients()
                runs = module.run(example, MODEL) if who == "theirs" else _ours(example, client, telemetry)
                try:
                    output = to_jsonable_python(await runs)
                except Exception as error:  # a line for each example, whatever happens in one
                    output = f"{type(error).__name__}: {error}"
                received = server.requests[begin:]
                told[who] = {"output": output, "requests": [request(each) for each in received]}
                told[who]["refusals"] = [str(each.refusal) for each in received if each.refusal]
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
