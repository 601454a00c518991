"""`/mcp`: a server of the Model Context Protocol. Each agent is a tool, and a call of it is a run (docs/serving.md).

mcp_endpoint.py connects the SDK's server to the routes. agent_tools.py describes the tools, tool_calls.py executes them:
it waits for runs, reports their events as progress (progress_message.py), and asks people through the client
(person_forms.py). run_tasks.py is the extension `io.modelcontextprotocol/tasks`: there a run is a task.
"""
