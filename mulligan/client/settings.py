"""Mulligan's settings, from the environment. The libraries of Temporal, OpenAI and OpenTelemetry read their own.

Two variables are read elsewhere, by the shipped tools: `MULLIGAN_WORKSPACE` and `MULLIGAN_FETCH_ALLOW`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from platformdirs import user_data_path
from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from mulligan.errors import DeclarationError

MAX_PROCESSES = 256
"""Of one supervisor. Each takes more than 100 MB of memory; more than one for each core gains nothing."""
_Rate = Annotated[float | None, Field(gt=0, allow_inf_nan=False)]
"""A number per second."""


class Settings(BaseSettings):
    """Each setting is the environment variable `MULLIGAN_` + its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="MULLIGAN_", env_ignore_empty=True)

    task_queue: str = "agents"
    """The task queue on which runs are started and which workers poll."""
    load: Annotated[list[str], NoDecode] = []
    """Modules with agents that a worker loads, separated by commas."""
    agents: str = ""
    """A folder with a file `NAME.md` for each agent, which a worker serves as it is now. Not set: agents are declared in
    Python only."""
    grace_seconds: Annotated[float, Field(ge=0)] = 30
    """Seconds that a stopping worker waits for its running calls."""
    processes: Annotated[int | None, Field(ge=1, le=MAX_PROCESSES)] = None
    """How many worker processes `mulligan worker` runs under a supervisor. Not set: one, without a supervisor."""
    prefix_cache_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024
    """Bytes of memory for a worker's cache of conversations. 0: no cache, so that each step queries the workflow."""
    max_cached_workflows: Annotated[int, Field(ge=0)] = 1000
    """How many open runs a worker keeps in memory. 0: none, so that each workflow task is a replay."""
    max_concurrent_activities: Annotated[int, Field(ge=1)] = 500
    """How many model and tool calls a worker runs at the same time."""
    max_concurrent_workflow_tasks: Annotated[int, Field(ge=2)] = 32
    """How many workflow tasks a worker runs at the same time, each in a thread."""
    max_activities_per_second: _Rate = None
    """How many model and tool calls this worker starts per second. Not set: no limit."""
    max_task_queue_activities_per_second: _Rate = None
    """How many model and tool calls all workers of the task queue start per second. Not set: no limit."""
    max_concurrent_model_calls: Annotated[int | None, Field(ge=1)] = None
    """How many model calls this worker runs at the same time. Not set: only max_concurrent_activities applies."""
    max_model_calls_per_second: _Rate = None
    """How many model calls this worker starts per second. Not set: no limit."""
    max_task_queue_model_calls_per_second: _Rate = None
    """How many model calls all workers of the task queue start per second. Not set: no limit."""
    live_text_seconds: Annotated[float | None, Field(ge=0, le=60)] = None
    """Seconds between two updates of what a model is writing, for clients that follow a run. 0: none; the model is called
    without streaming. Not set: 0.1 to 1, the longer the more models are writing in the process; 1 on Temporal Cloud."""
    live: str = "local"
    """How words reach those who watch, beside heartbeats: `local`, by sockets on this machine; `off`, not at all."""
    log_format: Literal["text", "json"] = "text"
    """What a worker writes its log as, to stderr: lines of text, or one JSON object a line."""
    health_address: str = ""
    """`host:port` at which a worker serves `/livez` and `/readyz` over HTTP. Not set: not served."""
    mcp_logins: str = Field(default_factory=lambda: str(user_data_path("mulligan") / "mcp"))
    """The folder with the logins to MCP servers (`mulligan mcp login`)."""
    temporal_ui_url: str = ""
    """The URL of Temporal's UI, for links. Not set: that of the dev server, if it answers, or of Temporal Cloud."""
    jaeger_url: str = ""
    """The URL of Jaeger's UI and query API, for links and `show --trace`. Not set: http://localhost:16686, if it answers."""
    deployment_name: str = Field("", validation_alias="TEMPORAL_DEPLOYMENT_NAME")
    build_id: str = Field("", validation_alias="TEMPORAL_WORKER_BUILD_ID")
    """The two settings turn on Worker Versioning, and must be set together. Temporal's Worker Controller sets them."""
    encryption_keys: SecretStr = SecretStr("")
    """`id:key,id:key`: payloads are encrypted with the first key, and decrypted with any of them. Not set: no encryption."""
    encryption_strict: bool = False
    """Whether payloads that are not encrypted are refused. Needs `encryption_keys`."""
    content_dir: str = ""
    """The folder for the bytes of images and files, where `external_storage` is not set. All machines must see it. Not set:
    they are in history, up to 1 MB a message."""
    external_storage: str = ""
    """`file:///folder` or `s3://bucket/prefix`, for payloads that are too large for Temporal. Not set: no such storage."""
    batch_requests: Annotated[int, Field(ge=1, le=50_000)] = 1_000
    """How many requests a file of a batch may have (OpenAI's limit: 50,000)."""
    batch_bytes: Annotated[int, Field(ge=1, le=200_000_000)] = 50_000_000
    """How many bytes a file of a batch may have (OpenAI's limit: 200 MB)."""
    batch_seconds: Annotated[float, Field(ge=0, le=86_400)] = 60
    """Seconds that a request waits for others before its batch is submitted."""
    batch_poll_seconds: Annotated[float, Field(gt=0, le=3_600)] = 30
    """Seconds until a batch is polled first. The intervals grow to ten minutes."""
    endpoints: str = ""
    """A TOML file with endpoints of models, by their names. Not set: only the endpoints that are declared in code."""
    budgets: str = ""
    """A TOML file with the USD that tenants may spend a day. Not set: they have no budgets."""
    prices: str = ""
    """A file with prices of models, which override the built-in ones. Not set: only the built-in prices."""

    serve_tokens: SecretStr = SecretStr("")
    """`name:token`, `name:token:agent|agent` or `name:token:agents:roles`, separated by commas: who may call `mulligan
    serve`. Not set: only this machine."""

    side_requests: str = ""
    """A TOML file that describes what chat front ends ask for beside a conversation, and what serves it. Not set: nothing is
    told apart."""

    callback_keys: SecretStr = SecretStr("")
    """Secrets of 32 characters or more, separated by commas: the first makes the tokens of deferred calls, all read them.
    Workers and `mulligan serve` need the same. Not set: the Temporal namespace keeps a random one."""

    @field_validator("health_address")
    @classmethod
    def _has_port(cls, value: str) -> str:
        if value and not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[\w.-]+):\d{1,5}", value):
            raise ValueError("it must be host:port, such as 127.0.0.1:8080")
        return value

    @field_validator("live")
    @classmethod
    def _is_channel(cls, value: str) -> str:
        if value not in ("local", "off"):  # the value may contain a password
            shown = repr(value) if "://" not in value else f"the address of a {value.partition(':')[0]} server"
            raise DeclarationError(f"MULLIGAN_LIVE is {shown}, but it must be local or off.")
        return value

    @field_validator("temporal_ui_url", "jaeger_url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value and not re.match(r"https?://[^/]", value):
            raise ValueError("it must begin with http:// or https://")
        return value.rstrip("/")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment only: a search for files of settings, of which there are none, takes as long."""
        return init_settings, env_settings

    @model_validator(mode="after")
    def _both_or_neither(self) -> Settings:
        if bool(self.deployment_name) != bool(self.build_id):
            raise DeclarationError(
                "TEMPORAL_DEPLOYMENT_NAME and TEMPORAL_WORKER_BUILD_ID switch Worker Versioning on together; "
                f"only {'the name' if self.deployment_name else 'the build id'} is set."
            )
        return self

    @model_validator(mode="after")
    def _strict_needs_keys(self) -> Settings:
        if self.encryption_strict and not self.is_encrypted:
            raise DeclarationError("MULLIGAN_ENCRYPTION_STRICT is set, but MULLIGAN_ENCRYPTION_KEYS is not; set both.")
        return self

    @property
    def is_encrypted(self) -> bool:
        """Whether payloads are encrypted."""
        return bool(self.encryption_keys.get_secret_value())

    @property
    def limits_activities(self) -> bool:
        """Whether a task queue or a worker has a rate limit for activities."""
        return self.max_activities_per_second is not None or self.max_task_queue_activities_per_second is not None

    @property
    def limits_model_calls(self) -> bool:
        """Whether model calls have limits of their own, and therefore a task queue of their own."""
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
        DeclarationError: a variable has an invalid value. The message has its name, its value and what is valid.
    """
    try:
        return Settings()
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        name = f"MULLIGAN_{fault['loc'][0]}".upper()
        says = fault["msg"].removeprefix("Value error, ")
        says = says[0].lower() + says[1:]
        raise DeclarationError(f"{name} is {fault['input']!r}, but {says}.") from None
