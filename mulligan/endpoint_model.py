"""`Model`: a model with its address, which may stand wherever a model's name may stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from mulligan.endpoint import Endpoint, check_url
from mulligan.errors import DeclarationError
from mulligan.model_name import ModelName, check_model


class Model:
    """A model at an endpoint of its own. It may stand wherever a model's name may stand.

    History, spans and prices have it as its `name`, `provider@endpoint:NAME`; the worker finds the endpoint of that name in
    the agents and modules that it has loaded, or in the operator's file, `MULLIGAN_ENDPOINTS`, which comes first.

    Args:
        model: `provider:NAME`, or `provider@endpoint:NAME` to choose the endpoint's name. Otherwise the endpoint is named
            after `base_url`: name it if the address may change while runs are open.
        base_url: The URL that the provider's paths are appended to: `http://localhost:11434/v1`. None: the provider's
            default address, for an endpoint that has only another key.
        api_key_env: The environment variable of the worker that has the key. None: the endpoint takes no key.
        headers: Sent with each request. `${NAME}` in a value is replaced by that environment variable of the worker.
        timeout: Seconds for one answer at most; the agent's `model_timeout` applies too.

    Attributes:
        name: `provider@endpoint:NAME`.
        endpoint: Its endpoint.

    Raises:
        DeclarationError: a value is invalid, or there is neither a base_url nor an endpoint's name.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        context = f"Model({str(model)[:80]!r})"
        if not isinstance(model, str):
            raise DeclarationError(f"{context}: the model must be a text such as 'openai-chat:llama3'.")
        check_model(model, context)
        parsed = ModelName.parse(model)
        try:
            if base_url is not None:
                check_url(base_url, "it")
            elif not parsed.endpoint:
                raise DeclarationError(
                    f"it needs a base_url, or a name for its endpoint: Model('{parsed.provider}@NAME:{parsed.name}', …)."
                )
            name = parsed.endpoint or _name_of_address(base_url or "")
            check_model(str(ModelName(parsed.provider, parsed.name, name)), "it")
            self.endpoint = Endpoint(
                name=name,
                base_url=base_url,
                api_key_env=api_key_env,
                headers=dict(headers or {}) if isinstance(headers, Mapping | None) else headers,
                timeout=timeout,
            )
        except DeclarationError as error:
            raise DeclarationError(f"{context}: {error}") from None
        self.name = str(ModelName(parsed.provider, parsed.name, name))

    def __repr__(self) -> str:
        """The model's name and its endpoint, without the values of headers."""
        return f"Model({self.name!r}, {self.endpoint!r})"

    def __eq__(self, other: object) -> bool:
        """Whether both name the same model at an equal endpoint."""
        return isinstance(other, Model) and (self.name, self.endpoint) == (other.name, other.endpoint)

    def __hash__(self) -> int:
        return hash(self.name)


def model_name(model: str | Model) -> str:
    """The name of a model: `provider:NAME` or `provider@endpoint:NAME`."""
    return model.name if isinstance(model, Model) else model


def endpoints_of(models: Iterable[object]) -> list[Endpoint]:
    """The endpoints of those of the models that have their own."""
    return [model.endpoint for model in models if isinstance(model, Model)]


def _name_of_address(url: str) -> str:
    """The name of an endpoint that has none: `http://localhost:11434/v1` is `localhost-11434-v1`."""
    parts = urlsplit(url)
    return re.sub(r"[^A-Za-z0-9._]+", "-", f"{parts.netloc}{parts.path}").strip("-.")[:64].strip("-.")
