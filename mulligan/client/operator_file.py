"""A TOML file of the operator's that a setting names, and that is read again when it has changed."""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from mulligan.errors import DeclarationError

MAX_FILE_BYTES = 1_000_000
M = TypeVar("M", bound=BaseModel)

_log = logging.getLogger(__name__)


class OperatorFile(Generic[M]):
    """The file. An empty path: there is none, and all has its default."""

    def __init__(self, setting: str, path: str, model: type[M], form: str) -> None:
        """Read the file.

        Args:
            setting: The environment variable that names it.
            path: Its path, or "".
            model: What it may have. All fields have defaults.
            form: What to write into it, for whoever has made a mistake there.

        Raises:
            DeclarationError: it cannot be read, or has something else.
        """
        self._setting, self._model, self._form = setting, model, form
        self._path = Path(path) if path else None
        self._changed, self._content = 0, model()
        if self._path is not None:
            self._changed, self._content = _changed(self._path), self._parse(self._path)

    def read(self) -> M:
        """What the file has now; what it had before while it is missing or at fault."""
        if self._path is not None and (changed := _changed(self._path)) != self._changed:
            self._changed = changed
            try:
                self._content = self._parse(self._path)
            except DeclarationError as error:
                _log.warning("%s What it had before the change applies.", error)
        return self._content

    def _parse(self, path: Path) -> M:
        context = f"{self._setting} names {path}"
        try:
            with path.open("rb") as opened:
                data = opened.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                raise DeclarationError(f"{context}, which has more than {MAX_FILE_BYTES:,} bytes.")
            return self._model.model_validate(tomllib.loads(data.decode()))
        except OSError as error:
            raise DeclarationError(f"{context}, which cannot be read: {error.strerror}.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DeclarationError(f"{context}, which is not TOML: {error}.") from None
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, fault["loc"]))[:80]
            raise DeclarationError(
                f"{context}, where {where!r} is invalid: {fault['msg'][:200]}. Write {self._form}."
            ) from None


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
