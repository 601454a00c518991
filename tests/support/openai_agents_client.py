"""A program that uses `/v1` by openai-agents, in an environment of its own: `URL TOKEN MODE PROMPT`. It approves all calls.

It prints a line of JSON for each of two turns: {`text`, `asked`, `items`}.
"""

import asyncio
import json
import sys

from agents import (
    Agent,
    HostedMCPTool,
    MCPToolApprovalFunctionResult,
    MCPToolApprovalRequest,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

url, token, mode, prompt = sys.argv[1:]
asked: list[str] = []


def approve(request: MCPToolApprovalRequest) -> MCPToolApprovalFunctionResult:
    asked.append(request.data.name)
    return {"approve": True}


async def main() -> None:
    set_tracing_disabled(True)
    tool = HostedMCPTool(
        tool_config={"type": "mcp", "server_label": "mulligan", "server_url": url, "require_approval": "always"},
        on_approval_request=approve,
    )
    agent = Agent(
        name="Page",
        instructions="Be brief.",
        model=OpenAIResponsesModel("seller", AsyncOpenAI(base_url=f"{url}/v1", api_key=token)),
        model_settings=ModelSettings(temperature=0.1, max_tokens=100),
        tools=[tool],
    )
    given: object = prompt
    for _ in range(2):
        if mode == "stream":
            result = Runner.run_streamed(agent, given)
            async for _event in result.stream_events():
                continue
        else:
            result = await Runner.run(agent, given)
        print(
            json.dumps({"text": result.final_output, "asked": asked, "items": [each.type for each in result.new_items]})
        )
        given = [*result.to_input_list(), {"role": "user", "content": "Thanks."}]


asyncio.run(main())
