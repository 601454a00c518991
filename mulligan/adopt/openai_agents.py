"""An agent of openai-agents as Mulligan's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import agents as sdk
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from agents.models.default_models import get_default_model
from agents.tool_context import ToolContext as CallContext
from pydantic import BaseModel

from mulligan.adopt import openai_agents_privates as privates
from mulligan.adopt.terms import Terms, again, called, failing_on, guardrails, mcp_server, refuse, warn
from mulligan.agent import Agent
from mulligan.content import Image, Text
from mulligan.mcp import McpServer
from mulligan.output import ProviderStrategy
from mulligan.provider_tool import ProviderTool
from mulligan.run_input import RunInput
from mulligan.schema.schema_arguments import SchemaArguments
from mulligan.schema.subschemas import with_changed_parts
from mulligan.tool import Tool, ToolContext, ToolError
from mulligan.values import AssistantMessage, Message, ToolMessage

_HOSTED = (
    sdk.WebSearchTool,
    sdk.FileSearchTool,
    sdk.CodeInterpreterTool,
    sdk.ImageGenerationTool,
    sdk.HostedMCPTool,
)
_SAME = (
    *("temperature", "top_p", "truncation", "metadata", "top_logprobs", "prompt_cache_retention", "context_management"),
    "prompt_cache_options",
)
"""Settings that the Responses API has by the same name."""
_RENAMED = {"max_tokens": "max_output_tokens", "response_include": "include"}
_OF_CHAT = (
    *("temperature", "top_p", "frequency_penalty", "presence_penalty", "metadata", "top_logprobs", "max_tokens"),
    "verbosity",
)
"""Settings that Chat Completions have by the same name."""
_LEFT_OUT = {
    "retry": "Mulligan retries model calls by `model_patience` and `model_attempts`",
    "store": "Mulligan keeps the conversation itself, and stores nothing at the provider",
}
"""Settings that are left out without harm, with the reason."""
_REFUSED_SETTINGS = ("extra_headers", "extra_query")
AGENT_TOOL_SECONDS = 300.0
"""The timeout of an agent as a tool, which works within one call."""


def adopted(agent: sdk.Agent[Any], terms: Terms) -> Agent[Any]:
    """The agent as Mulligan's.

    Raises:
        DeclarationError: a part of it cannot be carried over.
    """
    refuse(agent.name, _reasons(agent, terms))
    _warn(agent)
    settings = agent.model_settings
    model = terms.model or _model(agent)
    output, validators = _output(agent)
    functions = _Functions(agent, terms)
    options: dict[str, Any] = {}
    if getattr(settings, "timeout", None) is not None:
        options["model_timeout"] = settings.timeout
    return Agent(
        name=agent.name,
        description=agent.handoff_description or "",
        model=model,
        instructions=functions.instructions if callable(agent.instructions) else agent.instructions or "",
        tools=functions.tools(),
        mcp=[_mcp_server(each) for each in agent.mcp_servers],
        handoffs=[terms.other(each) for each in _targets(agent)],
        output=output,
        features=guardrails(
            agent.name,
            input=[functions.input_guardrail(each) for each in agent.input_guardrails],
            output=[functions.output_guardrail(each) for each in agent.output_guardrails],
            validators=validators,
        ),
        parallel_tool_calls=settings.parallel_tool_calls is not False,
        model_settings=_settings(settings, is_chat=model.startswith("openai-chat")),
        **options,
    )


def _reasons(agent: sdk.Agent[Any], terms: Terms) -> Iterator[str]:
    """What of the agent cannot be carried over, as sentences."""
    settings = agent.model_settings
    if agent.prompt is not None:
        yield "Its prompt is kept at OpenAI: write it as instructions."
    if agent.tool_use_behavior != "run_llm_again":
        yield "Its tool_use_behavior ends a run with a tool's result: Mulligan returns results to the model."
    if settings.tool_choice not in (None, "auto", "none"):
        yield f"Its tool_choice {settings.tool_choice!r} would hold for each step of the run: leave it out."
    for name in filter(lambda each: getattr(settings, each), _REFUSED_SETTINGS):
        yield f"Its setting {name} is part of no request of Mulligan's: leave it out."
    if terms.model is None and not _is_of_openai(agent.model):
        yield f"Its model {getattr(agent.model, 'model', agent.model)!r} is not one of OpenAI's: give adopt(…, model=…)."
    for tool in agent.tools:
        yield from _reasons_of_tool(tool)
    for server in agent.mcp_servers:
        if not isinstance(server, MCPServerStdio | MCPServerStreamableHttp):
            yield f"Its MCP server {server.name!r} is a {type(server).__name__}: use MCPServerStreamableHttp."
        elif callable(server.tool_filter):
            yield f"The tool_filter of its MCP server {server.name!r} is a function: use create_static_tool_filter."
    for handoff in filter(_is_handoff, agent.handoffs):
        yield from _reasons_of_handoff(handoff)


def _is_handoff(target: Any) -> bool:
    return isinstance(target, sdk.Handoff)


def _reasons_of_tool(tool: Any) -> Iterator[str]:
    if isinstance(tool, sdk.FunctionTool):
        if tool.tool_input_guardrails or tool.tool_output_guardrails:
            yield f"Its tool {tool.name!r} has guardrails of its own: check in the function, or by `guard`."
    elif not isinstance(tool, _HOSTED):
        yield f"Its tool {tool.name!r} is a {type(tool).__name__}, which Mulligan does not run: use a function."
    elif isinstance(tool, sdk.HostedMCPTool) and tool.on_approval_request is not None:
        yield "Its HostedMCPTool has on_approval_request: use an MCP server of the agent whose calls need approval."


def _reasons_of_handoff(handoff: sdk.Handoff[Any, Any]) -> Iterator[str]:
    name, place = handoff.tool_name, "Its handoff"
    if privates.target_of(handoff) is None:
        yield f"{place} {name!r} chooses its agent by a function: give the agent, or handoff(agent)."
    if handoff.input_filter is not None:
        yield f"{place} {name!r} has an input_filter: with Mulligan, the next agent has read all that was said."
    if handoff.input_json_schema.get("properties"):
        yield f"{place} {name!r} has an input_type: the tool of a handoff has no arguments."
    if callable(handoff.is_enabled):
        yield f"{place} {name!r} has an is_enabled that is a function: give True or False."


def _warn(agent: sdk.Agent[Any]) -> None:
    if agent.hooks is not None:
        warn(agent.name, "its hooks are not called; events and spans tell what they would.")
    if isinstance(agent.model, sdk.OpenAIResponsesModel | sdk.OpenAIChatCompletionsModel):
        warn(agent.name, "the client of its model is not used; OPENAI_BASE_URL and OPENAI_API_KEY apply.")
    for name, why in _LEFT_OUT.items():
        if getattr(agent.model_settings, name, None) is not None:
            warn(agent.name, f"its setting {name} is left out: {why}.")
    for each in filter(_is_handoff, agent.handoffs):
        if privates.on_handoff_of(each) is not None:
            warn(agent.name, f"on_handoff of {each.tool_name!r} is not called; there is the event `handed_over`.")
    for tool in filter(lambda each: isinstance(each, sdk.FunctionTool), agent.tools):
        if tool.timeout_error_function is not None:
            warn(
                agent.name,
                f"the timeout_error_function of {tool.name!r} is not called; Mulligan says which time has passed.",
            )
        if privates.agent_of_tool(tool) is not None:
            warn(
                agent.name,
                f"the agent behind the tool {tool.name!r} works by openai-agents' Runner, within one call, and is not "
                "durable; for runs of its own: adopt(…).as_tool(…).",
            )


def _is_of_openai(model: Any) -> bool:
    if isinstance(model, str):
        return "/" not in model or model.startswith("openai/")
    return model is None or isinstance(model, sdk.OpenAIResponsesModel | sdk.OpenAIChatCompletionsModel)


def _model(agent: sdk.Agent[Any]) -> str:
    model = agent.model
    if isinstance(model, sdk.OpenAIChatCompletionsModel):
        return f"openai-chat:{model.model}"
    name = model if isinstance(model, str) else getattr(model, "model", None) or get_default_model()
    return f"openai:{str(name).removeprefix('openai/')}"


def _settings(settings: sdk.ModelSettings, *, is_chat: bool) -> dict[str, Any]:
    """The settings of model calls, by the names of the API."""
    names = {name: name for name in (_OF_CHAT if is_chat else _SAME)} | ({} if is_chat else _RENAMED)
    sent = {ours: _plain(value) for name, ours in names.items() if (value := getattr(settings, name, None)) is not None}
    if settings.tool_choice is not None:
        sent["tool_choice"] = settings.tool_choice
    reasoning = settings.reasoning
    if reasoning is not None and is_chat:
        sent |= {"reasoning_effort": reasoning.effort} if reasoning.effort else {}
    elif reasoning is not None:
        sent["reasoning"] = _plain(reasoning)
    if settings.verbosity is not None and not is_chat:
        sent["text"] = {"verbosity": settings.verbosity}
    if isinstance(settings.extra_body, Mapping):
        sent |= settings.extra_body
    return sent | dict(settings.extra_args or {})


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else value


def _targets(agent: sdk.Agent[Any]) -> list[Any]:
    enabled = [each for each in agent.handoffs if not (_is_handoff(each) and each.is_enabled is False)]
    return [privates.target_of(each) if _is_handoff(each) else each for each in enabled]


def _output(agent: sdk.Agent[Any]) -> tuple[ProviderStrategy[Any] | None, list[Callable[..., Any]]]:
    """The output, which the provider makes the model write; and a validator, where a schema of the user's reads it."""
    kind = agent.output_type
    if isinstance(kind, sdk.AgentOutputSchema):
        kind = kind.output_type
    if kind is None or kind is str:
        return None, []
    if not isinstance(kind, sdk.AgentOutputSchemaBase):
        return ProviderStrategy(kind), []
    if kind.is_plain_text():
        return None, []
    schema = kind

    def validate_json(output: Any, ctx: ToolContext) -> Any:
        del ctx
        try:
            return schema.validate_json(json.dumps(output))
        except sdk.ModelBehaviorError as error:
            raise again(str(error)) from error

    return ProviderStrategy({"title": schema.name(), **schema.json_schema()}), [validate_json]


def _mcp_server(server: Any) -> McpServer:
    params: dict[str, Any] = dict(server.params)
    offered = server.tool_filter or {}
    include, exclude = offered.get("allowed_tool_names"), offered.get("blocked_tool_names") or ()
    options: dict[str, Any] = {"include": include, "exclude": exclude}
    if server.client_session_timeout_seconds:
        options["timeout"] = server.client_session_timeout_seconds
    if isinstance(server, MCPServerStdio):
        program = {"command": [params["command"], *params.get("args", [])], "env": params.get("env") or {}}
        options |= program | {"cwd": params.get("cwd")}
    else:
        options |= {"url": params["url"], "headers": params.get("headers") or {}}
    return mcp_server({"name": server.name, **options})


class _Functions:
    """The functions of an agent, as Mulligan calls them."""

    def __init__(self, agent: sdk.Agent[Any], terms: Terms) -> None:
        self._agent, self._terms = agent, terms

    async def instructions(self, run_input: RunInput, ctx: ToolContext) -> Any:
        """What the agent's function of instructions returns."""
        del run_input
        assert callable(self._agent.instructions)
        return await called(self._agent.instructions, await self._context(ctx), self._agent)

    def tools(self) -> Any:
        """The tools; a function where it depends on the run which of them are enabled."""
        tools = [(self._tool(each), getattr(each, "is_enabled", True)) for each in self._agent.tools]
        if not any(callable(is_enabled) for _, is_enabled in tools):
            return [tool for tool, is_enabled in tools if is_enabled]

        async def enabled_tools(run_input: RunInput, ctx: ToolContext) -> list[Tool | ProviderTool]:
            del run_input
            context = await self._context(ctx)
            asked = [await called(each, context, self._agent) if callable(each) else each for _, each in tools]
            return [tool for (tool, _), is_enabled in zip(tools, asked, strict=True) if is_enabled]

        return enabled_tools

    def input_guardrail(self, guardrail: sdk.InputGuardrail[Any]) -> Callable[..., Any]:
        """An input guardrail, which gets the text of a first prompt, or the items of the conversation."""
        in_thread = replace(guardrail, guardrail_function=partial(called, guardrail.guardrail_function))

        async def check(messages: list[Message], ctx: ToolContext) -> str | None:
            ran = await in_thread.run(self._agent, _input(messages), await self._context(ctx))
            return _TRIPPED if ran.output.tripwire_triggered else None

        return _named(check, guardrail.get_name())

    def output_guardrail(self, guardrail: sdk.OutputGuardrail[Any]) -> Callable[..., Any]:
        """An output guardrail."""
        in_thread = replace(guardrail, guardrail_function=partial(called, guardrail.guardrail_function))

        async def check(output: Any, ctx: ToolContext) -> str | None:
            ran = await in_thread.run(await self._context(ctx), self._agent, output)
            return _TRIPPED if ran.output.tripwire_triggered else None

        return _named(check, guardrail.get_name())

    async def _context(self, ctx: ToolContext) -> sdk.RunContextWrapper[Any]:
        return sdk.RunContextWrapper(await self._terms.context_of(ctx))

    def _tool(self, tool: Any) -> Tool | ProviderTool:
        if not isinstance(tool, sdk.FunctionTool):
            return ProviderTool("openai", privates.hosted_tool(tool))
        raising = privates.raising(tool)

        async def call(arguments: dict[str, Any], ctx: ToolContext) -> Any:
            text = json.dumps(arguments, ensure_ascii=False)
            context = CallContext(
                context=await self._terms.context_of(ctx),
                tool_name=tool.name,
                tool_call_id=ctx.call_id,
                tool_arguments=text,
                agent=self._agent,
            )
            try:
                return _result(await raising.on_invoke_tool(context, text))
            except Exception as error:
                told = await privates.failure_text(tool, context, error)
                if told is None:
                    raise
                raise ToolError(told) from error

        needs: Any = tool.needs_approval
        if callable(needs):
            ask = needs

            async def needs(arguments: dict[str, Any], ctx: ToolContext) -> bool:
                return bool(await called(ask, await self._context(ctx), arguments, ctx.call_id))

        # Without a failure function, an exception ends the run.
        fails = [] if privates.tells_failures(tool) else ["tool_exception"]
        fails += ["tool_timeout"] if tool.timeout_behavior == "raise_exception" else []
        default = AGENT_TOOL_SECONDS if privates.agent_of_tool(tool) is not None else None
        adopted = Tool.from_schema(
            name=tool.name,
            description=tool.description,
            schema=tool.params_json_schema,
            call=call,
            strict=tool.strict_json_schema,
            needs_approval=needs,
            timeout=timedelta(seconds=seconds) if (seconds := tool.timeout_seconds or default) else None,
            on_demand=tool.defer_loading,
            handle_errors=failing_on(*fails) if fails else None,
        )
        if not tool.strict_json_schema:
            return adopted
        accepted = SchemaArguments.declared(_without_invented_requirements(tool.params_json_schema))
        return replace(adopted, arguments=replace(accepted, schema=adopted.schema))


def _without_invented_requirements(schema: dict[str, Any]) -> dict[str, Any]:
    """A strict schema that does not require what the function has a default for.

    openai-agents writes each property of a strict schema into `required`, and leaves a default of None out; but its Runner
    takes a call that omits them, and so does the function, which it is given to as the model wrote it.
    """
    changed = with_changed_parts(schema, _without_invented_requirements)
    properties = changed.get("properties")
    if isinstance(properties, dict) and "required" in changed:
        changed["required"] = [name for name in changed["required"] if not _has_default(properties.get(name, {}))]
    return changed


def _has_default(schema: dict[str, Any]) -> bool:
    kinds = [schema.get("type"), *(each.get("type") for each in schema.get("anyOf", ()))]
    return "default" in schema or any(kind == "null" or (isinstance(kind, list) and "null" in kind) for kind in kinds)


_TRIPPED = "its tripwire was triggered."


def _named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = name
    return function


def _result(result: Any) -> Any:
    """A tool's result: texts and images of theirs as Mulligan's."""
    if isinstance(result, sdk.ToolOutputText):
        return result.text
    if isinstance(result, sdk.ToolOutputImage):
        return _image(result)
    kinds = sdk.ToolOutputText | sdk.ToolOutputImage
    if isinstance(result, list) and result and all(isinstance(each, kinds) for each in result):
        return [Text(text=each.text) if isinstance(each, sdk.ToolOutputText) else _image(each) for each in result]
    return result


def _image(image: sdk.ToolOutputImage) -> Image:
    url = image.image_url
    if url is None:
        raise ToolError("The image is known by a file id only, which cannot be shown here.")
    return Image(url=url)


def _input(messages: Sequence[Message]) -> Any:
    """A conversation as the input of an agent: the text of a prompt alone, or the items of the Responses API."""
    if len(messages) == 1:
        return messages[0].text
    items: list[dict[str, Any]] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            items.append({"type": "function_call_output", "call_id": message.call_id, "output": message.text})
            continue
        if message.text:
            items.append({"role": message.role, "content": message.text})
        if isinstance(message, AssistantMessage):
            items += [
                {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
                for call in message.tool_calls
            ]
    return items
