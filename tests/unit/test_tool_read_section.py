"""`read_section` finds headings by CommonMark's rules, and takes linear time on any line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mulligan import ToolError
from mulligan.tools import read_section

PAGE = "# Top\nintro\n## Use C# ##\nfirst\n### Deep #\nsecond\n## Next\nthird\n#No heading\n```\n# code\n```\n#######  seven\n"


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MULLIGAN_WORKSPACE", str(tmp_path))
    (tmp_path / "page.md").write_text(PAGE)
    return tmp_path


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        ("Use C#", "## Use C# ##\nfirst\n### Deep #\nsecond"),
        ("## deep", "### Deep #\nsecond"),
        ("next", "## Next\nthird\n#No heading\n```\n# code\n```\n#######  seven"),
    ],
)
def test_a_section_goes_on_to_the_next_heading_of_its_level(selector: str, text: str) -> None:
    assert read_section("page.md", selector) == text


def test_an_unknown_heading_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ToolError, match=r"'Top', 'Use C#', 'Deep', 'Next'"):
        read_section("page.md", "code")


@pytest.mark.parametrize("line", ["# x" + " " * 3_000_000 + "y", "# x" + " #" * 1_500_000, "#" * 3_000_000])
def test_a_long_line_of_spaces_or_hashes_takes_linear_time(workspace: Path, line: str) -> None:
    """Quadratic time would be hours."""
    (workspace / "page.md").write_text(line + "\n# end\nlast")
    assert read_section("page.md", "end") == "# end\nlast"
