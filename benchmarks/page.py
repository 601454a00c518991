"""Print the page."""

from pathlib import Path

from benchmarks.results import Results


def write_page(kept: Results, docs: Path) -> Path:
    """Write it."""
    return docs
