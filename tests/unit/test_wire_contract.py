"""The names and the absent fields of `mulligan/wire` are in histories, memos and other programs: what is recorded here stays.

`python -m tests.unit.test_wire_contract` adds what is new.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

import mulligan.wire
from mulligan.wire import event_types

RECORDED = Path(__file__).parent / "wire_contract.json"
"""The value of each constant text, and of each field that a JSON may leave out."""


def modules() -> Iterator[tuple[str, Any]]:
    for each in pkgutil.iter_modules(mulligan.wire.__path__):
        yield each.name, importlib.import_module(f"mulligan.wire.{each.name}")


def names() -> dict[str, str]:
    return {
        f"{module}.{name}": value
        for module, contents in modules()
        for name, value in vars(contents).items()
        if name.isupper() and isinstance(value, str)
    }


def fields() -> dict[str, Any]:
    return {
        f"{module}.{kind.__name__}.{name}": to_jsonable_python(field.get_default(call_default_factory=True))
        for module, contents in modules()
        for kind in vars(contents).values()
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__module__ == contents.__name__
        for name, field in kind.model_fields.items()
        if not field.is_required()
    }


@pytest.mark.parametrize("part", ["names", "fields"])
def test_what_is_recorded_means_what_it_meant(part: str) -> None:
    """A history that was written without a field is read with its default: another one would replay to something else."""
    now = {"names": names, "fields": fields}[part]()
    recorded = json.loads(RECORDED.read_text())[part]
    changed = {name: (value, now[name]) for name, value in recorded.items() if name in now and now[name] != value}
    assert changed == {}
    assert now.keys() - recorded.keys() == set(), "new: python -m tests.unit.test_wire_contract"


def test_each_kind_of_event_is_written_with_its_own_name() -> None:
    kinds = [each for each in vars(event_types).values() if isinstance(each, type) and issubclass(each, BaseModel)]
    typed = {each: each.model_fields["type"] for each in kinds if "type" in each.model_fields}
    assert len(typed) > 15
    for kind, field in typed.items():
        assert get_args(field.annotation) == (field.default,), kind


if __name__ == "__main__":
    kept = json.loads(RECORDED.read_text()) if RECORDED.exists() else {"names": {}, "fields": {}}
    RECORDED.write_text(
        json.dumps({"names": {**names(), **kept["names"]}, "fields": {**fields(), **kept["fields"]}}, indent=1) + "\n"
    )
