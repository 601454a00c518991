"""Any client of OpenAI's API can talk to an agent: uv run python -m examples.openai_client (docs/serving-openai.md)."""

import sys

from openai import OpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8300"
client = OpenAI(base_url=f"{url}/v1", api_key="a token, if the server has tokens")
for event in client.responses.create(model="storyteller", input="Tell me a story.", stream=True):
    if event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)
    elif event.type == "response.output_item.done" and event.item.type == "mcp_call":
        print(f"\n[{event.item.name}: {event.item.status}]")
