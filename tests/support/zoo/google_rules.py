"""The rules of Gemini's `generateContent` for a request.

Fields are those of Google's API (its discovery document, as far as Mulligan sends them); the other rules are those of its
documentation and of the errors that people have reported.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from google.genai.types import Part, Tool

from tests.support.google_api import DATA, signature_of
from tests.support.openai_shapes import Refusal

BODY = {
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
    "safetySettings",
    "cachedContent",
    "labels",
}
CONFIG = {
    *("temperature", "topP", "topK", "maxOutputTokens", "stopSequences", "seed", "candidateCount", "presencePenalty"),
    *(
        "frequencyPenalty",
        "responseMimeType",
        "responseJsonSchema",
        "responseSchema",
        "thinkingConfig",
        "responseLogprobs",
    ),
    *("logprobs", "mediaResolution", "responseModalities"),
}
DECLARATION = {"name", "description", "parameters", "parametersJsonSchema", "response", "responseJsonSchema"}
PART = {field.alias or "" for field in Part.model_fields.values()} | {"futureWork"}
KEYWORDS = {
    *("$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items", "prefixItems"),
    *("minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties", "additionalProperties", "required"),
}
LEGAL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}")
SKIPPED = ("skip_thought_signature_validator", b64encode(b"skip_thought_signature_validator").decode())
"""Google's value for calls without a signature; a field of bytes is base64, which LiteLLM writes."""


def check_generate_request(model: str, body: dict[str, Any]) -> None:
    """Refuse a request that Gemini's API would refuse."""
    check_fields(body, BODY, "")
    config = body.get("generationConfig", {})
    check_fields(config, CONFIG, "generation_config")
    names = check_tools(body)
    check_choice(body, names)
    check_contents(body.get("contents"))
    if not is_older(model):
        check_signatures(body["contents"])
    if "systemInstruction" in body:
        check_parts("user", body["systemInstruction"]["parts"], "system_instruction")
    schema = config.get("responseJsonSchema")
    if schema is not None:
        if config.get("responseMimeType") != "application/json":
            raise Refusal("response_schema is only supported with response mime type application/json")
        check_schema(schema, "generation_config.response_json_schema")
        if names and is_older(model):
            raise Refusal("Function calling with a response mime type: 'application/json' is unsupported")


def is_older(model: str) -> bool:
    """Whether the model is older than Gemini 3."""
    return model.startswith(("gemini-1", "gemini-2"))


def check_fields(value: Mapping[str, Any], known: set[str], param: str) -> None:
    """Refuse unknown fields."""
    for name in value:
        if name not in known:
            told = f"Invalid JSON payload received. Unknown name \"{name}\" at '{param}': Cannot find field."
            raise Refusal(told, param)


def check_tools(body: dict[str, Any]) -> set[str]:
    """Refuse invalid declarations. The names are returned."""
    names: set[str] = set()
    for tool in body.get("tools", []):
        check_fields(tool, {field.alias or "" for field in Tool.model_fields.values()}, "tools")
        for number, declared in enumerate(tool.get("functionDeclarations", [])):
            param = f"tools[0].function_declarations[{number}]"
            check_fields(declared, DECLARATION, param)
            if not LEGAL_NAME.fullmatch(declared["name"]):
                told = "Invalid function name. Must start with a letter or an underscore."
                raise Refusal(f"* GenerateContentRequest.{param}.name: [FIELD_INVALID] {told}", param)
            if declared["name"] in names:
                raise Refusal(f"Duplicate function declaration found: {declared['name']}", param)
            names.add(declared["name"])
            check_schema(declared.get("parametersJsonSchema", {}), f"{param}.parameters_json_schema")
    return names


def check_choice(body: dict[str, Any], names: set[str]) -> None:
    """Refuse a choice of functions that are not declared."""
    calling = body.get("toolConfig", {}).get("functionCallingConfig")
    if calling is None:
        return
    if not names:
        raise Refusal("Function calling config is set without function_declarations.")
    if calling.get("mode") not in ("AUTO", "ANY", "NONE", "VALIDATED"):
        raise Refusal("Invalid value at 'tool_config.function_calling_config.mode'")
    allowed = calling.get("allowedFunctionNames", [])
    if allowed and (calling["mode"] != "ANY" or set(allowed) - names):
        raise Refusal("Invalid allowed_function_names in function_calling_config.")


def check_contents(contents: object) -> None:
    """Refuse contents whose order, calls and results do not match."""
    if not isinstance(contents, list) or not contents:
        raise Refusal("* GenerateContentRequest.contents: contents is not specified")
    open_calls: list[dict[str, Any]] = []
    for number, content in enumerate(contents):
        param = f"contents[{number}]"
        check_fields(content, {"role", "parts"}, param)
        if content.get("role") not in ("user", "model"):
            raise Refusal("Please use a valid role: user, model.", param)
        check_parts(content["role"], content.get("parts"), param)
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        results = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        if content["role"] == "model" and (number == 0 or contents[number - 1]["role"] == "model"):
            told = "Please ensure that function call turn comes immediately after a user turn or after a function response turn."
            raise Refusal(told, param)
        if len(results) != len(open_calls):
            told = "the number of function response parts is equal to the number of function call parts of the function call turn."
            raise Refusal(f"Please ensure that {told}", param)
        for call, result in zip(open_calls, results, strict=True):
            if (call["name"], call.get("id")) != (result["name"], result.get("id")):
                raise Refusal(
                    f"function response {result['name']} does not match the function call {call['name']}", param
                )
        if results and len(results) != len(content["parts"]):
            raise Refusal("Please ensure that function response turn has function response parts only.", param)
        open_calls = calls
    if contents[-1]["role"] != "user":
        raise Refusal("Please ensure that single turn requests end with a user role or function response.")


def check_parts(role: str, parts: object, param: str) -> None:
    """Refuse parts without or with several data, empty text, and what the role cannot have."""
    if not isinstance(parts, list) or not parts:
        raise Refusal(f"* GenerateContentRequest.{param}.parts: contents.parts must not be empty.", param)
    for number, part in enumerate(parts):
        where = f"{param}.parts[{number}]"
        check_fields(part, PART, where)
        data = DATA & part.keys()
        if len(data) != 1:
            raise Refusal(
                f"* GenerateContentRequest.{where}.data: required oneof field 'data' must have one initialized field"
            )
        if "text" in part and not part["text"] and "thoughtSignature" not in part:
            raise Refusal("Unable to submit request because it must have a text parameter.", where)
        if role == "user" and part.keys() & {"functionCall", "thoughtSignature", "thought"}:
            raise Refusal(f"{where}: a user's part has no function call and no thought", where)
        if role == "model" and "functionResponse" in part:
            raise Refusal(f"{where}: a model's part has no function response", where)
        for name in ("functionCall", "functionResponse"):
            if name in part:
                value = part[name]
                payload = "args" if name == "functionCall" else "response"
                more = {"parts"} if name == "functionResponse" else set()  # pictures, of Gemini 3
                check_fields(value, {"id", "name", payload} | more, where)
                if not LEGAL_NAME.fullmatch(value["name"]) or not isinstance(value.get(payload), dict):
                    raise Refusal(f"Invalid value at '{where}.{name}'", where)


def check_signatures(contents: list[dict[str, Any]]) -> None:
    """Refuse changed signatures, and a model's calls of the current turn of which the first has none."""
    asked = [n for n, content in enumerate(contents) if content["role"] == "user" and "text" in content["parts"][0]]
    for number, content in enumerate(contents):
        if content["role"] != "model":
            continue
        for part in content["parts"]:
            signature = part.get("thoughtSignature")
            if signature is not None and signature not in (*SKIPPED, signature_of(part)):
                raise Refusal("Thought signature is not valid.", "contents")
        first = next((part for part in content["parts"] if "functionCall" in part), None)
        if first is not None and "thoughtSignature" not in first and number > asked[-1]:
            name = first["functionCall"]["name"]
            told = f"Function call is missing a thought_signature in functionCall parts. Function call `{name}`"
            raise Refusal(told, "contents")


def check_schema(schema: Any, param: str) -> None:
    """Refuse a schema outside of the part of JSON Schema that the API accepts."""
    if isinstance(schema, bool):
        return
    check_fields(schema, KEYWORDS, param)
    if "$ref" in schema and any(not name.startswith("$") for name in schema):
        raise Refusal(f"{param}: no other properties may be set beside $ref", param)
    for value in schema.get("enum", []):
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise Refusal(f"{param}.enum: only strings and numbers", param)
    named = {**schema.get("properties", {}), **schema.get("$defs", {})}
    inner = [*named.values(), *schema.get("anyOf", []), *schema.get("oneOf", []), *schema.get("prefixItems", [])]
    for each in [*inner, *(schema[name] for name in ("items", "additionalProperties") if name in schema)]:
        check_schema(each, param)
