"""The operator's file with the budgets of tenants (`MULLIGAN_BUDGETS`), which is read again when it has changed."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mulligan.errors import DeclarationError

MAX_FILE_BYTES = 1_000_000
OTHERS = "*"
"""The key of the budget of each tenant that has none of its own."""
FORM = 'over_budget = "wait" or "stop", and under [usd_per_day] lines such as acme = 20.0 or "*" = 5.0'

_log = logging.getLogger(__name__)
_Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Budgets(BaseModel):
    """USD that tenants may spend a day (UTC), and what their runs do when it is spent."""

    model_config = ConfigDict(extra="forbid")

    over_budget: Literal["wait", "stop"] = "wait"
    usd_per_day: dict[str, _Usd] = Field(default_factory=dict)

    def of(self, tenant: str | None) -> float | None:
        """The budget of a tenant; None: it has none. Runs without a tenant have none."""
        return None if tenant is None else self.usd_per_day.get(tenant, self.usd_per_day.get(OTHERS))


class BudgetFile:
    """The file. An empty path: there are no budgets.

    Raises:
        DeclarationError: it cannot be read, or has something else than budgets.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._changed = 0
        self._budgets = Budgets()
        if self._path is not None:
            self._changed, self._budgets = _changed(self._path), _read(self._path)

    def read(self) -> Budgets:
        """The budgets that the file has now; the ones before while it is missing or at fault."""
        if self._path is not None and (changed := _changed(self._path)) != self._changed:
            self._changed = changed
            try:
                self._budgets = _read(self._path)
            except DeclarationError as error:
                _log.warning("%s The budgets before the change apply.", error)
        return self._budgets


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _read(path: Path) -> Budgets:
    context = f"MULLIGAN_BUDGETS names {path}"
    try:
        with path.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise DeclarationError(f"{context}, which has more than {MAX_FILE_BYTES:,} bytes.")
        return Budgets.model_validate(tomllib.loads(data.decode()))
    except OSError as error:
        raise DeclarationError(f"{context}, which cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DeclarationError(f"{context}, which is not TOML: {error}.") from None
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(map(str, fault["loc"]))[:80]
        raise DeclarationError(f"{context}, where {where!r} is invalid: {fault['msg'][:200]}. Write {FORM}.") from None
