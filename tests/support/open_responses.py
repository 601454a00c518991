"""Open Responses as it is published: its OpenAPI document and its compliance cases, from a package that has both.

The document is `public/openapi/openapi.json` of github.com/openresponses/openresponses (Apache-2.0), version 2026-04-24, as
llm-comply has it, which has the cases as well (MIT). What the document cannot say is added from the specification's text,
"Extending Open Responses": items and events of who implements it, by their required fields.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from tests.support.own_environment import own_environment

VERSION = "0.5.0"
"""Of llm-comply on PyPI."""
PUBLISHED = "2026-04-24"
OWN = "^mulligan:[a-z_]+$"
OWN_EVENT = "^mulligan:[a-z_]+[.][a-z_]+$"
HEADERS = {"OpenResponses-Version": "latest"}
Json = dict[str, Any]


async def install() -> Path:
    """The folder of the environment with the package; it is made unless it exists."""
    return await own_environment("llm-comply", VERSION, f"llm-comply=={VERSION}")


class OpenResponsesSchema:
    """The schema of what a server sends."""

    def __init__(self, document: Json) -> None:
        assert document["info"]["version"] == PUBLISHED
        self._components = document["components"]
        schemas = self._components["schemas"]
        text, status = {"type": "string"}, {"type": "string"}
        own = {
            "required": ["type", "id", "status"],
            "properties": {"type": {"pattern": OWN}, "id": text, "status": status},
        }
        schemas["ItemField"]["oneOf"].append({"type": "object", **own})
        answers = document["paths"]["/responses"]["post"]["responses"]["200"]["content"]
        named = [each["$ref"].rpartition("/")[2] for each in answers["text/event-stream"]["schema"]["oneOf"]]
        self._events = {schemas[name]["properties"]["type"]["enum"][0]: name for name in named}
        number = {"type": "string", "pattern": OWN_EVENT}, {"type": "integer"}
        properties = dict(zip(("type", "sequence_number"), number, strict=True))
        schemas["OwnEvent"] = {"type": "object", "required": list(properties), "properties": properties}

    @classmethod
    async def read(cls) -> OpenResponsesSchema:
        """The schema from the published document."""
        [path] = (await install()).glob("lib/python*/site-packages/llm_comply/specs/openresponses.json")
        return cls(json.loads(path.read_text()))

    def faults_of_response(self, response: Json) -> list[str]:
        """What a response has that the schema does not allow."""
        return self._faults("ResponseResource", response)

    def faults_of_event(self, event: Json) -> list[str]:
        """What an event of a stream has that the schema does not allow."""
        return self._faults(self._events.get(event["type"], "OwnEvent"), event)

    def _faults(self, name: str, value: Json) -> list[str]:
        schema = {"components": self._components, "$ref": f"#/components/schemas/{name}"}
        return [f"{each.json_path}: {each.message[:200]}" for each in Draft202012Validator(schema).iter_errors(value)]


async def run_cases(url: str, token: str, model: str) -> dict[str, list[str]]:
    """The faults that each compliance case finds in a server. A case that the suite skips has its reason."""
    header = ",".join(f"{name}:{value}" for name, value in HEADERS.items())
    process = await asyncio.create_subprocess_exec(
        str(await install() / "bin/python"), "-m", "llm_comply.cli", "--json",
        "-u", f"{url}/v1", "-k", token, "-m", model, "-H", header,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, told = await process.communicate()
    assert process.returncode in (0, 1), told.decode()[-2_000:]
    results = json.loads(out)["results"]
    return {each["id"]: each.get("errors", []) + each.get("warnings", []) for each in results}
