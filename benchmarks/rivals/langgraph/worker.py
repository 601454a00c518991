"""LangGraph with Temporal's plugin, set up as the ReAct agent in the plugin's samples: two nodes, each an activity.

The sample leaves out the model and the tool: here they are as in LangGraph's quickstart, with `init_chat_model` (OpenAI's
Chat Completions; not streamed, because `ainvoke` in a node is not). Differences: the messages that a node gets are dicts,
which is what the plugin's data converter makes of them, `recursion_limit` is raised, the model is made once, and the timeout
of the tool is a day, because one call of the benchmark waits. The documentation does not ask for other retries of the HTTP
client, so that they are the default.
"""

from temporalio.langgraph import LangGraphPlugin

from benchmarks import serving
from benchmarks.rivals.langgraph.workflow import BenchWorkflow, bench

if __name__ == "__main__":
    serving.main([BenchWorkflow], [], [LangGraphPlugin(graphs={"bench": bench()})])
