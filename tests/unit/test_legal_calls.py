"""Making the names, ids and arguments of earlier calls legal for providers."""

from __future__ import annotations

import json

import pytest

from mulligan.activities.models._legal_calls import legal_arguments, legal_id, legal_name
from tests.support.zoo.openai_rules import LEGAL, check_arguments


@pytest.mark.parametrize(
    "raw",
    [
        "{}",
        ' {"a":\n1} ',
        '{"a": "\\u00e9\\ud83d\\ude00"}',
        "",
        " \n",
        "null",
        "[1]",
        '"{}"',
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        '{"a": "\ud800"}',
        '{"a": 1',
        '{"a": "\n"}',
        "\0",
        '{"a": ' * 5_000,
        '{"a": ' + "9" * 5_000 + "}",
    ],
    ids=lambda raw: repr(raw[:30]),
)
def test_legal_arguments_are_json_that_every_provider_accepts(raw: str) -> None:
    legal = legal_arguments(raw)
    check_arguments(legal, "arguments")
    shown = json.loads(legal)
    json.dumps(shown, ensure_ascii=False, allow_nan=False).encode()
    assert legal == raw or shown == {}


def test_arguments_that_are_legal_already_stay_unchanged() -> None:
    for raw in ("{}", ' {"a":\n1} ', '{"a": "\\u00e9\\ud83d\\ude00"}', '{"a": 1, "a": 2}'):
        assert legal_arguments(raw) == raw


@pytest.mark.parametrize("raw", ["", "a", "a b", "é" * 70, "a" * 40, "a" * 41, "a" * 65, "a\n", "\ud800"])
def test_legal_names_and_ids_have_only_allowed_characters_and_lengths(raw: str) -> None:
    assert LEGAL.fullmatch(legal_name(raw))
    assert LEGAL.fullmatch(legal_id(raw))
    assert len(legal_name(raw)) <= 64
    assert len(legal_id(raw)) <= 40
    assert legal_name(legal_name(raw)) == legal_name(raw)
    assert legal_id(legal_id(raw)) == legal_id(raw)


def test_different_ids_stay_different_when_made_legal() -> None:
    raw = ["a b", "a_b", "a.b", "x" * 41, "x" * 42, "", "call"]
    assert len({legal_id(one) for one in raw}) == len(raw)
    assert legal_id("call_1") == "call_1"
    assert legal_name("") == "unknown"
