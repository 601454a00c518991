"""Rules of OpenAI's server beyond the types of fields, shared by both endpoints."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from tests.support.openai_schemas import check_schema
from tests.support.openai_shapes import Refusal

LEGAL = re.compile(r"[a-zA-Z0-9_-]+")
AT_LEAST_ONE = "Expected {} with minimum length 1, but got an empty one instead."
UNPARSABLE = (
    "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library "
    "correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON.)"
)


def check_authorization(header: str | None) -> None:
    """Refuse a request without a key."""
    scheme, _, key = (header or "").partition(" ")
    if scheme != "Bearer" or not key.strip():
        raise Refusal("You didn't provide an API key.", None, "invalid_api_key", 401)


def parse_body(body: bytes) -> dict[str, Any]:
    """Parse the request: valid UTF-8, strict RFC 8259, an object, without lone surrogates even if escaped."""
    try:
        parsed = strict_json(body.decode("utf-8"))
        # an escaped lone surrogate is valid JSON for Python, but no valid text elsewhere
        json.dumps(parsed, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        raise Refusal(UNPARSABLE, None, None) from error
    if not isinstance(parsed, dict):
        raise Refusal(UNPARSABLE, None, None)
    return parsed


def strict_json(text: str) -> Any:
    """Parse JSON without Python's extensions of the standard."""

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse_constant)


def check_model(body: dict[str, Any]) -> None:
    """Refuse a request that names no model."""
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise Refusal("you must provide a model parameter", None, None)


def check_numbers(body: dict[str, Any], ranges: dict[str, tuple[float, float | None]]) -> None:
    """Refuse numbers out of their range; their types were checked before."""
    for name, (low, high) in ranges.items():
        value = body.get(name)
        if value is None:
            continue
        kind = "integer" if isinstance(value, int) else "decimal"
        if value < low:
            told = f"{kind} below minimum value. Expected a value >= {low}, but got {value} instead."
            raise Refusal(f"Invalid '{name}': {told}", name, f"{kind}_below_min_value")
        if high is not None and value > high:
            told = f"{kind} above maximum value. Expected a value <= {high}, but got {value} instead."
            raise Refusal(f"Invalid '{name}': {told}", name, f"{kind}_above_max_value")


def check_labels(body: dict[str, Any]) -> None:
    """Refuse too many metadata entries, and metadata and identifiers that are too long."""
    metadata = body.get("metadata") or {}
    if len(metadata) > 16:
        told = "Invalid 'metadata': too many properties. Expected an object with at most 16 properties."
        raise Refusal(told, "metadata", "object_above_max_properties")
    for key, value in metadata.items():
        check_length(key, 64, "metadata")
        check_length(value, 512, f"metadata.{key}")
    for name in ("safety_identifier", "prompt_cache_key"):
        check_length(body.get(name) or "", 128 if name == "safety_identifier" else 64, name)


IMAGES = {"image/png": b"\x89PNG", "image/jpeg": b"\xff\xd8\xff", "image/gif": b"GIF8", "image/webp": b"RIFF"}
DATA_URL = re.compile(r"data:([a-z/+.-]+);base64,([A-Za-z0-9+/]+={0,2})")


def check_image(url: str, param: str) -> None:
    """Refuse an image that is neither a URL nor the base64 of one of four formats."""
    if url.startswith(("https://", "http://")):
        return
    found = DATA_URL.fullmatch(url)
    if found is None:
        raise Refusal(
            f"Invalid '{param}'. Expected a valid URL, but got a value with an invalid format.", param, "invalid_value"
        )
    head = IMAGES.get(found[1])
    if head is None or not base64.b64decode(found[2]).startswith(head):
        told = "You uploaded an unsupported image. Please make sure your image has of one the following formats:"
        raise Refusal(f"{told} ['png', 'jpeg', 'gif', 'webp'].", param, "invalid_image_format")


def check_file(data: str | None, filename: str | None, param: str) -> None:
    """Refuse the bytes of a file that are no PDF, or have no file name."""
    found = DATA_URL.fullmatch(data or "")
    if found is None or found[1] != "application/pdf" or not base64.b64decode(found[2]).startswith(b"%PDF-"):
        told = f"Invalid file data: '{param}'. Expected a base64-encoded data URL with an application/pdf MIME type"
        raise Refusal(f"{told} (e.g. 'data:application/pdf;base64,aW1nIGJ5dGVzIGhlcmU=').", param, "invalid_value")
    if not filename:
        raise Refusal(f"Missing required parameter: '{param.replace('file_data', 'filename')}'.", param)


def check_text(text: str, longest: int, param: str) -> None:
    """Refuse a name or an id that is empty, too long, or has forbidden characters."""
    if not text:
        raise Refusal(f"Invalid '{param}': empty string. {AT_LEAST_ONE.format('a string')}", param, "empty_string")
    check_length(text, longest, param)
    if not LEGAL.fullmatch(text):
        told = f"Expected a string that matches the pattern '^{LEGAL.pattern}$'."
        raise Refusal(f"Invalid '{param}': string does not match pattern. {told}", param, "invalid_value")


def check_length(text: str, longest: int, param: str) -> None:
    """Refuse a string that is too long."""
    if len(text) > longest:
        told = f"Expected a string with maximum length {longest}, but got a string with length {len(text)} instead."
        raise Refusal(f"Invalid '{param}': string too long. {told}", param, "string_above_max_length")


def check_array(array: Sequence[object], param: str, longest: int | None = None) -> None:
    """Refuse an array that is empty or too long."""
    if not array:
        raise Refusal(f"Invalid '{param}': empty array. {AT_LEAST_ONE.format('an array')}", param, "empty_array")
    if longest is not None and len(array) > longest:
        message = f"Invalid '{param}': array too long. Expected an array with maximum length {longest}."
        raise Refusal(message, param, "array_above_max_length")


def check_arguments(arguments: str, param: str) -> None:
    """Refuse arguments of earlier calls that are not the text of a JSON object."""
    try:
        parsed = strict_json(arguments)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise Refusal(f"Invalid '{param}': expected the text of a JSON object.", param, "invalid_value")


def check_functions(functions: Sequence[tuple[str, dict[str, Any]]]) -> set[str]:
    """Refuse invalid declarations, given as (path, declaration); return the names."""
    names: set[str] = set()
    for param, function in functions:
        name = function["name"]
        check_text(name, 64, f"{param}.name")
        if name in names:
            told = f"Invalid '{param}.name': the tool '{name}' is declared twice."
            raise Refusal(told, f"{param}.name", "invalid_value")
        names.add(name)
        strict, schema, where = function.get("strict") is True, function.get("parameters"), f"{param}.parameters"
        if schema is not None:
            check_schema(schema, f"function '{name}'", where, "invalid_function_parameters", strict=strict)
        elif strict:
            told = f"Invalid schema for function '{name}': strict mode needs one."
            raise Refusal(told, where, "invalid_function_parameters")
    return names


def check_choice(choice: object, chosen: str | None, names: set[str]) -> None:
    """Refuse a tool_choice without a matching tool; `chosen` is the function that it names, if any."""
    if choice == "required" and not names:
        raise Refusal("Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice", None)
    if chosen is not None and chosen not in names:
        raise Refusal(f"Tool choice '{chosen}' not found in 'tools' parameter.", "tool_choice", None)


def check_answer_format(answer: dict[str, Any], param: str) -> None:
    """Refuse an invalid name or schema of a structured answer."""
    check_text(answer["name"], 64, f"{param}.name")
    if "schema" not in answer:
        raise Refusal(f"Missing required parameter: '{param}.schema'.", f"{param}.schema", "missing_required_parameter")
    subject = f"response_format '{answer['name']}'"
    check_schema(answer["schema"], subject, f"{param}.schema", None, strict=answer.get("strict") is True)


def check_says_json(conversation: object, param: str) -> None:
    """Refuse `json_object` if no message mentions JSON, as OpenAI does: the model would write spaces for ever."""
    if "json" not in json.dumps(conversation).lower():
        told = "to use 'response_format' of type 'json_object'"
        raise Refusal(f"'{param}' must contain the word 'json' in some form, {told}.", param, None)
