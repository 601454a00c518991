"""Mulligan's own settings, from the environment. Temporal's, OpenAI's and OpenTelemetry's are read by their libraries."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mulligan.errors import DeclarationError

__all__ = ["Settings", "settings"]


class Settings(BaseSettings):
    """Each is the environment variable `MULLIGAN_` and its name."""

    model_config = SettingsConfigDict(env_prefix="MULLIGAN_", env_ignore_empty=True)

    task_queue: str = "agents"
    """Where runs are started and served."""
    load: Annotated[list[str], NoDecode] = []
    """Modules with agents, separated by commas."""
    grace_seconds: Annotated[float, Field(ge=0)] = 30
    """How long a draining worker lets calls finish."""
    prefix_cache_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024
    """How much of conversations a worker remembers; 0: nothing, each step asks the workflow."""
    max_cached_workflows: Annotated[int, Field(ge=0)] = 1000
    """How many open runs a worker holds in memory; 0: none, each task replays."""

    encryption_keys: SecretStr = SecretStr("")
    """`id:key,id:key`: what Temporal keeps is encrypted with the first, and read with any; none: not encrypted."""

    @field_validator("load", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


def settings() -> Settings:
    """The settings of this process.

    Raises:
        DeclarationError: a variable has a value that it cannot have: which, what, and what it should be.
    """
    try:
        return Settings()
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        name = f"MULLIGAN_{fault['loc'][0]}".upper()
        says = fault["msg"][0].lower() + fault["msg"][1:]
        raise DeclarationError(f"{name} is {fault['input']!r}, but {says}.") from None
