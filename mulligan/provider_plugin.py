"""Which providers of models exist: those that are built in, and plugins of other packages (`mulligan.providers`)."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mulligan.endpoint import Endpoint
from mulligan.errors import DeclarationError

if TYPE_CHECKING:
    from mulligan.activities.models.protocol import Provider

ENTRY_POINTS = "mulligan.providers"
"""The group of entry points by which an installed package offers a provider. The entry's name is the prefix."""
_PREFIX = re.compile(r"[a-z][a-z0-9-]{0,31}")


@dataclass(frozen=True)
class ProviderTraits:
    """What declarations and prices need to know of a provider; its code is loaded by workers only."""

    module: str = ""
    """The module of `activities/models/` whose `create` makes the provider; workers load it. "" for a plugin."""
    sdk: str = ""
    """The package that it uses; "" if none."""
    in_background: bool = False
    """Whether its models have background responses."""
    in_batches: bool = False
    """Whether its models can be called in batches."""
    writes_to_schema: bool = False
    """Whether its models constrain their answer to a JSON schema. A server that speaks Chat Completions may or may not, so
    agents get output tools there, which all servers take; `ProviderStrategy` says otherwise."""
    is_free: bool = False
    """Whether its models cost nothing, unless a price table says otherwise."""
    has_endpoints: bool = True
    """Whether its models may be named `provider@endpoint:NAME`."""
    extra: str = ""
    """The extra of Mulligan that it needs; "" if none."""
    key_variables: tuple[str, ...] = ()
    """The environment variables one of which has the key, or the place of the key, of its default endpoint."""
    url_variables: tuple[str, ...] = ()
    """The environment variables with the address of its default endpoint. The provider's package reads them."""


BUILT_IN: Mapping[str, ProviderTraits] = {
    "openai": ProviderTraits(
        module="openai.openai_responses",
        sdk="openai",
        in_background=True,
        in_batches=True,
        writes_to_schema=True,
        key_variables=("OPENAI_API_KEY",),
        url_variables=("OPENAI_BASE_URL",),
    ),
    "openai-chat": ProviderTraits(
        module="openai.openai_chat",
        sdk="openai",
        in_batches=True,
        key_variables=("OPENAI_API_KEY",),
        url_variables=("OPENAI_BASE_URL",),
    ),
    "anthropic": ProviderTraits(
        module="anthropic.anthropic",
        sdk="anthropic",
        writes_to_schema=True,
        extra="anthropic",
        key_variables=(
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_PROFILE",
            "ANTHROPIC_FEDERATION_RULE_ID",
        ),
        url_variables=("ANTHROPIC_BASE_URL",),
    ),
    # Its models before Gemini 3 cannot constrain an answer where they have tools.
    "google": ProviderTraits(
        module="google.google",
        sdk="google.genai",
        extra="google",
        key_variables=(
            "GEMINI_API_KEY",
            "GOOGLE_API_KEY",
            "GOOGLE_GENAI_USE_VERTEXAI",
            "GOOGLE_GENAI_USE_ENTERPRISE",
        ),
        url_variables=("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"),
    ),
    "scripted": ProviderTraits(module="scripted", is_free=True, has_endpoints=False),
}
"""The built-in providers."""


@dataclass(frozen=True, kw_only=True)
class ProviderPlugin:
    """A provider of another package.

    Args:
        prefix: The first part of its models' names: `acme` of `acme:NAME`. Lower-case letters, digits and hyphens.
        create: Creates the provider for an endpoint (None: the default one). A worker calls it once for each endpoint, at
            the first request. It should import its SDK in the provider's first request, not before.
        writes_to_schema: Whether its models constrain their answer to a JSON schema (`Definition.output`). If not, a
            structured answer is requested as a tool.
        is_free: Whether its models cost nothing, unless a price table says otherwise.
        in_background: Whether its provider has the part `background`, for the feature `Background`.
        in_batches: Whether its provider has the part `batch`, for the feature `Batch`.

    Raises:
        DeclarationError: the prefix is invalid, or `create` is not callable.
    """

    prefix: str
    create: Callable[[Endpoint | None], Provider]
    writes_to_schema: bool = False
    is_free: bool = False
    in_background: bool = False
    in_batches: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.prefix, str) or not _PREFIX.fullmatch(self.prefix):
            raise DeclarationError(
                f"ProviderPlugin: the prefix is {self.prefix!r}; it must have lower-case letters, digits and hyphens."
            )
        if not callable(self.create):
            raise DeclarationError(
                f"ProviderPlugin({self.prefix!r}): create must be a function of an Endpoint or None that returns a "
                f"provider, but is {self.create!r}."
            )


_plugins: dict[str, ProviderPlugin] = {}
"""The plugins that are registered or loaded in this process, by their prefixes."""


def register_provider(plugin: ProviderPlugin) -> ProviderPlugin:
    """Make a provider known in this process, from where its module is imported (`--load`), and return the plugin.

    Registering the same plugin again does nothing.

    Args:
        plugin: The provider's prefix and how it is created. Keep it at the module's top level.

    Raises:
        DeclarationError: it is not a ProviderPlugin, or another provider has its prefix.
    """
    if not isinstance(plugin, ProviderPlugin):
        raise DeclarationError(f"register_provider takes a ProviderPlugin, not {type(plugin).__name__}.")
    if plugin.prefix in BUILT_IN:
        raise DeclarationError(f"the provider {plugin.prefix!r} is built in; give the plugin another prefix.")
    known = _plugins.setdefault(plugin.prefix, plugin)
    if known != plugin:
        raise DeclarationError(
            f"two providers have the prefix {plugin.prefix!r}: {_origin(known)} and {_origin(plugin)}; use one of them."
        )
    return known


def find_plugin(prefix: str) -> ProviderPlugin | None:
    """The plugin of a prefix that is registered in this process already; None if there is none."""
    return _plugins.get(prefix)


def find_traits(prefix: str, context: str | None = None) -> ProviderTraits | None:
    """The traits of the provider of a prefix; None if there is no such provider.

    Args:
        prefix: The first part of a model's name.
        context: Where the model is declared: then the plugin of an installed package is loaded, if need be. None: only
            providers that are known already are looked up, so that workflow code reads no files.

    Raises:
        DeclarationError: the plugin cannot be loaded.
    """
    if prefix in BUILT_IN:
        return BUILT_IN[prefix]
    if prefix not in _plugins and context is not None and _PREFIX.fullmatch(prefix):
        _load_entry_point(prefix, context)
    plugin = _plugins.get(prefix)
    names = ("writes_to_schema", "is_free", "in_background", "in_batches")
    return ProviderTraits(**{name: getattr(plugin, name) for name in names}) if plugin else None


def known_prefixes() -> list[str]:
    """The prefixes of all providers: built in, registered, and of installed packages."""
    return list(dict.fromkeys([*BUILT_IN, *_plugins, *_installed(tuple(sys.path))]))


@functools.lru_cache(maxsize=1)
def _installed(path: tuple[str, ...]) -> list[str]:
    """The prefixes of installed packages. The entry points of all packages on the path are read: once in a process."""
    packages = importlib.metadata.distributions(path=list(path))
    return [entry.name for package in packages for entry in package.entry_points.select(group=ENTRY_POINTS)]


def _load_entry_point(prefix: str, context: str) -> None:
    entries = list(dict.fromkeys(importlib.metadata.entry_points(group=ENTRY_POINTS, name=prefix)))
    if not entries:
        return
    if len(entries) > 1:
        packages = " and ".join(sorted(entry.dist.name if entry.dist else entry.value for entry in entries))
        raise DeclarationError(
            f"{context}: two packages have a provider {prefix!r}: {packages}; uninstall one of them."
        )
    entry = entries[0]
    try:
        plugin = entry.load()
    except DeclarationError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())
        raise DeclarationError(
            f"{context}: the provider {prefix!r} ({entry.value}) cannot be imported: {type(error).__name__}: {text}"
        ) from error
    if not isinstance(plugin, ProviderPlugin) or plugin.prefix != prefix:
        what = f"one of {plugin.prefix!r}" if isinstance(plugin, ProviderPlugin) else type(plugin).__name__
        raise DeclarationError(
            f"{context}: the entry point {prefix!r} ({entry.value}) must be a ProviderPlugin of that prefix, but is {what}."
        )
    register_provider(plugin)


def _origin(plugin: ProviderPlugin) -> str:
    create = plugin.create
    return f"{getattr(create, '__module__', '?')}.{getattr(create, '__qualname__', type(create).__name__)}"


def settings_of(settings: Mapping[str, Any], provider: str) -> dict[str, Any]:
    """The settings for a provider: those for all, and over them its own, a table under the provider's prefix.

    So the models of a list may have different settings: `{"temperature": 0, "anthropic": {"thinking": {…}}}`.
    """
    of_all = {name: value for name, value in settings.items() if name not in BUILT_IN or not isinstance(value, Mapping)}
    own = settings.get(provider)
    return {**of_all, **own} if isinstance(own, Mapping) else of_all
