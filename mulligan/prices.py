"""Prices of models, from the project's table (`prices.json`) and a file of the user's that overrides it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from mulligan.errors import DeclarationError
from mulligan.model_name import ModelName
from mulligan.schema.optional_field import optional_field
from mulligan.values import Usage

PER = 1_000_000
"""The number of tokens that a price is for."""
_DATED = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{4}|\d{8}|latest)")
"""The suffix of a model's version. With any other suffix (`-pro`, `-mini`) it is another model."""

_Usd = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


class Price(BaseModel):
    """USD for a million tokens.

    `cached_input` is the price of input that the provider read from its cache, `cache_write` of input that it wrote to its
    cache; None: the price of other input. `batch` is the part of these prices that a request in a batch costs, `tiers` the
    part, or the multiple, at each of the provider's other service tiers. A tool that a provider runs has a price as
    `provider:NAME`, of its `calls`.
    """

    input: _Usd
    output: _Usd
    cached_input: _Usd | None = optional_field()
    cache_write: _Usd | None = optional_field()
    batch: _Usd = optional_field(0.5)
    tiers: dict[str, _Usd] = optional_field({})
    calls: _Usd | None = optional_field()
    """USD for a thousand calls, of a tool that a provider runs."""

    def of(self, usage: Usage) -> float | None:
        """USD for a usage, at its tier; None: its price is not known. Cached tokens are part of the input, reasoning tokens
        of the output.
        """
        part = {"": 1.0, "batch": self.batch, **self.tiers}.get(usage.tier)
        if part is None:
            return None
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        written = min(usage.cache_write_tokens, usage.input_tokens - cached)
        cost = (usage.input_tokens - cached - written) * self.input + usage.output_tokens * self.output
        cost += cached * (self.input if self.cached_input is None else self.cached_input)
        cost += written * (self.input if self.cache_write is None else self.cache_write)
        return round_usd(cost / PER * part)


class _Table(BaseModel):
    source: str = ""
    date: str = ""
    models: dict[str, Price]


class Prices:
    """The price of each model. A key of the table is `NAME`, for any provider; `provider:NAME`, which comes first; or
    `provider@endpoint:NAME`, which comes before both.
    """

    def __init__(self, models: Mapping[str, Price]) -> None:
        self._models = models

    @classmethod
    def load(cls, file: str = "") -> Prices:
        """Load the project's table. The entries of `file`, if there is one, override it.

        Raises:
            DeclarationError: the file cannot be read, or is not a table of prices.
        """
        shipped = _Table.model_validate_json(files("mulligan").joinpath("prices.json").read_bytes()).models
        return cls({**shipped, **_read(file)} if file else shipped)

    def of(self, model: str) -> Price | None:
        """The price of a model (`provider:NAME`): its own, or that of the model whose dated version it is. None: unknown."""
        parsed = ModelName.parse(model)
        for spelling in dict.fromkeys((str(parsed), f"{parsed.provider}:{parsed.name}", parsed.name)):
            keys = [key for key in self._models if _is_version(spelling, key)]
            if keys:
                return self._models[max(keys, key=len)]
            if parsed.traits.is_free:
                return Price(input=0.0, output=0.0)
        return None

    def of_all(self, models: Iterable[str]) -> dict[str, Price]:
        """The prices of those of the models whose price is known."""
        prices = {model: self.of(model) for model in dict.fromkeys(models)}
        return {model: price for model, price in prices.items() if price is not None}


def cost_of(
    prices: Mapping[str, Price], model: str, usage: Usage, others: Mapping[str, Usage] | None = None
) -> float | None:
    """The cost of a model call in USD; None if a price is unknown.

    `others`: the part of `usage` that other models used, by model.
    """
    own, total = usage, 0.0
    for name, used in (others or {}).items():
        own, price = own - used, prices.get(name)
        cost = price.of(used) if price else None
        if cost is None:
            return None
        total += cost
    price = prices.get(model)
    cost = price.of(own) if price else None
    return None if cost is None else total + cost


def counted_cost(
    prices: Mapping[str, Price], model: str, usage: Usage, others: Mapping[str, Usage] | None = None
) -> float:
    """The USD of a model call that limits count: as `cost_of`, but each part by itself. At a tier of unknown price it counts
    at the standard price; a part whose model has no price counts nothing.
    """
    own, total = usage, 0.0
    for name, used in (others or {}).items():
        own = own - used
        total += _counted_part(prices.get(name), used)
    return total + _counted_part(prices.get(model), own)


def _counted_part(price: Price | None, usage: Usage) -> float:
    if price is None:
        return 0.0
    cost = price.of(usage)
    return (price.of(usage.model_copy(update={"tier": ""})) or 0.0) if cost is None else cost


def cost_of_hosted(price_of: Callable[[str], Price | None], model: str, names: Iterable[str]) -> float:
    """The cost in USD of calls that a model's provider carried out; of those whose price is known.

    Args:
        price_of: The price of a tool, by `provider:NAME`.
        model: The model, `provider:NAME`.
        names: The name of each call.
    """
    provider = ModelName.parse(model).provider
    prices = (price_of(f"{provider}:{name}") for name in names)
    return round_usd(sum((price.calls or 0.0) / 1_000 for price in prices if price is not None))


def round_usd(usd: float) -> float:
    """Round USD to 12 decimal places: a token of the cheapest model costs about 1e-9."""
    return round(usd, 12)


def _is_version(name: str, key: str) -> bool:
    return name == key or (name.startswith(key) and _DATED.fullmatch(name, len(key)) is not None)


def _read(file: str) -> dict[str, Price]:
    try:
        return _Table.model_validate_json(Path(file).read_bytes(), extra="forbid").models
    except OSError as error:
        raise DeclarationError(f"MULLIGAN_PRICES names {file}, which cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in fault["loc"])
        says = f"{where}: {fault['msg'][0].lower()}{fault['msg'][1:]}" if where else fault["msg"]
        form = '{"models": {"gpt-5-mini": {"input": 0.25, "cached_input": 0.025, "output": 2.0}}}'
        raise DeclarationError(
            f"MULLIGAN_PRICES names {file}, which is not a table of prices ({says}); write it like {form}, in USD per "
            "1,000,000 tokens."
        ) from None
