"""What others must know of the workflows that a feature has beside runs."""

from __future__ import annotations

from typing import NamedTuple


class WordsOfWorkflows(NamedTuple):
    """The signals whose content may be large; and the types of workflows that no list of runs has."""

    signals: tuple[str, ...] = ()
    unlisted: tuple[str, ...] = ()
