"""What a program does with the unmodified LiteLLM SDK, in an environment of its own; prints what it got as JSON."""

import json
import sys
from typing import Any

import litellm  # type: ignore[import-not-found]

at: dict[str, Any] = {"model": "openai/seller", "api_base": f"{sys.argv[1]}/v1", "api_key": "token-of-ada"}
look: dict[str, Any] = {"messages": [{"role": "user", "content": "Look."}]}
got: dict[str, Any] = {}

whole = litellm.completion(**at, **look)
got["chat"] = [whole.choices[0].message.content, whole.choices[0].finish_reason, whole.usage.total_tokens]
pieces = litellm.completion(**at, **look, stream=True)
got["streamed"] = "".join(piece.choices[0].delta.content or "" for piece in pieces)

response = litellm.responses(**at, input="Look.")
# Items that LiteLLM has no class for, such as `mcp_call`, are dicts.
types = [item["type"] if isinstance(item, dict) else item.type for item in response.output]
got["response"] = [response.status, types]
got["types"] = [
    str(getattr(event.type, "value", event.type)) for event in litellm.responses(**at, input="Look.", stream=True)
]

try:
    litellm.completion(**{**at, "model": "openai/nobody"}, **look)
except litellm.NotFoundError as error:
    got["refused"] = [error.status_code, "nobody" in str(error)]
print(json.dumps(got))
