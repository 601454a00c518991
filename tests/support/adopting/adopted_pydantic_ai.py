"""Agents with the structure of examples in pydantic-ai's repository and documentation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import MinLen
from pydantic import BaseModel, Field
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    ModelRetry,
    NativeOutput,
    RunContext,
    TextOutput,
    ToolOutput,
    UnexpectedModelBehavior,
)
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.tools import DeferredToolResults, Tool, ToolDefinition, ToolDenied
from pydantic_ai.toolsets import FunctionToolset

from tests.support.adopting.adopted_example import DENIED, Example
from tests.support.openai_turn import Turn


def call(name: str, arguments: Any, id: str = "call_1") -> Turn:  # noqa: A002
    return Turn(calls=[(name, json.dumps(arguments), id)])


@dataclass
class Bank:
    customer: str
    balance: float


class SupportOutput(BaseModel):
    support_advice: str
    """Advice returned to the customer"""
    block_card: bool
    risk: int


support = Agent(
    name="support", deps_type=Bank, output_type=SupportOutput, instructions="You are a support agent in our bank."
)


@support.instructions
async def customer_name(ctx: RunContext[Bank]) -> str:
    return f"The customer's name is {ctx.deps.customer!r}"


@support.tool
async def customer_balance(ctx: RunContext[Bank], include_pending: bool) -> str:
    """Returns the customer's current account balance."""
    return f"${ctx.deps.balance:.2f} {include_pending}"


@dataclass
class Wheel:
    winning_number: int


roulette = Agent(
    name="roulette", deps_type=Wheel, retries=3, output_type=bool, system_prompt="Use the `roulette_wheel`."
)


@roulette.tool
async def roulette_wheel(ctx: RunContext[Wheel], square: int) -> Literal["winner", "loser"]:
    """Check if the bet square is a winner.

    Args:
        ctx: The context containing the winning number.
        square: The number the player bet on.
    """
    return "winner" if square == ctx.deps.winning_number else "loser"


class Success(BaseModel):
    """Response when SQL could be successfully generated."""

    sql_query: Annotated[str, MinLen(1)]
    explanation: str = Field("", description="Explanation of the SQL query, as markdown")


class InvalidRequest(BaseModel):
    """Response the user input didn't include enough information to generate SQL."""

    error_message: str


sql = Agent(name="sql", output_type=[Success, InvalidRequest])


@sql.system_prompt
async def schema_prompt() -> str:
    return "Write a SQL query. Schema: records(level text)."


@sql.output_validator
async def validate_output(ctx: RunContext[None], output: Success | InvalidRequest) -> Success | InvalidRequest:
    if isinstance(output, InvalidRequest):
        return output
    output.sql_query = output.sql_query.replace("\\", "")
    if not output.sql_query.upper().startswith("SELECT"):
        raise ModelRetry("Please create a SELECT query")
    return output


class LatLng(BaseModel):
    lat: float
    lng: float


weather = Agent(name="weather", instructions="Be concise, reply with one sentence.", retries=2)


@weather.tool_plain
async def get_lat_lng(location_description: str) -> LatLng:
    """Get the latitude and longitude of a location.

    Args:
        location_description: A description of a location.
    """
    return LatLng(lat=51.1, lng=-0.1)


@weather.tool_plain
def get_weather(lat: float, lng: float) -> dict[str, Any]:
    """Get the weather at a location.

    Args:
        lat: Latitude of the location.
        lng: Longitude of the location.
    """
    return {"temperature": "21 °C", "description": f"Sunny at {lat}"}


class Box(BaseModel):
    width: int
    units: str


box = Agent(name="box", output_type=[Box, str], instructions="Extract me the dimensions of a box.")
colors = Agent(name="colors", output_type=[list[str], list[int]], instructions="Extract colors or sizes.")


class SQLFailure(BaseModel):
    """An unrecoverable failure."""

    explanation: str


def run_sql_query(query: str) -> list[Box]:
    """Run a SQL query on the database."""
    if "*" not in query:
        raise ModelRetry("Only 'SELECT *' is supported.")
    return [Box(width=1, units=query)]


queries = Agent(name="queries", output_type=[run_sql_query, SQLFailure], instructions="You are a SQL agent.")


def split_into_words(text: str) -> list[str]:
    return text.split()


words = Agent(name="words", output_type=TextOutput(split_into_words))


class Fruit(BaseModel):
    name: str
    color: str


class Vehicle(BaseModel):
    name: str
    wheels: int


fruit = Agent(
    name="fruit", output_type=[ToolOutput(Fruit, name="return_fruit"), ToolOutput(Vehicle, name="return_vehicle")]
)
native = Agent(name="native", output_type=NativeOutput(Fruit, name="Fruit"))

users = {"John Doe": 123}
lookup = Agent(name="lookup", deps_type=Bank)


@lookup.tool(retries=2)
def get_user_by_name(ctx: RunContext[Bank], name: str) -> int:
    """Get a user's ID from their full name."""
    if name not in users:
        raise ModelRetry(f"No user found with name {name!r}, remember to provide their full name")
    return users[name]


async def only_if_42(ctx: RunContext[int], tool_def: ToolDefinition) -> ToolDefinition | None:
    return tool_def if ctx.deps == 42 else None


def hitchhiker(answer: str) -> str:
    """Say it.

    Args:
        answer: The answer.
    """
    return f"42: {answer}"


def greet(name: str) -> str:
    """Greet."""
    return f"hello {name}"


def prepared(name: str) -> Agent[int, str]:
    return Agent(name=name, deps_type=int, tools=[Tool(hitchhiker, prepare=only_if_42), greet])


datetime_toolset: FunctionToolset[None] = FunctionToolset([greet])
toolsets = Agent(
    name="toolsets", toolsets=[datetime_toolset.prefixed("polite"), datetime_toolset.renamed({"salute": "greet"})]
)


@toolsets.toolset
def of_this_run(ctx: RunContext[Any]) -> FunctionToolset[Any] | None:
    return FunctionToolset([hitchhiker]) if ctx.deps else None


payer = Agent(name="payer", output_type=[str, DeferredToolRequests])


@payer.tool_plain(requires_approval=True)
def pay(to: str) -> str:
    """Pay."""
    return to


haiku = Agent(
    name="haiku", instructions=["Be concise.", "Reply with one sentence."], model_settings={"temperature": 0.2}
)

EXAMPLES = [
    Example(name="index.md: hello world", agent=haiku, prompt="Where does it come from?", turns=[Turn("C.")]),
    Example(
        name="bank_support",
        agent=support,
        prompt="What is my balance?",
        turns=[
            call("customer_balance", {"include_pending": True}),
            call("final_result", {"support_advice": "$123.45", "block_card": False, "risk": 1}, "call_2"),
        ],
        context=Bank("John", 123.45),
    ),
    Example(
        name="roulette_wheel",
        agent=roulette,
        prompt="Put my money on square eighteen",
        turns=[call("roulette_wheel", {"square": 18}), call("final_result", {"response": True}, "call_2")],
        context=Wheel(18),
    ),
    Example(
        name="sql_gen: the validator refuses the first answer",
        agent=sql,
        prompt="show me errors",
        turns=[
            call("final_result_Success", {"sql_query": "DROP x", "explanation": ""}),
            call("final_result_Success", {"sql_query": "SELECT \\* FROM records"}, "call_2"),
        ],
    ),
    Example(
        name="sql_gen: the other output",
        agent=sql,
        prompt="show",
        turns=[call("final_result_InvalidRequest", {"error_message": "What?"})],
    ),
    Example(
        name="sql_gen: after its retries the run fails",
        agent=sql,
        prompt="drop",
        turns=[call("final_result_Success", {"sql_query": f"DROP {n}"}, f"call_{n}") for n in range(3)],
        ends="failed",
    ),
    Example(
        name="weather_agent",
        agent=weather,
        prompt="What is the weather in London?",
        turns=[
            call("get_lat_lng", {"location_description": "London"}),
            call("get_weather", {"lat": 51.1, "lng": -0.1}, "call_2"),
            Turn("Sunny."),
        ],
    ),
    Example(name="output.md: box_or_error, text", agent=box, prompt="10x20", turns=[Turn("Please say the units.")]),
    Example(
        name="output.md: box_or_error, object",
        agent=box,
        prompt="10 cm",
        turns=[call("final_result", {"width": 10, "units": "cm"})],
    ),
    Example(
        name="output.md: colors_or_sizes",
        agent=colors,
        prompt="square size 10",
        turns=[call("final_result_list_2", {"response": [10, 20]})],
    ),
    Example(
        name="output.md: output functions",
        agent=queries,
        prompt="Select all",
        turns=[
            call("final_result_run_sql_query", {"query": "SELECT name"}),
            call("final_result_run_sql_query", {"query": "SELECT *"}, "call_2"),
        ],
    ),
    Example(name="output.md: text_output_function", agent=words, prompt="Who?", turns=[Turn("Albert Einstein was")]),
    Example(
        name="output.md: tool_output",
        agent=fruit,
        prompt="What is a banana?",
        turns=[call("return_fruit", {"name": "banana", "color": "yellow"})],
    ),
    Example(
        name="output.md: native_output",
        agent=native,
        prompt="A banana",
        turns=[Turn('{"name": "banana", "color": "yellow"}')],
    ),
    Example(
        name="tools.md: ModelRetry",
        agent=lookup,
        prompt="Send a message to John",
        turns=[
            call("get_user_by_name", {"name": "John"}),
            call("get_user_by_name", {"name": "John Doe"}, "call_2"),
            Turn("Sent."),
        ],
        context=Bank("John", 1),
    ),
    Example(
        name="tools-advanced.md: prepare, with the tool",
        agent=prepared("prepared"),
        prompt="Say it",
        turns=[call("hitchhiker", {"answer": "yes"}), Turn("Said.")],
        context=42,
    ),
    Example(
        name="tools-advanced.md: prepare, without it",
        agent=prepared("unprepared"),
        prompt="Greet",
        turns=[call("greet", {"name": "Ada"}), Turn("Done.")],
        context=41,
    ),
    Example(
        name="toolsets.md: prefixed, renamed, of this run",
        agent=toolsets,
        prompt="Greet",
        turns=[call("polite_greet", {"name": "Ada"}), call("salute", {"name": "Bob"}, "call_2"), Turn("Done.")],
        context=1,
    ),
    Example(
        name="deferred-tools.md: a person says no",
        agent=payer,
        prompt="Pay Ada.",
        turns=[call("pay", {"to": "Ada"}), Turn("I did not.")],
        denies=True,
    ),
]


def fresh_clients() -> None:
    """Each run has a client of its own."""


async def run(example: Example, model: str) -> Any:
    """Run an example by pydantic-ai's own loop."""
    settings: Any = {"openai_store": False}
    options: Any = {"deps": example.context, "model": OpenAIResponsesModel(model), "model_settings": settings}
    try:
        ran = await example.agent.run(example.prompt, **options)
        if isinstance(ran.output, DeferredToolRequests):
            answers: Any = {
                each.tool_call_id: ToolDenied(DENIED.format(tool=each.tool_name)) for each in ran.output.approvals
            }
            said = DeferredToolResults(approvals=answers)
            ran = await example.agent.run(message_history=ran.all_messages(), deferred_tool_results=said, **options)
    except UnexpectedModelBehavior:
        return "failed"
    return ran.output
