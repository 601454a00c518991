"""What every provider implements. It is public, as `mulligan.providers`: fields may be added if they have a default."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import JsonValue

from mulligan.content import Media, Part
from mulligan.errors import ModelRequestError, truncated
from mulligan.values import Citation, HostedCall, Message, ToolCall, Usage
from mulligan.wire.agent_facts import Definition, ToolDefinition

OnCall = Callable[[int, str, str, str], None]
"""A function that takes what the model writes of a call: the call's number in the answer, from 0, its id ("": there is none
yet), the name of its tool, and the next piece of its arguments, which may be empty."""
MistakeKind = Literal["unknown_tool", "invalid_arguments", "invalid_json"]
"""What is wrong with a call that an endpoint refused."""
FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "refusal"]
"""Why an answer ended."""


@dataclass
class Written:
    """The part of an answer that has arrived: if the rest never does, its cost in a tenant's budget is estimated."""

    size: int = 0
    """Bytes of the text, the thoughts and the calls."""
    usage: Usage = field(default_factory=Usage)
    """The tokens that the endpoint has counted so far; 0 where it has not."""

    def add(self, piece: str) -> None:
        """Add what arrives.

        Args:
            piece: A piece of text, of a thought or of a call.
        """
        self.size += len(piece.encode(errors="replace"))


@dataclass(frozen=True)
class ToolsOnDemand:
    """The tools that the model finds by calling `find_tools`, for a provider whose API can defer tools."""

    tools: Sequence[ToolDefinition]
    """All of them, in an order that stays."""
    finds: Mapping[str, Sequence[str]]
    """The names of the tools that a call has found, by the call's id. The conversation has these calls."""


@dataclass(frozen=True)
class Request:
    """One model call."""

    model: str
    """The model's name without its provider."""
    definition: Definition
    """The instructions, the tools and the output format."""
    items: Sequence[Any]
    """The conversation's messages as this provider's `encode` returned them, in order."""
    messages: Sequence[Message]
    """The same messages, unencoded."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The agent's `model_settings`."""
    parallel_tool_calls: bool = True
    """Whether the model may make several calls in an answer."""
    call_as_text: Callable[[str, str], str] | None = None
    """Writes a call (its name, and its arguments as JSON) as text, where calls are also read from the answer's text: then a
    server without tools can be used. None: they are not read from it."""
    timeout: float = 300.0
    """Seconds for the whole answer."""
    prompt_cache_key: str = ""
    """The same for all requests of a conversation, for a provider's cache. "": the request is of none."""
    safety_identifier: str = ""
    """Names the person for whom the run works by a digest; "": nobody is named."""
    summarized_answers: int = 0
    """How many of the model's answers a summary has replaced: they came before these messages."""
    on_text: Callable[[str], None] | None = None
    """Called with each piece of the answer's text as the model writes it. None: the answer need not be streamed."""
    on_call: OnCall | None = None
    """Called, where `on_text` is set, with each piece of a call, as the model writes it."""
    written: Written = field(default_factory=Written)
    """A provider that streams adds what arrives."""
    unseen: ToolsOnDemand | None = None
    """Where tools are found on demand: `definition` has those that were found, after the others, so that a provider may
    ignore this. A provider whose API can defer tools sends all of them, deferred: then a find changes nothing before it."""
    adapted: Sequence[str] = ()
    """The words of the conversation's newest answer of this model: `Reply.adapted`."""
    counted: tuple[int, int] | None = None
    """How many of the first messages a provider has counted, and their tokens, with the instructions and tools."""


@dataclass(frozen=True)
class Mistake:
    """What an endpoint says is wrong with its own answer, which it has refused: the model gets it as feedback."""

    kind: MistakeKind
    """What it is about."""
    says: str
    """The endpoint's words."""


@dataclass(frozen=True)
class Reply:
    """A model's answer. Its calls are exactly as the model wrote them: any name, any text as arguments, any id."""

    text: str
    """The answer's text, or its refusal; "" if there is none."""
    calls: Sequence[ToolCall]
    """The tool calls, in their order. An id that the model did not write is ""."""
    finish_reason: FinishReason
    """`stop`, `tool_calls` (whenever there are calls, unless the answer was cut off), `length`, `content_filter` or
    `refusal`."""
    usage: Usage
    """The tokens: 0 where the endpoint does not count them, never negative. Cached tokens are part of the input's."""
    response_id: str = ""
    """The provider's id of the answer, for the span."""
    model: str = ""
    """The name of the model that answered, by the provider."""
    provider_data: dict[str, JsonValue] | None = None
    """JSON that must be sent back to this provider with the message."""
    hosted_calls: Sequence[HostedCall] = ()
    """The calls that the provider carried out itself."""
    citations: Sequence[Citation] = ()
    """The sources that the answer names, with their places in `text`."""
    files: Sequence[Part] = ()
    """The images and files that the model has made, with their bytes, and sentences on what of them cannot be used."""
    last_usage: Usage | None = None
    """The tokens of the last request, where the answer took several; None: they are `usage`."""
    reason: str = ""
    """Why the provider refused or withheld the answer, in its own word: `cyber`, `SAFETY`. "" if it does not say."""
    own_finish_reason: str = ""
    """The endpoint's own word for why the answer ended, where it is none that the provider knows; otherwise ""."""
    ids_key: str = ""
    """The key in `provider_data` of an endpoint that gets back the ids of calls as it has given them; "": of one that takes
    the ids that they have here."""
    mistake: Mistake | None = None
    """Why the endpoint has refused the answer: none of its calls is run. None: it has not."""
    adapted: Sequence[str] = ()
    """Words for what the model's requests must be like, as refusals have said: `short_ids`, `image_as_text`. The next
    request of the conversation has them."""


class Unavailable(Exception):
    """The endpoint cannot be reached, limits us, or sent an invalid answer: the request may be retried.

    Args:
        status: The HTTP status, where there was a response.
        retry_after: Seconds that the endpoint asks to wait.
    """

    def __init__(self, message: str, *, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(truncated(message))
        self.status = status
        self.retry_after = retry_after


@dataclass(frozen=True)
class CreatedResponse:
    """A background response, just created."""

    response: dict[str, Any]
    """As JSON, with its `id` and `status`."""
    sequence: int | None = None
    """The number of the event of its stream that created it; None: it cannot be streamed."""


class AnswersInBackground(Protocol):
    """The part of a provider that stores an answer until it is deleted (the feature `Background`).

    A response is JSON with `id` and `status`: `queued` or `in_progress`, or another one once it has ended. Each method
    raises ModelRequestError (404 if there is no such response) and Unavailable as `Provider.complete`.
    """

    async def start_in_background(
        self, request: Request, *, key: str, metadata: Mapping[str, str], streamed: bool = False
    ) -> CreatedResponse:
        """Create a response.

        Args:
            request: What to ask.
            key: Of the request: a second one with it is answered with the first one's response, where that is possible.
            metadata: Added to the response's metadata.
            streamed: Whether its text shall be readable while the model writes it.
        """
        ...

    def background_events(
        self, response_id: str, after: int, timeout: float
    ) -> AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]:
        """Open the stream of a response's events, which have numbers (`sequence_number`).

        Args:
            response_id: The response's id.
            after: The number of the event after which the stream begins.
            timeout: Seconds for each read.
        """
        ...

    async def background_response(
        self, response_id: str, method: Literal["get", "delete"], timeout: float
    ) -> dict[str, Any]:
        """Read or delete a response.

        Args:
            response_id: Its id.
            method: `get` or `delete`.
            timeout: Seconds.
        """
        ...

    async def cancel_background_response(self, response_id: str, timeout: float) -> dict[str, Any]:
        """Cancel a response, and return it.

        Args:
            response_id: Its id.
            timeout: Seconds.
        """
        ...

    def reply_of(self, response: dict[str, Any]) -> Reply:
        """Return the answer.

        Args:
            response: A response that has ended.
        """
        ...


class ProviderBatches(Protocol):
    """The batches of an endpoint, and their files of lines of JSON. Its methods raise as those of `AnswersInBackground`."""

    async def upload(self, file: Path, name: str) -> str:
        """Upload the requests of a batch, and return the file's id.

        Args:
            file: The requests, one a line.
            name: The file's name at the provider.
        """
        ...

    async def create(self, input_file: str, path: str, metadata: dict[str, str]) -> dict[str, Any]:
        """Create a batch, and return its state: `id`, `status`, `output_file_id` …

        Args:
            input_file: The id of the file with its requests.
            path: `batch_path`.
            metadata: Of the batch.
        """
        ...

    async def find(self, key: str, value: str, since: float) -> dict[str, Any] | None:
        """Return the state of a batch; None if there is none.

        Args:
            key: A key of its metadata.
            value: The value of that key.
            since: Seconds since the epoch: older batches need not be found.
        """
        ...

    async def read(self, batch_id: str) -> dict[str, Any]:
        """Return the state of a batch.

        Args:
            batch_id: Its id.
        """
        ...

    async def delete_file(self, file: str) -> None:
        """Delete a file.

        Args:
            file: Its id.
        """
        ...

    def lines(self, file: str) -> AsyncIterator[bytes]:
        """Iterate over the lines of a file as they arrive, each with the `custom_id` of a request.

        Args:
            file: Its id.
        """
        ...

    def response_in(self, line: bytes) -> dict[str, Any]:
        """Return the response in a line, or raise the error that it has.

        Args:
            line: A line of a file of answers or errors.
        """
        ...

    def error_of(self, status: int, message: str) -> ModelRequestError | Unavailable:
        """Return the error of a request.

        Args:
            status: The HTTP status of its answer.
            message: What the answer says.
        """
        ...


class AnswersInBatches(Protocol):
    """The part of a provider that answers requests in batches (the feature `Batch`)."""

    batch_path: str
    """The path that the requests of a batch are for: `/v1/responses`."""

    def batch_body(self, request: Request, *, plain: bool) -> bytes:
        """Return a request as JSON.

        Args:
            request: What to ask.
            plain: Whether to leave out what a model may refuse.
        """
        ...

    def may_take_plain(self, request: Request, error: ModelRequestError | Unavailable) -> bool:
        """Whether a request may be sent again in its plain form.

        Args:
            request: What was asked.
            error: Why it was refused.
        """
        ...

    @property
    def batches(self) -> ProviderBatches:
        """The batches of the endpoint."""
        ...

    def reply_of(self, response: dict[str, Any]) -> Reply:
        """Return the answer.

        Args:
            response: A response.
        """
        ...


class Provider(Protocol):
    """A provider of models.

    Two parts are optional: an attribute that is None, or missing, says that the provider cannot do that.
    """

    name: str
    """For `gen_ai.provider.name`."""

    @property
    def background(self) -> AnswersInBackground | None:
        """The part that stores answers at the provider. Its plugin says so, too: `in_background`."""
        return None

    @property
    def batch(self) -> AnswersInBatches | None:
        """The part that answers in batches. Its plugin says so, too: `in_batches`."""
        return None

    def encode(self, message: Message) -> list[Any]:
        """Return the message as the provider's own items, best as JSON texts.

        Images, files and audio are in its `content` only where the provider `TakesContent`; elsewhere their descriptions are
        part of its `text`.

        A pure function: a conversation's beginning is the same bytes in each request, so that the provider's cache works.
        Items are kept in memory and used in every later request; `complete` must not change them.

        Args:
            message: A message of the user, the assistant or a tool. An assistant's may come from another provider: what is
                in its `provider_data` under keys of others is left out. Names, ids and arguments of calls may be anything.
        """
        ...

    async def complete(self, request: Request) -> Reply:
        """Request an answer. It does not retry: the run does, after a worker's death too. It may be cancelled.

        Args:
            request: What to ask. Requests of many runs may be open at the same time.

        Raises:
            ModelRequestError: the provider refuses the request, and would refuse it again (400, 401, 403, 404, 422).
            Unavailable: the request may be retried (408, 409, 429, 5xx, no connection, an invalid answer).
        """
        ...

    async def close(self) -> None:
        """Close the connections. It may be called twice, and before the first request."""
        ...


@runtime_checkable
class TakesContent(Protocol):
    """A provider that also takes images, files or audio. `encode` gets those that it takes, with a `url` or with `data`."""

    def takes(self, part: Media, role: Literal["user", "tool"]) -> bool:
        """Whether `encode` can write a part. Others are described in text.

        Args:
            part: The part.
            role: `user` if it is part of a user's message, `tool` if of a tool's result.
        """
        ...


@runtime_checkable
class ListsModels(Protocol):
    """A provider that can also list its models. `mulligan doctor` asks it; others are not asked."""

    async def model_names(self) -> list[str] | None:
        """Request the names of the models that the endpoint offers, for `mulligan doctor`. None: it has no list of them.

        Raises:
            ModelRequestError: the provider refuses the request, for example because of the key.
            Unavailable: the endpoint cannot be reached, or its response cannot be used.
        """
        ...


@runtime_checkable
class MayDropTools(Protocol):
    """A provider whose endpoint may leave out the tools of a request without a word. `mulligan doctor` asks it."""

    async def drops_tools(self) -> bool:
        """Whether the endpoint says that it does."""
        ...
