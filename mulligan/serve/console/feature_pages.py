"""What a feature adds to the console."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter


@dataclass(frozen=True, kw_only=True)
class FeaturePages:
    """The pages of a feature, and how others lead to them.

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
