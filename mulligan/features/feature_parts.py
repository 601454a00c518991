"""`FeatureParts`: of what a feature consists. Each part is imported when it is needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from fastapi import APIRouter

    from mulligan.activities.answers.text_calls import TextCalls
    from mulligan.activities.request_draft import PrepareRequest
    from mulligan.activities.services import Services
    from mulligan.activities.spending import Spending
    from mulligan.client.origins.carry_over import GoesOn
    from mulligan.features.agent_feature import AgentFeature
    from mulligan.features.tool_option import ToolOption
    from mulligan.serve.http_protocol import Protocol
    from mulligan.workflows.feature import Feature

KINDS: Mapping[str, tuple[str, str]] = {
    "agent": ("features", "{}"),
    "option": ("features", "{}Option"),
    "workflow": ("workflows", "{}"),
    "workflows": ("workflows", "WORKFLOWS"),
    "activities": ("activities", "activities"),
    "spending": ("activities", "spending"),
    "request": ("activities", "prepare_request"),
    "text_calls": ("activities", ""),
    "goes_on": ("client", "GOES_ON"),
    "words": ("wire", "WORDS"),
    "commands": ("cli", "COMMANDS"),
    "paths": ("serve", "PROTOCOL"),
    "pages": ("serve", "PAGES"),
}
"""The kinds of parts: the room in which Mulligan's own features have it, and its name there (`{}`: the feature's own in
CamelCase; "": all of the module)."""
_OF_WORKERS = ("features", "workflows", "activities")


class FeatureWords(NamedTuple):
    """What others must know of the activities and workflows of a feature.

    Attributes:
        activities: The types of its activities.
        model_calls: Those of them that call models, or wait for an answer.
        signals: The signals of its own workflows.
        unlisted: The types of its workflows that no list of runs has.
    """

    activities: tuple[str, ...] = ()
    model_calls: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()


class FeaturePages(NamedTuple):
    """What a feature adds to the console.

    Attributes:
        router: The pages.
        link: The path and the label that the navigation of operators has.
        action: What the page of a run that has ended offers; it leads to the page `ACTION-it` of the run.
        below_waiting: What stands below the calls that wait: of (request, runs, session, run), as HTML.
    """

    router: APIRouter | None = None
    link: tuple[str, str] | None = None
    action: str | None = None
    below_waiting: Callable[..., Awaitable[Any]] | None = None


class FeatureParts:
    """The parts of a feature, each as `module:NAME`, imported at its first use.

    `FeatureParts("quiet", agent="quiet:Quiet")` has a declaration alone. A part may also be given itself. Mulligan's own
    features have theirs in a file, or a folder, of the feature's name in each room: `own` says which. Others are None.

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
        words: The types of its activities, and what others must know of them and of its own workflows.
        commands: The commands of `mulligan` that it adds, `async def`.
        paths: What it serves beside the API.
        pages: What it adds to the console.
    """

    agent: type[AgentFeature] | None
    option: type[ToolOption] | None
    workflow: type[Feature] | None
    workflows: tuple[type, ...] | None
    activities: Sequence[Callable[..., Any]] | Callable[[Services], Sequence[Callable[..., Any]]] | None
    spending: Callable[..., Spending] | None
    request: PrepareRequest | None
    text_calls: TextCalls | None
    goes_on: GoesOn | None
    words: FeatureWords | None
    commands: tuple[Callable[..., Any], ...] | None
    paths: Protocol | None
    pages: FeaturePages | None

    def __init__(self, name: str, own: str = "", **places: Any) -> None:
        if unknown := sorted((places.keys() | {*own.split()}) - KINDS.keys()):
            raise TypeError(f"{unknown[0]!r} is no part of a feature; these are: {', '.join(KINDS)}.")
        camel_case = "".join(map(str.title, name.split("_")))
        self.name = name
        self.places = {kind: f":{KINDS[kind][1].format(camel_case)}" for kind in own.split()} | places

    def __repr__(self) -> str:
        return f"FeatureParts({self.name!r})"

    def __getattr__(self, kind: str) -> Any:
        """Import a part. It is not kept: Temporal's sandbox has classes of its own for the parts in workflows."""
        if kind not in KINDS:
            raise AttributeError(kind)
        part = self.places.get(kind)
        if isinstance(part, str):
            path, _, name = part.rpartition(":")
            module = import_module(path or self._own_module(KINDS[kind][0]))
            return getattr(module, name) if name else module
        return part

    @property
    def modules(self) -> list[str]:
        """The modules of what it does in runs and on workers, where doors and commands are perhaps not installed."""
        places = [(KINDS[kind][0], place) for kind, place in self.places.items() if KINDS[kind][0] in _OF_WORKERS]
        named = [(room, place.rpartition(":")[0]) for room, place in places if isinstance(place, str)]
        return [
            *(path or self._own_module(room) for room, path in named),
            *(place.__module__ for _, place in places if isinstance(place, type)),
        ]

    def _own_module(self, room: str) -> str:
        """The module of a part: a file of the feature's name, or of that name in a folder of that name."""
        spec = find_spec(f"mulligan.{room}.{self.name}")
        is_folder = spec is not None and spec.submodule_search_locations
        return f"mulligan.{room}.{self.name}" + (f".{self.name}" if is_folder else "")
