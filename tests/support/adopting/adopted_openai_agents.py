"""Agents with the structure of examples in openai-agents' repository and documentation."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any

from agents import (
    Agent,
    AgentOutputSchema,
    AgentOutputSchemaBase,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    ModelSettings,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    Runner,
    WebSearchTool,
    function_tool,
    handoff,
    input_guardrail,
    output_guardrail,
    set_default_openai_client,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

from tests.support.adopting.adopted_example import DENIED, Example
from tests.support.openai_turn import Turn

set_tracing_disabled(True)


def call(name: str, arguments: Any, id: str = "call_1") -> Turn:  # noqa: A002
    return Turn(calls=[(name, json.dumps(arguments), id)])


class Weather(BaseModel):
    city: str = Field(description="The city name")
    temperature_range: str = Field(description="The temperature range in Celsius")


@function_tool
def get_weather(city: Annotated[str, "The city to get the weather for"], days: int) -> str:
    """Get the current weather information for a specified city."""
    return f"{city}: 14-20C for {days} days"


@dataclass
class Style:
    style: str


def by_style(context: RunContextWrapper[Style], agent: Agent[Style]) -> str:
    return f"{agent.name}: respond as a {context.context.style}."


class Verdict(BaseModel):
    reasoning: str
    is_math_homework: bool


judge = Agent(name="Guardrail check", instructions="Is it math homework?", output_type=Verdict)


@input_guardrail(run_in_parallel=False)
async def math_guardrail(context: RunContextWrapper[None], agent: Agent, asked: Any) -> GuardrailFunctionOutput:
    config = RunConfig(model="gpt-test", model_settings=ModelSettings(store=False))
    result = await Runner.run(judge, asked, context=context.context, run_config=config)
    verdict = result.final_output_as(Verdict)
    return GuardrailFunctionOutput(output_info=verdict, tripwire_triggered=verdict.is_math_homework)


class Reply(BaseModel):
    reasoning: str = Field(description="Thoughts on how to respond")
    response: str
    user_name: str | None


@output_guardrail
def sensitive_data_check(context: RunContextWrapper, agent: Agent, output: Reply) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="650" in output.response)


@dataclass
class Jokes:
    jokes: dict[int, str]


class ListOfJokes(AgentOutputSchemaBase):
    def is_plain_text(self) -> bool:
        return False

    def name(self) -> str:
        return "ListOfJokes"

    def json_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"jokes": {"type": "object", "properties": {"joke": {"type": "string"}}}},
        }

    def is_strict_json_schema(self) -> bool:
        return False

    def validate_json(self, json_str: str) -> Any:
        return list(json.loads(json_str)["jokes"].values())


class Airline(BaseModel):
    seat_number: str | None = None
    passenger_name: str = "Ada"


@function_tool(name_override="faq_lookup_tool", description_override="Lookup frequently asked questions.")
async def faq_lookup_tool(question: str) -> str:
    return "One bag of 50 pounds." if "bag" in question else "I don't know."


@function_tool
async def update_seat(context: RunContextWrapper[Airline], confirmation_number: str, new_seat: str) -> str:
    """
    Update the seat for a given confirmation number.

    Args:
        confirmation_number: The confirmation number for the flight.
        new_seat: The new seat to update to.
    """
    return f"{context.context.passenger_name}: seat {new_seat} for {confirmation_number}"


async def on_seat_booking(context: RunContextWrapper[Airline]) -> None:
    del context


faq_agent = Agent[Airline](
    name="FAQ Agent", handoff_description="Answers questions about the airline.", tools=[faq_lookup_tool]
)
seat_agent = Agent[Airline](name="Seat Booking Agent", handoff_description="Updates a seat.", tools=[update_seat])
triage_agent = Agent[Airline](
    name="Triage Agent",
    instructions="Delegate questions.",
    handoffs=[
        handoff(agent=faq_agent, tool_name_override="transfer_to_faq_agent"),
        handoff(agent=seat_agent, on_handoff=on_seat_booking, tool_name_override="transfer_to_seat_booking_agent"),
    ],
)
faq_agent.handoffs.append(handoff(agent=triage_agent, tool_name_override="transfer_to_triage_agent"))
seat_agent.handoffs.append(handoff(agent=triage_agent, tool_name_override="transfer_to_triage_agent"))

french_agent = Agent(name="french_agent", instructions="You only speak French")
spanish_agent = Agent(name="spanish_agent", instructions="You only speak Spanish")
router = Agent(name="router", instructions="Handoff by the language.", handoffs=[french_agent, spanish_agent])


@dataclass
class App:
    languages: str


def european(ctx: RunContextWrapper[App], agent: Any) -> bool:
    return ctx.context.languages == "european"


def greet(word: str) -> Any:
    @function_tool(name_override=f"greet_{word}", is_enabled=european if word != "hola" else True)
    def greeting(name: str) -> str:
        """Greet in a language."""
        return f"{word} {name}"

    return greeting


polyglot = Agent(name="polyglot", instructions="Greet.", tools=[greet("hola"), greet("bonjour"), greet("ciao")])


def told(context: RunContextWrapper[Any], error: Exception) -> str:
    return f"It failed: {error}"


@function_tool(failure_error_function=told)
def divide(a: int, b: int) -> float:
    """Divide."""
    return a / b


@function_tool
def unlucky(number: int) -> str:
    """Fail."""
    raise ValueError(f"{number} is secret")


@function_tool(strict_mode=False)
def search(query: str, limit: int = 5, tags: dict[str, str] | None = None) -> str:
    """Search."""
    return f"{query} {limit} {tags}"


@function_tool(needs_approval=True, failure_error_function=None)
def pay(to: str) -> str:
    """Pay."""
    return to


class Plan(BaseModel):
    searches: list[Weather]


def nested(body: dict[str, Any], nth: int) -> Turn:
    """The answers of an agent, and of the one behind its tool or its guardrail."""
    instructions = body.get("instructions") or ""
    if "homework" in instructions:
        is_math = "2x" in json.dumps(body["input"])
        return Turn(json.dumps({"reasoning": "r", "is_math_homework": is_math}))
    if "translate to Spanish" in instructions:
        return Turn("Hola.")
    if "translation agent" in instructions:
        return [call("translate_to_spanish", {"input": "Hello."}), Turn("It is: Hola.")][nth]
    return Turn("Sacramento.")


supporter = Agent(name="support", instructions="You are a customer support agent.", input_guardrails=[math_guardrail])
assistant = Agent(name="Assistant", output_type=Reply, output_guardrails=[sensitive_data_check])
hola = Agent(
    name="spanish_translator",
    instructions="You translate to Spanish.",
    model="gpt-test",
    model_settings=ModelSettings(store=False),
)
translator = Agent(
    name="orchestrator",
    instructions="You are a translation agent.",
    tools=[hola.as_tool(tool_name="translate_to_spanish", tool_description="Translate to Spanish")],
)


def two_jokes(body: dict[str, Any], nth: int) -> Turn:
    """As the request's schema wants it: openai-agents wraps dataclasses."""
    jokes = {"jokes": {"1": "a", "2": "b"}}
    is_wrapped = "response" in body["text"]["format"]["schema"]["properties"]
    return Turn(json.dumps({"response": jokes} if is_wrapped else jokes))


def answer(response: str) -> Turn:
    return Turn(json.dumps({"reasoning": "r", "response": response, "user_name": None}))


EXAMPLES = [
    Example(
        name="basic/hello_world",
        agent=Agent(name="Haiku", instructions="Only haikus."),
        prompt="Hi",
        turns=[Turn("Ok.")],
    ),
    Example(
        name="basic/tools",
        agent=Agent(name="Hello world", instructions="You are a helpful agent.", tools=[get_weather]),
        prompt="What's the weather in Tokyo?",
        turns=[call("get_weather", {"city": "Tokyo", "days": 2}), Turn("Sunny.")],
    ),
    Example(
        name="basic/dynamic_system_prompt",
        agent=Agent[Style](name="Chat agent", instructions=by_style),
        prompt="Tell me a joke.",
        turns=[Turn("Arr.")],
        context=Style("pirate"),
    ),
    Example(
        name="basic/non_strict_output_type: AgentOutputSchema",
        agent=Agent(name="Joker", output_type=AgentOutputSchema(Jokes, strict_json_schema=False)),
        prompt="Tell me 2 jokes.",
        turns=two_jokes,
    ),
    Example(
        name="basic/non_strict_output_type: a schema of one's own",
        agent=Agent(name="Joker 2", output_type=ListOfJokes()),
        prompt="Tell me 2 jokes.",
        turns=two_jokes,
    ),
    Example(
        name="agent_patterns/input_guardrails: it trips",
        agent=supporter,
        prompt="Solve 2x + 5 = 11",
        turns=nested,
        ends="refused",
    ),
    Example(
        name="agent_patterns/input_guardrails: it does not",
        agent=supporter,
        prompt="What's the capital of California?",
        turns=nested,
    ),
    Example(
        name="agent_patterns/output_guardrails: it does not", agent=assistant, prompt="Hi", turns=[answer("Hello.")]
    ),
    Example(
        name="agent_patterns/output_guardrails: it trips",
        agent=assistant,
        prompt="My number is 650.",
        turns=[answer("I call 650-123.")],
        ends="refused",
    ),
    Example(
        name="agent_patterns/routing",
        agent=router,
        prompt="Bonjour",
        turns=[call("transfer_to_french_agent", {}), Turn("Salut.")],
    ),
    Example(
        name="customer_service: to the seats",
        agent=triage_agent,
        prompt="I want another seat.",
        turns=[
            call("transfer_to_seat_booking_agent", {}),
            call("update_seat", {"confirmation_number": "X1", "new_seat": "4A"}, "call_2"),
            Turn("Done."),
        ],
        context=Airline(),
    ),
    Example(
        name="customer_service: there and back",
        agent=triage_agent,
        prompt="May I bring a bag?",
        turns=[
            call("transfer_to_faq_agent", {}),
            call("faq_lookup_tool", {"question": "bag"}, "call_2"),
            call("transfer_to_triage_agent", {}, "call_3"),
            Turn("One bag."),
        ],
        context=Airline(),
    ),
    Example(
        name="agent_patterns/agents_as_tools_conditional: is_enabled",
        agent=polyglot,
        prompt="Greet Ada in French.",
        turns=[call("greet_bonjour", {"name": "Ada"}), Turn("Done.")],
        context=App("european"),
    ),
    Example(
        name="agent_patterns/agents_as_tools_conditional: not enabled",
        agent=dataclasses.replace(polyglot, name="spaniard"),
        prompt="Greet Ada.",
        turns=[call("greet_hola", {"name": "Ada"}), Turn("Done.")],
        context=App("spanish_only"),
    ),
    Example(name="agent_patterns/agents_as_tools", agent=translator, prompt="Translate Hello.", turns=nested),
    Example(
        name="tools.md: failure_error_function",
        agent=Agent(name="Divider", tools=[divide, unlucky]),
        prompt="Divide",
        turns=[call("divide", {"a": 1, "b": 0}), call("unlucky", {"number": 13}, "call_2"), Turn("No.")],
    ),
    Example(
        name="human_in_the_loop.md: a person says no",
        agent=Agent(name="Payer", tools=[pay]),
        prompt="Pay Ada.",
        turns=[call("pay", {"to": "Ada"}), Turn("I did not.")],
        denies=True,
    ),
    Example(
        name="tools.md: strict_mode=False",
        agent=Agent(name="Searcher", tools=[search]),
        prompt="Search",
        turns=[call("search", {"query": "x"}), Turn("Found.")],
    ),
    Example(
        name="tools/web_search, with model settings",
        agent=Agent(
            name="Web searcher",
            instructions="You search.",
            tools=[WebSearchTool(user_location={"type": "approximate", "city": "New York"})],
            model_settings=ModelSettings(temperature=0.5, top_p=0.9, max_tokens=500),
        ),
        prompt="Search the web.",
        turns=[Turn("Found.")],
    ),
    Example(
        name="financial_research_agent: the planner's nested output",
        agent=Agent(name="Planner", instructions="Plan.", output_type=Plan),
        prompt="Plan",
        turns=[Turn('{"searches": [{"city": "Rome", "temperature_range": "9-12"}]}')],
    ),
]


def fresh_clients() -> None:
    """A client of OpenAI's belongs to the event loop that has used it."""
    set_default_openai_client(AsyncOpenAI(), use_for_tracing=False)


async def run(example: Example, model: str) -> Any:
    """Run an example by openai-agents' own runner."""
    config = RunConfig(model=model, model_settings=ModelSettings(store=False), tracing_disabled=True)
    try:
        result = await Runner.run(example.agent, example.prompt, context=example.context, run_config=config)
        while result.interruptions:
            state = result.to_state()
            for each in result.interruptions:
                state.reject(each, rejection_message=DENIED.format(tool=each.name))
            result = await Runner.run(example.agent, state, run_config=config)
    except (InputGuardrailTripwireTriggered, OutputGuardrailTripwireTriggered) as tripped:
        return f"refused by {tripped.guardrail_result.guardrail.get_name()}"
    return result.final_output
