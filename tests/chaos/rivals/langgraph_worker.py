"""LangGraph with Temporal's plugin, set up as the ReAct agent in the plugin's samples, with a heartbeat timeout."""

from temporalio.langgraph import LangGraphPlugin

from benchmarks import serving
from tests.chaos.rivals.langgraph_workflow import ChaosWorkflow, clerk

if __name__ == "__main__":
    serving.main([ChaosWorkflow], [], [LangGraphPlugin(graphs={"clerk": clerk()})])
