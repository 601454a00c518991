"""Mulligan's own settings, from the environment. Temporal's, OpenAI's and OpenTelemetry's are read by their libraries."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mulligan.errors import DeclarationError

__all__ = ["Settings", "settings"]

_Rate = Annotated[float | None, Field(gt=0, allow_inf_nan=False)]
"""How many a second."""


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
    """Bytes of memory for what a worker remembers of conversations; 0: nothing, each step asks the workflow."""
    max_cached_workflows: Annotated[int, Field(ge=0)] = 1000
    """How many open runs a worker holds in memory; 0: none, each task replays."""
    max_concurrent_activities: Annotated[int, Field(ge=1)] = 500
    """How many model and tool calls a worker runs at once."""
    max_concurrent_workflow_tasks: Annotated[int, Field(ge=2)] = 32
    """How many runs a worker advances at once: each takes a thread for that moment."""
    max_activities_per_second: _Rate = None
    """How many model and tool calls this worker begins; none: no limit."""
    max_task_queue_activities_per_second: _Rate = None
    """How many model and tool calls all workers of the task queue begin; none: no limit."""
    max_concurrent_model_calls: Annotated[int | None, Field(ge=1)] = None
    """How many model calls this worker runs at once; none: they count as activities alone."""
    max_model_calls_per_second: _Rate = None
    """How many model calls this worker begins; none: no limit."""
    max_task_queue_model_calls_per_second: _Rate = None
    """How many model calls all workers of the task queue begin; none: no limit."""
    live_text_seconds: Annotated[float, Field(ge=0, le=60)] = 1
    """How often who watches a run is told what the model has written; 0: never, answers are asked for whole."""
    log_format: Literal["text", "json"] = "text"
    """What a worker writes its log as, to stderr: lines of text, or one JSON object a line."""
    health_address: str = ""
    """`host:port` where a worker answers `/livez` and `/readyz` over HTTP; none: nowhere."""
    temporal_ui_url: str = ""
    """Temporal's UI, for links; none: the dev server's, if it answers, or Temporal Cloud's."""
    jaeger_url: str = ""
    """Jaeger's UI and query API, for links and `show --trace`; none: http://localhost:16686, if it answers."""
    deployment_name: str = Field("", validation_alias="TEMPORAL_DEPLOYMENT_NAME")
    build_id: str = Field("", validation_alias="TEMPORAL_WORKER_BUILD_ID")
    """Both, or neither: Worker Versioning. Named as Temporal's Worker Controller sets them."""
    encryption_keys: SecretStr = SecretStr("")
    """`id:key,id:key`: what Temporal keeps is encrypted with the first, and read with any; none: not encrypted."""
    external_storage: str = ""
    """`file:///folder` or `s3://bucket/prefix`: where payloads stand that are too large for Temporal; none: nowhere."""

    prices: str = ""
    """A file with prices of models, over those that are known; none: those alone."""

    @field_validator("health_address")
    @classmethod
    def _has_port(cls, value: str) -> str:
        if value and not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}", value):
            raise ValueError("it must be host:port, such as 127.0.0.1:8080")
        return value

    @field_validator("temporal_ui_url", "jaeger_url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value and not re.match(r"https?://[^/]", value):
            raise ValueError("it must begin with http:// or https://")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _both_or_neither(self) -> Settings:
        if bool(self.deployment_name) != bool(self.build_id):
            raise DeclarationError(
                "TEMPORAL_DEPLOYMENT_NAME and TEMPORAL_WORKER_BUILD_ID switch Worker Versioning on together; "
                f"only {'the name' if self.deployment_name else 'the build id'} is set."
            )
        return self

    @property
    def limits_activities(self) -> bool:
        """Whether what a task queue or a worker begins is limited to a rate."""
        return self.max_activities_per_second is not None or self.max_task_queue_activities_per_second is not None

    @property
    def limits_model_calls(self) -> bool:
        """Whether model calls have limits of their own, and so a task queue of their own."""
        limits = (
            self.max_concurrent_model_calls,
            self.max_model_calls_per_second,
            self.max_task_queue_model_calls_per_second,
        )
        return any(limit is not None for limit in limits)

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
        says = fault["msg"].removeprefix("Value error, ")
        says = says[0].lower() + says[1:]
        raise DeclarationError(f"{name} is {fault['input']!r}, but {says}.") from None
