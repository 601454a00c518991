"""Declarations of agents whose models are called in batches, the price of a batch, and the example of docs/batch.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mulligan import Agent, Background, Batch, Say
from mulligan.errors import DeclarationError
from mulligan.model_name import can_be_batched
from mulligan.prices import Price
from mulligan.testing import ScriptedModel, run_agent
from mulligan.values import Usage

PAGE = (Path(__file__).parent.parent.parent / "docs/batch.md").read_text()


async def test_the_example_of_the_page_is_declared_and_other_models_answer_at_once() -> None:
    """A test's scripted model has no batches, so the agent is tested as any other, and without a storage."""
    page: dict[str, Agent] = {}
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/batch.md", "exec", dont_inherit=True), page)
    assert page["clerk"].feature(Batch)
    run = await run_agent(page["clerk"], "A letter.", model=ScriptedModel(Say("A complaint.")))
    assert run.output == "A complaint."


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"model": "scripted:x"}, "Batch is for models of 'openai:' and 'openai-chat:'"),
        ({"model": ["anthropic:claude", "google:gemini"]}, "'anthropic:claude', 'google:gemini'"),
        ({"model": "openai:gpt-5", "features": [Batch(), Background()]}, "Batch and Background are both features"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(options: dict[str, object], fault: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(fault)):
        Agent(**{"name": "a", "features": [Batch()], **options})  # type: ignore[arg-type]


def test_models_of_openai_and_of_its_endpoints_can_be_called_in_batches() -> None:
    models = ("openai:m", "openai@eu:m", "openai-chat:m", "google:m", "scripted:m")
    assert [model for model in models if can_be_batched([model])] == ["openai:m", "openai@eu:m", "openai-chat:m"]
    assert can_be_batched(["google:m", "openai:m"])


def test_a_batch_costs_half_unless_the_price_says_otherwise() -> None:
    usage = Usage(input_tokens=1_000_000, output_tokens=1_000_000, cached_input_tokens=500_000)
    price = Price(input=2, output=8, cached_input=1)
    assert (price.of(usage), price.of(usage.model_copy(update={"tier": "batch"}))) == (9.5, 4.75)
    assert Price(input=2, output=8, batch=0.75).of(Usage(input_tokens=1_000_000, tier="batch")) == 1.5
