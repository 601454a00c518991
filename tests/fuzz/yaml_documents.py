"""Strategies for agents' files, skills and files of labels: YAML and TOML that is nested, referred to, repeated and damaged."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import strategies as st

from tests.fuzz.inputs import json_values, repeated

_PIECES = st.sampled_from(
    [
        *("[", "]", "{", "}", ",", ", ", ":", ": ", "? ", "- ", "-", "&a ", "*a", "*a ", "<<: ", "<<: *a", "<<: [*a, *a]", "#", " #"),
        *("!!int ", "!!float ", "!!bool ", "!!null ", "!!binary ", "!!set ", "!!omap ", "!!timestamp ", "!!str ", "!!seq ", "!!merge ", "! "),
        *("!!python/object/apply:os.system ", "!!python/tuple ", "!x ", "!<tag:yaml.org,2002:int> ", "!%41%C3 ", "%TAG ! x\n", "%YAML 1.1\n"),
        *("---\n", "--- ", "...\n", "|\n", ">-\n", "|9\n", "|+1\n ", "\n", "\n ", "\n  ", "\n\n", "\t", " ", "    ", "'", '"', "''", "\\"),
        *('"\\UFFFFFFFF"', '"\\U00110000"', '"\\ud800"', '"\\x00"', '"\\', "1:", "59:", "1_", "_", "0x", "0b1", "0o7", "9", "-", "+", ".", "1.", "e9"),
        *(".inf", ".nan", "1e9", "2026-01-01", "2026-01-01T00:00:00Z", "~", "null", "yes", "=", "@", "`", "\r", "\r\n", "\x85", "\u2028", "\ufeff"),
        *("\0", "\x1b[2J", "\x7f", "\ud800", "é", "😀", "a", "a: ", "a: b\n", "x" * 300, "model: openai:m\n", "tools: [look_up]\n", "features:\n  - Guarded\n"),
        *("[s]\n", "[[s]]\n", "[s.a]\n", "a.", "a = ", 'a = "00000000"\n', "'''", '"""', "[ ", '{version = "00000000", share = "5%"}\n', "{{ prompt }}", "{{"),
    ]
)  # fmt: skip
"""Pieces of YAML, of TOML, and of instructions with places."""


def _nested(opener: str, inner: str, closer: str, count: int) -> str:
    return opener * count + inner + closer * count


def _indented(opener: str, count: int) -> str:
    """Block collections, each in the one before: `opener` on a line of its own, deeper and deeper."""
    return "".join(" " * level + opener + "\n" for level in range(count))


def _bomb(levels: int, fan: int, *, merges: bool) -> str:
    """Each level has the one before several times."""
    lines = ["l0: &l0 {x: 1}" if merges else "l0: &l0 [x, x]"]
    for level in range(1, levels + 1):
        inner = ", ".join([f"*l{level - 1}"] * fan)
        lines.append(f"l{level}: &l{level} {{<<: [{inner}]}}" if merges else f"l{level}: &l{level} [{inner}]")
    return "\n".join([*lines, f"name: *l{levels}"])


def _dumped(value: Any, flow: bool | None, width: int) -> str:
    return yaml.safe_dump(value, default_flow_style=flow, width=width, allow_unicode=True)


_NESTED = st.builds(
    lambda pair, inner, count: _nested(pair[0], inner, pair[1], count),
    st.sampled_from([("[", "]"), ("{", "}"), ("{a: ", "}"), ("[{a: ", "}]"), ("- ", ""), ("? ", ""), ("[?", "]"), ("!!seq [", "]"), ("&a [", "]")]),
    st.sampled_from(["", "a", "*a", "1"]),
    st.sampled_from([1, 5, 19, 20, 21, 22, 100, 1_000, 10_000, 30_000]),
)  # fmt: skip
_INDENTED = st.builds(
    _indented, st.sampled_from(["a:", "-", "?", "a: &b", "- !!seq"]), st.sampled_from([3, 19, 21, 150, 350])
)
_BOMBS = st.builds(_bomb, st.integers(1, 30), st.integers(1, 60), merges=st.booleans())
_WIDE = st.builds(
    lambda count, line: "".join(line.format(number) for number in range(count)),
    st.sampled_from([10, 4_990, 5_000, 8_000]),
    st.sampled_from(["a{0}: b\n", "- {0}\n", "? a{0}\n", "a{0}: &b{0}\n", '"a{0}": 1:2\n', 'a{0} = "00000000"\n', "[a{0}]\n", "a.b.c{0} = 1\n"]),
)  # fmt: skip
_VALID = st.builds(
    _dumped, json_values(max_leaves=12), st.sampled_from([None, True, False]), st.sampled_from([20, 80, 10_000])
)


def yaml_texts(most: int) -> st.SearchStrategy[str]:
    """YAML and TOML, right and wrong."""
    mixed = st.lists(_PIECES, max_size=30).map("".join)
    repetitions = repeated(_PIECES, most) | repeated(mixed, most)
    after_key = st.builds(
        "{}: {}".format,
        st.sampled_from(["model", "name", "tools", "max_steps", "features"]),
        mixed | repetitions | _NESTED,
    )
    return mixed | repetitions | _NESTED | _INDENTED | _BOMBS | _WIDE | _VALID | after_key  # fmt: skip


def front_matters(most: int) -> st.SearchStrategy[bytes]:
    """Files with such a front matter, some of them damaged, or in another encoding."""
    heads = st.sampled_from(
        ["---\n", "---\nmodel: openai:m\n", "---\nname: s\ndescription: d\n", "\ufeff---\r\n", "---  \n", "", "--"]
    )
    ends = st.sampled_from(["\n---\n", "\r\n---\r\n", "\n---", "", "\n---x\n", "\n--- \nHi {{ prompt }}\n"])
    whole = st.builds(lambda head, text, end: head + text + end, heads, yaml_texts(most), ends)
    encoded = st.builds(
        lambda text, encoding: text.encode(encoding, "surrogatepass" if encoding.startswith("utf") else "replace"),
        whole, st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8", "utf-16", "utf-32", "latin-1"]),
    )  # fmt: skip
    damaged = st.builds(
        lambda data, at, byte: data[: at % (len(data) + 1)] + byte + data[at % (len(data) + 1) + 1 :],
        encoded, st.integers(0, 100_000), st.binary(max_size=3),
    )  # fmt: skip
    return encoded | damaged
