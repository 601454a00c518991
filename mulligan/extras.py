"""The extras of the package: what must be installed for the features that a base installation does not have."""

from __future__ import annotations

from importlib.util import find_spec

from mulligan.errors import DeclarationError

EXTRAS = {
    "agents": ("yaml", "watchfiles"),
    "anthropic": ("anthropic",),
    "code": ("pydantic_monty",),
    "google": ("google.genai",),
    "mcp": ("mcp",),
    "s3": ("boto3",),
    "reload": ("watchfiles",),
    "serve": ("fastapi", "uvicorn", "sse_starlette", "mcp", "jinja2"),
    "skills": ("yaml",),
    "web": ("bs4", "markdownify"),
}
"""The packages of each extra, by the names under which they are imported. pyproject.toml has the same extras."""


def require_extra(extra: str, feature: str) -> None:
    """Check that the packages of an extra are installed. It imports none of them.

    Call it where the feature is declared or as the worker starts, never during a run.

    Args:
        extra: A key of `EXTRAS`.
        feature: What needs the extra, as the subject of the error's sentence: "The tool fetch_page".

    Raises:
        DeclarationError: a package is missing; the text has the command that installs the extra.
    """
    if not is_installed(extra):
        raise DeclarationError(
            f"{feature} needs the extra {extra!r} of Mulligan, which is not installed; "
            f"install it: uv add 'mulligan[{extra}]' (or: pip install 'mulligan[{extra}]')."
        )


def is_installed(extra: str) -> bool:
    """Whether the packages of an extra are installed. It imports none of them."""
    return all(map(_is_found, EXTRAS[extra]))


def _is_found(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that contains it
        return False
