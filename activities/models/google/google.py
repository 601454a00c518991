"""`google:NAME`: Gemini's API (`generateContent`), at Google AI or Google Cloud, through Google's official package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import JsonValue

from mulligan.activities.models import _refusals
from mulligan.activities.models._hosted_work import LEFT_OUT, hosted_calls
from mulligan.activities.models._json_fields import as_text, finish_reason, to_json, unknown_reason
from mulligan.activities.models._made_files import MadeFiles
from mulligan.activities.models._model_settings import settings_for, tool_choice_of
from mulligan.activities.models._read_response import wrong_types_are_unavailable
from mulligan.activities.models._sdk_client import HttpRequest, SdkProvider
from mulligan.activities.models._strict_schema import schema_in_words
from mulligan.activities.models._told_errors import raise_told
from mulligan.activities.models.fit_content import without_content
from mulligan.activities.models.google._google_assembler import GoogleAssembler, usage_of
from mulligan.activities.models.google._google_client import GoogleClient
from mulligan.activities.models.google._google_contents import encode, google_name, has_signature, merge
from mulligan.activities.models.google._google_parts import (
    candidate_place,
    citations_of,
    hosted_work,
    more_of_part,
    place_without_bytes,
)
from mulligan.activities.models.google._google_schema import google_schema
from mulligan.activities.models.protocol import Reply, Request, Unavailable
from mulligan.content import Media
from mulligan.endpoint import Endpoint
from mulligan.errors import ModelRequestError
from mulligan.values import Message, ToolCall

if TYPE_CHECKING:
    from mulligan.activities.models.available_providers import AvailableProviders

DATA_KEY = "google"
"""The key of this provider in a message's `provider_data` (that of an endpoint has its name as well): the answer's parts, in
their order, with their thought signatures and all that is not interpreted; then what the API says of the whole answer."""
OTHER_NAMES = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "stop": "stopSequences",
}
"""OpenAI's names of settings. All others are the API's own, also in the spelling of the package (`max_output_tokens`)."""
TOP_LEVEL = frozenset({"safetySettings", "cachedContent", "labels", "toolConfig", "serviceTier", "store"})
"""Settings that are not part of `generationConfig`."""
CONTENT = {
    "image": ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"),
    "audio": ("audio/wav", "audio/mpeg", "audio/mp3", "audio/aiff", "audio/aac", "audio/ogg", "audio/flac"),
    "file": ("application/pdf",),
}
"""The media types of content that the API takes."""
MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY", "function": "ANY"}
BLOCKED = frozenset(
    {
        *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR", "ESCALATION"),
        *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "PUP_LIMITED_DISABLED"),
    }
)
"""The finish reasons of an answer that was withheld."""
INVALID_CALL = ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL")
"""The finish reasons of an answer with a call that the API itself rejected; it sends what the model wrote as a message."""
_CUT_OFF = ("MAX_TOKENS", "CONTINUATION")
_KNOWN = frozenset(map(str.lower, ("", "STOP", *_CUT_OFF, *INVALID_CALL, *BLOCKED)))
_CALLED = re.compile(r"(?:default_api\.)?([A-Za-z_][\w.:-]*)\s*[({]")
_OLDER = re.compile(r"(?:.*/)?gemini-[12]\b")
"""Models that require no thought signatures."""


class Google(SdkProvider[GoogleClient]):
    """Gemini's API, at the client's endpoint. The client reads its key at the first request."""

    name = "gcp.gemini"
    background = batch = None

    def __init__(self, client: GoogleClient | None = None) -> None:
        self._client = client or GoogleClient()
        self.data_key = self._client.data_key(DATA_KEY)
        self._without_format: set[tuple[str, str, bool]] = set()
        """The formats, with their models and whether there were tools, that were refused."""

    def encode(self, message: Message) -> list[Any]:
        """Return the message as a content of Gemini's API, as JSON."""
        return list(encode(message, self.data_key))

    def takes(self, part: Media, role: Literal["user", "tool"]) -> bool:  # noqa: ARG002 - both alike
        """Whether a part is an image, a recording or a PDF given by its bytes: not all models fetch URLs."""
        return part.url is None and part.media_type in CONTENT[part.type]

    async def complete(self, request: Request) -> Reply:
        """Request an answer.

        What a model refuses and the conversation can do without is left out, and the model asked again at once: another
        model's thought signatures, and a format that it does not support (the schema is then part of the instructions;
        answers are validated in either case). Images and files that it refuses are described in text.

        Raises:
            ModelRequestError: the endpoint refuses the request, and would refuse it again.
            Unavailable: the request may be retried.
        """
        is_described = False
        signatures = "optional" if _OLDER.match(request.model) else "keep"
        while True:
            try:
                return await self._request(request, signatures)
            except ModelRequestError as refused:
                key = _format_key(request)
                if refused.status != 400:
                    raise
                if (
                    signatures != "replace"
                    and _refusals.GOOGLE_SIGNATURE.search(refused.message)
                    and has_signature(request.items)
                ):
                    signatures = "replace"
                elif key and key not in self._without_format and _refusals.GOOGLE_FORMAT.search(refused.message):
                    self._without_format.add(key)
                elif not is_described and (described := without_content(request, self, refused)) is not None:
                    request, is_described = described, True
                else:
                    raise

    async def _request(self, request: Request, signatures: str) -> Reply:
        http_request = HttpRequest(
            path=await self._path(request.model),
            body=self._body(request),
            items_field="contents",
            items=merge(request.items, signatures=signatures),
            timeout=request.timeout,
            new_assembler=partial(GoogleAssembler, request.on_text, request.written) if request.on_text else None,
            on_call=request.on_call,
        )
        read = partial(_reply, request=request, data_key=self.data_key, key_variable=self._client.key_variable)
        return await self._ask(http_request, request.written, read)

    async def _path(self, model: str) -> str:
        if "/" in model:
            return model
        return f"publishers/google/models/{model}" if await self._client.is_vertex() else f"models/{model}"

    def _body(self, request: Request) -> dict[str, Any]:
        settings = settings_for(request, DATA_KEY)
        choice = tool_choice_of(settings)
        for name in ("tool_choice", "parallel_tool_calls", "stream"):
            settings.pop(name, None)
        named = {OTHER_NAMES.get(name, _camel(name)): _camel_keys(value) for name, value in settings.items()}
        if isinstance(named.get("stopSequences"), str):
            named["stopSequences"] = [named["stopSequences"]]
        body = {name: value for name, value in named.items() if name in TOP_LEVEL}
        config = {name: value for name, value in named.items() if name not in TOP_LEVEL}
        instructions = request.definition.instructions
        if (output := request.definition.output) is not None:
            if _format_key(request) in self._without_format:
                instructions = "\n\n".join(filter(None, (instructions, schema_in_words(output.json_schema))))
            else:
                config["responseMimeType"] = "application/json"
                config["responseJsonSchema"] = google_schema(output.json_schema)
        if config:
            body["generationConfig"] = config
        if instructions.strip():
            body["systemInstruction"] = {"parts": [{"text": instructions}]}
        if request.definition.tools or request.definition.tools_of(DATA_KEY):
            body |= _tools(request, choice, body.get("toolConfig"))
        return body


def create(_worker: AvailableProviders, endpoint: Endpoint | None) -> Google:
    """The provider of an endpoint; None: the default one."""
    return Google(GoogleClient(endpoint))


def _tools(request: Request, choice: Any, config: Any) -> dict[str, Any]:
    """The fields about tools. `config`: the `toolConfig` of the settings."""
    declarations = [
        {
            "name": google_name(tool.name),
            "description": tool.description,
            "parametersJsonSchema": google_schema(tool.parameters),
        }
        for tool in request.definition.tools
    ]
    hosted = [_camel_keys(tool) for tool in request.definition.tools_of(DATA_KEY)]
    body: dict[str, Any] = {"tools": [*([{"functionDeclarations": declarations}] if declarations else []), *hosted]}
    config = dict(config) if isinstance(config, Mapping) else {}
    if isinstance(choice, tuple) and declarations:
        calling: dict[str, Any] = {"mode": MODES[choice[0]]}
        if choice[0] == "function":
            calling["allowedFunctionNames"] = [google_name(choice[1])]
        config["functionCallingConfig"] = calling
    if hosted and declarations:
        # Without it the API refuses tools of its own beside functions, and does not say what they did.
        config.setdefault("includeServerSideToolInvocations", True)
    return {**body, "toolConfig": config} if config else body


def _format_key(request: Request) -> tuple[str, str, bool] | None:
    output = request.definition.output
    return None if output is None else (request.model, to_json(output.json_schema), bool(request.definition.tools))


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other[:1].upper() + other[1:] for other in others)


def _camel_keys(value: Any) -> Any:
    """Return the value with the API's names of fields: the package's names have underscores."""
    if isinstance(value, Mapping):
        return {_camel(str(name)): _camel_keys(inner) for name, inner in value.items()}
    return [_camel_keys(inner) for inner in value] if isinstance(value, list) else value


@wrong_types_are_unavailable()
def _reply(answer: dict[str, Any], request: Request, data_key: str, key_variable: str) -> Reply:
    candidates = answer.get("candidates")
    candidate = candidates[0] if isinstance(candidates, list) and candidates else None
    feedback = answer.get("promptFeedback")
    block_reason = feedback.get("blockReason") if isinstance(feedback, dict) else None
    is_blocked = bool(block_reason)
    raise_told(answer, key_variable, lacks="" if isinstance(candidate, dict) or is_blocked else "candidates")
    candidate = candidate if isinstance(candidate, dict) else {}
    reason = "SAFETY" if is_blocked else candidate.get("finishReason")
    content = candidate.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    parts = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    if not parts and reason in ("OTHER", "MALFORMED_RESPONSE", "FINISH_REASON_UNSPECIFIED"):
        raise Unavailable(f"the endpoint's answer has no content, and ended with {reason}")
    if reason == "MISSING_THOUGHT_SIGNATURE":
        raise ModelRequestError(f"The model's endpoint refused the request ({reason}): a thought signature", status=400)
    read = _read_parts(parts, request, is_cut_off=reason in _CUT_OFF)
    text, calls = "".join(read.texts), read.calls
    if reason in INVALID_CALL:
        calls.append(_invalid_call(as_text(candidate.get("finishMessage")), request))
    layout = read.layout_to_send() + candidate_place(candidate)
    data: dict[str, JsonValue] | None = {data_key: layout} if layout else None
    return Reply(
        text=text,
        calls=calls,
        finish_reason=finish_reason(reason, bool(calls), _CUT_OFF, BLOCKED),
        usage=usage_of(answer.get("usageMetadata")),
        response_id=as_text(answer.get("responseId")),
        model=as_text(answer.get("modelVersion")),
        provider_data=data,
        hosted_calls=hosted_calls(hosted_work(layout)),
        citations=citations_of(candidate, read.texts, read.places),
        files=read.files.parts,
        reason=as_text(block_reason or (reason if reason in BLOCKED else "")),
        own_finish_reason=unknown_reason(reason, _KNOWN),
    )


@dataclass
class _Parts:
    """The texts and the calls of an answer, and the places of all of its parts.

    `places`: which of the texts each part is, by the part's number. `files`: what the model has made.
    """

    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    layout: list[dict[str, Any]] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    files: MadeFiles = field(default_factory=MadeFiles)

    def layout_to_send(self) -> list[Any]:
        """The places, where any of them has something to be sent back: a signature, or what Mulligan does not interpret."""
        if not any(place.keys() - {"type", "text"} or place["type"] == LEFT_OUT for place in self.layout):
            return []
        if len(self.texts) > 1:
            return self.layout
        keeps_text = ("thought", LEFT_OUT)
        return [{n: v for n, v in place.items() if n != "text" or place["type"] in keeps_text} for place in self.layout]


def _read_parts(parts: list[dict[str, Any]], request: Request, *, is_cut_off: bool) -> _Parts:
    read = _Parts()
    for number, part in enumerate(parts):
        signed = {"signature": part["thoughtSignature"]} if isinstance(part.get("thoughtSignature"), str) else {}
        called, text, more = part.get("functionCall"), as_text(part.get("text")), more_of_part(part)
        if part.get("thought"):
            more.pop("inlineData", None)  # a draft of an image
        marked = {**signed, **({"more": more} if more else {})}
        if isinstance(called, dict):
            arguments = called.get("args")
            written = arguments if isinstance(arguments, str) else as_text(arguments or {})
            # A call at which the answer was cut off is an object all the same: without its end it is not executed.
            written = written[:-1] if is_cut_off and number == len(parts) - 1 else written
            name = _own_name(as_text(called.get("name")), request)
            read.calls.append(ToolCall(id=as_text(called.get("id")), name=name, arguments=written))
            read.layout.append({"type": "call", **marked})
        elif part.get("thought"):
            if marked:
                read.layout.append({"type": "thought", "text": text, **marked})
        elif more and "text" not in part:
            read.layout.append(place_without_bytes(part, read.files))
        elif text or signed:
            read.places[number] = len(read.texts)
            read.texts.append(text)
            read.layout.append({"type": "text", "text": text, **marked})
    return read


def _own_name(name: str, request: Request) -> str:
    """The tool's own name for a name that `google_name` changed."""
    names = {tool.name for tool in request.definition.tools}
    if name in names:
        return name
    return next((own for own in names if google_name(own) == name), name)


def _invalid_call(message: str, request: Request) -> ToolCall:
    """A call that the API rejected, with what the model wrote: so it gets feedback on it like on any other invalid call."""
    written = message.partition(":")[2].strip() or message
    called = _CALLED.search(written.removeprefix("print("))
    return ToolCall(id="", name=_own_name(called[1], request) if called else "", arguments=written or "(unknown)")
