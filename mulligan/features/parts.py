"""`Parts`: of what a feature consists. Each part is imported when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from mulligan.activities.answers.text_calls import TextCalls
    from mulligan.activities.request_draft import PrepareRequest
    from mulligan.activities.services import Services
    from mulligan.activities.spending import Spending
    from mulligan.client.going_on import GoesOn
    from mulligan.features.agent_feature import AgentFeature
    from mulligan.features.tool_option import ToolOption
    from mulligan.serve.console.feature_pages import FeaturePages
    from mulligan.serve.http_protocol import Protocol
    from mulligan.trace_view.history_spans import AddSpans
    from mulligan.wire.checked_result import TypesOfActivity
    from mulligan.wire.words_of_workflows import WordsOfWorkflows
    from mulligan.workflows.feature import Feature

T = TypeVar("T")


class Part(Generic[T]):
    """A kind of part. `room`, `of`: where Mulligan's own features have it, and its name there; "": all of the module."""

    def __init__(self, room: str, of: str) -> None:
        self.room, self.of = room, of

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, parts: None, owner: type) -> Part[T]: ...
    @overload
    def __get__(self, parts: Parts, owner: type) -> T | None: ...
    def __get__(self, parts: Parts | None, owner: type) -> Part[T] | T | None:
        return self if parts is None else parts.load(self)


class Parts:
    """The parts of a feature, each as `module:NAME`, imported at its first use: `Parts("quiet", agent="quiet:Quiet")`.

    A part may also be given itself. Mulligan's own features have theirs in a file, or a folder, of the feature's name in
    each room: `words` says which.

    Attributes:
        agent: How agents are declared with it.
        option: How tools are.
        workflow: What it does in a run.
        workflows: The workflows that it has beside runs, which each worker serves.
        activities: Its activities, `async def`: a tuple, or a function of the worker's services that returns them.
        spending: What limits the cost of model calls, of a file, prices and a task queue.
        request: Changes what a model is sent, by what `Feature.answer` has put into `ModelCall.features`.
        text_calls: The calls in the text of answers.
        goes_on: What it has to say before a run goes on from another one.
        events: Its activities by their types, as histories have them.
        model_calls: Those among them that call models, or wait for an answer.
        own_words: The signals and the types of its own workflows.
        spans: How its spans are read from histories.
        commands: The commands of `mulligan` that it adds.
        paths: What it serves beside the API.
        pages: What it adds to the console.
    """

    agent: Part[type[AgentFeature]] = Part("features", "{}")
    option: Part[type[ToolOption]] = Part("features", "{}Option")
    workflow: Part[type[Feature]] = Part("workflows", "{}")
    workflows: Part[tuple[type, ...]] = Part("workflows", "WORKFLOWS")
    activities: Part[Sequence[Callable[..., Any]] | Callable[[Services], Sequence[Callable[..., Any]]]] = Part(
        "activities", "activities"
    )
    spending: Part[Callable[..., Spending]] = Part("activities", "spending")
    request: Part[PrepareRequest] = Part("activities", "prepare_request")
    text_calls: Part[TextCalls] = Part("activities", "")
    goes_on: Part[GoesOn] = Part("client", "GOES_ON")
    events: Part[Mapping[str, TypesOfActivity]] = Part("wire", "ACTIVITIES")
    model_calls: Part[tuple[str, ...]] = Part("wire", "MODEL_CALLS")
    own_words: Part[WordsOfWorkflows] = Part("wire", "WORDS")
    spans: Part[AddSpans] = Part("trace_view", "ADD_SPANS")
    commands: Part[tuple[Callable[..., Any], ...]] = Part("cli", "COMMANDS")
    paths: Part[Protocol] = Part("serve", "PROTOCOL")
    pages: Part[FeaturePages] = Part("serve", "PAGES")

    def __init__(self, name: str, words: str = "", **places: Any) -> None:
        own = {word: KINDS[word].of.format("".join(each.title() for each in name.split("_"))) for word in words.split()}
        if unknown := sorted(places.keys() - KINDS.keys()):
            raise TypeError(f"{unknown[0]!r} is no part of a feature; these are: {', '.join(KINDS)}.")
        self.name, self.places = name, own | places

    @property
    def modules(self) -> list[str]:
        """The modules of what it does in runs and on workers, where doors and commands are not installed perhaps."""
        places = [place for kind, place in self.places.items() if KINDS[kind].room in _OF_WORKERS]
        return [
            each.rpartition(":")[0] if isinstance(each, str) else getattr(each, "__module__", "") for each in places
        ]

    def __repr__(self) -> str:
        return f"Parts({self.name!r})"

    def load(self, part: Part[T]) -> T | None:
        """The part of a kind; None: there is none."""
        place = self.places.get(part.name)
        if not isinstance(place, str):
            return place
        path, _, name = place.rpartition(":")
        module = import_module(path or _own_module(part.room, self.name))
        found: T = getattr(module, name) if name else module
        return found


_OF_WORKERS = ("features", "workflows", "activities")
KINDS: Mapping[str, Part[Any]] = {name: part for name, part in vars(Parts).items() if isinstance(part, Part)}
"""The kinds of parts, in the order in which the page lists them."""


@cache
def _own_module(room: str, name: str) -> str:
    """The module of a part: a file of the feature's name, or of that name in a folder of that name."""
    module = f"mulligan.{room}.{name}"
    spec = find_spec(module)
    return f"{module}.{name}" if spec is not None and spec.submodule_search_locations else module
