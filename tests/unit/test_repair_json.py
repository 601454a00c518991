import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mulligan.activities.answers.repair_json import NotJson, RepairedJson, parse_json, repair_json

WRITTEN = {"path": "src/a b.py", "n": [1, -2.5, 1e3], "on": True, "off": False, "none": None, "in": {"x": 'it\'s "ö"'}}

MENDED = [
    ('```json\n{"a": 1}\n```', {"a": 1}, "code_fence"),
    ('Sure, here:\n```\n{"a": 1}\n```\nTell me {more}.', {"a": 1}, "code_fence"),
    ('```{"a": "b``` c"}```', {"a": "b``` c"}, "code_fence"),
    ('```json\n{"a": "x"}', {"a": "x"}, "code_fence"),
    ('{"a": "x"}\n```', {"a": "x"}, "code_fence"),
    ("{'a': 'x'}", {"a": "x"}, "single_quotes"),
    ("""{'a': 'say "it\\'s"'}""", {"a": 'say "it\'s"'}, "single_quotes"),
    ('{"a": [1, 2,], }', {"a": [1, 2]}, "trailing_commas"),
    ('{"a": True, "b": None, "c": [False]}', {"a": True, "b": None, "c": [False]}, "python_literals"),
    ("{'a': True, }", {"a": True}, "python_literals+single_quotes+trailing_commas"),
    ('{a: 1, $b_c: "x", 7: 2}', {"a": 1, "$b_c": "x", "7": 2}, "unquoted_keys"),
    ('{"a": 1, // one\n "b": /* two */ 2 # three\n}', {"a": 1, "b": 2}, "comments"),
    ('{"a": 1}}', {"a": 1}, "surplus_closers"),
    ('{"a": 1 "b": [{} {}]}', {"a": 1, "b": [{}, {}]}, "missing_commas"),
    (r'"{\"a\": 1}"', {"a": 1}, "double_encoded"),
    ("\"{'a': 1}\"", {"a": 1}, "double_encoded+single_quotes"),
    (r"{\"a\": \"x\"}", {"a": "x"}, "double_encoded"),
    ('{"a": "x\ny\tz"}', {"a": "x\ny\tz"}, "control_characters"),
    (r'{"a": "\d+\'s"}', {"a": r"\d+'s"}, "invalid_escapes"),
    ('\ufeff{"a":\xa01}', {"a": 1}, "whitespace"),
]

LACKING_BRACE = [
    ('{"a": "x // y # z"', {"a": "x // y # z"}, "missing_closers"),
    ('{"a": [1, 2]', {"a": [1, 2]}, "missing_closers"),
    ('{"a": {"b": 1}\n', {"a": {"b": 1}}, "missing_closers"),
    ("{'a': [1, 2,]", {"a": [1, 2]}, "missing_closers+single_quotes+trailing_commas"),
    ('```json\n{"a": ["x"]\n```\nSo.', {"a": ["x"]}, "code_fence+missing_closers"),
    (r'"{\"a\": \"x\""', {"a": "x"}, "double_encoded+missing_closers"),
    (r"{\"a\": \"x\"", {"a": "x"}, "double_encoded+missing_closers"),
]
"""Texts with a value for the one name `a`, and without their last brace."""

CUT_OFF = [
    ('{"path": "a.t', "in the middle of a string"),
    ("{'path': 'a.t", "in the middle of a string"),
    ('{"path": "a\\', "in the middle of a string"),
    ('{"path": "a\\"', "in the middle of a string"),
    ('{"path": "a}', "in the middle of a string"),
    ('"abc', "in the middle of a string"),
    ('{"n": 12', "in or right after a number"),
    ('{"n": 12 \n', "in or right after a number"),
    ('{"n": [1, -', "in or right after a number"),
    ('{"n": 1.', "in or right after a number"),
    ('{"a": tr', "in the middle of a literal"),
    ('{"a": N', "in the middle of a literal"),
    ('{"a": 1, "b', "in the middle of a name"),
    ('{"a": 1, b', "in the middle of a name"),
    ('{"a": 1, "b"', "right after a name"),
    ('{"a":', "just before a value"),
    ('{"a": "x", "b": ', "just before a value"),
    ('{"a": [', "right after an opening '['"),
    ("{", "right after an opening '{'"),
    ('{"a": "x" // and', "in a comment"),
    ('{"a": "x" /* and', "in a comment"),
    ('{"a": "x" /* and */', "in a comment"),
    ('{"a": "x",', "right after a ','"),
    ('{"a": [1, 2], ', "right after a ','"),
    ('{"numbers": [100, 95, ', "right after a ','"),
    ('{"a": true', "before their last brackets are closed"),
    ('{"a": ["x"', "before their last brackets are closed"),
    ('{"a": {"b": ["c"', "before their last brackets are closed"),
    ('{"a": [{"b": "c"}', "before their last brackets are closed"),
    ('["x"', "before their last brackets are closed"),
]

LEFT_ALONE = [
    "",
    " ",
    "I will call the tool now",
    "I'll call {tool} now",
    "'",
    '"plain words"',
    "True",
    "'x'",
    "12",
    '{"a": 1}{"b": 2}',
    '{"a": 1}\n{"a": 1}',
    '{"a": 1} and {"b": 2}',
    '{"a": 1} is what I meant',
    '{"a": 1}\n```\nor {"b": 2}',
    'I call {"a": 1}',
    '```json\n{"a": 1}\n```\n```json\n{"a": 2}\n```',
    '```json\n{"a": 1}{"b": 2}\n```',
    "```\nsearch(1)\n```",
    '{"a": "he said "hi" to me"}',
    "{'a': 'it's fine'}",
    '{"a": hello}',
    '{"a": hello world}',
    '{"a": NaN}',
    "{'a': Infinity}",
    "{'a': 1e999}",
    "{'a': 1, 'a': 2}",
    "{'a': '\\x41'}",
    '{"a": ["x" "y"]}',
    "{'a': [1 500]}",
    "{'a': 1_000}",
    "{'a': 007}",
    '{"a": [1, "b": 2}',
    '{"a": [1, 2}',
    '{"a": [{"b": 1], "c": 2}',
    '{"a": 1,, "b": 2}',
    '{"a": , "b": 2,}',
    '{"a" 1}',
    '{"a": 1], "b": 2}',
    "[}",
    "{'a'}",
    "[,]",
    '{"a": 1}',  # nothing to repair
    "[" * 5_000,
    "{'a':" * 5_000 + "1" + "}" * 5_000,
    "{'a': '" + "x" * 1_000_000 + "'}",
]


@pytest.mark.parametrize(("text", "value", "by"), MENDED)
def test_complete_json_is_repaired(text, value, by):
    assert list(repair_json(text)) == [RepairedJson(value, by)]


@pytest.mark.parametrize(("text", "value", "by"), LACKING_BRACE)
def test_a_last_brace_is_added_only_if_each_property_has_its_value(text, value, by):
    assert list(repair_json(text, {"a"})) == [RepairedJson(value, by)]
    assert list(repair_json(text, {"a", "optional"})) == []
    assert list(repair_json(text)) == []  # as the properties are not known


@pytest.mark.parametrize(("text", "where"), CUT_OFF)
def test_json_that_was_cut_off_is_not_repaired_and_the_error_says_where_it_ends(text, where):
    assert list(repair_json(text)) == list(repair_json(text, {"a"})) == []
    with pytest.raises(NotJson, match=where.replace("[", r"\[")) as caught:
        parse_json(text)
    assert caught.value.is_cut_off == ("'" not in text[:2])


@pytest.mark.parametrize("text", LEFT_ALONE, ids=lambda text: text[:30])
def test_ambiguous_json_is_not_repaired(text):
    assert list(repair_json(text)) == []


def test_a_prefix_of_json_is_repaired_only_if_nothing_but_its_last_brace_is_missing():
    text = json.dumps(WRITTEN)
    for end in range(1, len(text)):
        readings = [(mended.value, mended.by) for mended in repair_json(text[:end], WRITTEN.keys())]
        assert readings == ([(WRITTEN, "missing_closers")] if end == len(text) - 1 else [])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (json.dumps(WRITTEN), WRITTEN),
        ('{"a": 1, "a": 2}', {"a": 2}),
        (r'{"\ud800a": "\ud83d\ude00 \udc00"}', {"\ufffda": "\U0001f600 \ufffd"}),
        ('"\ud800"', "\ufffd"),
        ("[" + "9" * 4_000 + "]", [int("9" * 4_000)]),
        ("[" * 100 + "]" * 100, None),
        (json.dumps("[" * 500), "[" * 500),
        (" null\n", None),
    ],
    ids=lambda item: str(item)[:20],
)
def test_strict_json_is_parsed(text, value):
    read = parse_json(text)
    assert value is None or read == value


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty"),
        ("NaN", "NaN and Infinity"),
        ("[-Infinity]", "NaN and Infinity"),
        ("[1e999]", "larger than"),
        ("[" + "9" * 5_000 + "]", "5000 digits"),
        ("[" * 101 + "]" * 101, "100 levels deep"),
        ('{"a":' * 100_000, "100 levels deep"),
        ('{"a": 1,}', "name in double quotes|comma stands before"),
        ("[1] x", "more text follows"),
        ('{\n"a": 1\n"b": 2}', r"line 3, column 1, near"),
        ("{'a': 'it's'}", "A name in double quotes is expected, and the arguments seem to stop"),
        ('{"a": [1, 2]', "before their last brackets are closed"),
        ("\ufeff{}", "begin"),
        ('{"a": "\t"}', "raw line break or control character"),
        ("I will", "does not begin with a JSON value"),
    ],
    ids=lambda item: item[:20],
)
def test_the_parse_error_says_what_is_wrong_and_where(text, part):
    with pytest.raises(NotJson, match=part) as caught:
        parse_json(text)
    assert 0 <= caught.value.position <= len(text)
    assert len(str(caught.value)) < 250


def test_never_a_recursion_error_however_deep_the_caller_stands():
    def deeper():
        try:
            return deeper()
        except RecursionError:
            try:
                parse_json("[" * 90 + "]" * 90)
            except (NotJson, RecursionError) as error:  # the last frame of the stack has no room for any call
                return error
            return None

    deeper()
    assert parse_json("[]") == []


MARKS = [*"{}[],:'\"\\/#`\n\t -", "```", "```json\n", '": "', "/*", "*/", "\ufeff", "\xa0"]
WORDS = ['"a"', "'b'", "12", "1.5", "true", "None", "tr", "x", "\\u00e9", "\\ud800", "\ud800", "é"]
FRAGMENTS = st.lists(st.sampled_from(MARKS + WORDS), max_size=40).map("".join)


def strings_of(value):
    if isinstance(value, dict):
        yield from value
        for inner in value.values():
            yield from strings_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings_of(inner)
    elif isinstance(value, str):
        yield value


def bare(text):
    """The characters of the text without those that may be escaped."""
    return [char for char in text if char.isascii() and char.isalnum()]


def stands_in(string, text):
    remaining = iter(text)
    return all(char in remaining for char in bare(string))


@given(st.text() | FRAGMENTS | FRAGMENTS.map("{{{}".format))
@example("[" + "{" * 10)
@example('{"a": "\\u0061"}')
def test_any_text_is_parsed_refused_or_repaired_without_another_error(text):
    try:
        json.dumps(parse_json(text), allow_nan=False).encode()
    except NotJson as error:
        str(error).encode()
    for mended in repair_json(text):
        json.dumps(mended.value, allow_nan=False, ensure_ascii=False).encode()
        assert mended.by
        if "\\u" not in text:
            assert all(stands_in(string, text) for string in strings_of(mended.value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_the_repr_of_a_python_value_is_repaired_to_that_value(value):
    for mended in repair_json(repr(value)):
        assert mended.value == json.loads(json.dumps(value))


@given(st.dictionaries(st.text(), JSON, min_size=1, max_size=4), st.data())
def test_json_that_was_cut_off_has_no_other_reading_than_the_whole(value, data):
    text = json.dumps(value, ensure_ascii=False)
    cut = text[: data.draw(st.integers(1, len(text) - 1))]
    for mended in repair_json(cut, value.keys()):
        assert mended.value == value


@pytest.mark.parametrize(
    "text",
    [
        "{" + "'a" * 33_333,
        "[" + "," * 100_000,
        "[" + "1," * 50_000,
        '{"a": "' + "\\" * 100_000,
        '{"a": "' + "\\n" * 50_000 + '",}',
        "{" + "/*" * 44_444,
        "{" + "//\n" * 33_333,
        "```" * 33_333,
        "{`" * 33_333,
        "{'a': [" + "]" * 100_000,
        "[" * 90 + "1," * 44_444,
        "{" + "".join(f"a{n}: {n}," for n in range(5_555)) + "}",
    ],
    ids=lambda text: text[:10],
)
def test_repair_time_is_bounded_by_the_length_of_the_text(text):
    began = time.process_time()
    list(repair_json(text))
    with pytest.raises(NotJson):
        parse_json(text)
    assert time.process_time() - began < 2.7  # 0.1 to 0.5 s if nothing else runs


def test_a_text_of_very_many_tokens_is_not_repaired() -> None:
    """Found by fuzzing: half a megabyte of commas took four seconds."""
    started = time.process_time()
    assert list(repair_json("[" + "," * 499_999)) == []
    assert time.process_time() - started < 1.5
    [repaired] = repair_json("[" + "1, " * 20_000 + "]")
    assert repaired.by == "trailing_commas"
