"""The delivery as a LangGraph program: two nodes, each with a policy of its own."""

from __future__ import annotations

import functools
from typing import Any, TypedDict

from rllib_llm.envs.agent_programs.examples import delivery
from rllib_llm.envs.agent_programs.programs import ProgramEndpoint


class State(TypedDict, total=False):
    """State of the graph.

    Attributes:
        task: The task.
        plan: The planner's reply.
        walk: The worker's reply.
    """

    task: dict[str, Any]
    plan: str
    walk: str


@functools.cache
def _http_client() -> Any:
    """Return one client for all episodes: each has a pool and a TLS context."""
    import httpx

    return httpx.Client(timeout=600.0)


def program(task: dict[str, Any], endpoint: ProgramEndpoint) -> str:
    """Run the graph on one task, and return the worker's reply."""
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, StateGraph
    from pydantic import SecretStr

    def model(name: str) -> Any:
        return ChatOpenAI(
            model=name,
            base_url=endpoint.base_url,
            api_key=SecretStr(endpoint.api_key),
            http_client=_http_client(),
        )

    def plan(state: State) -> State:
        prompt = delivery.planner_prompt(state["task"])
        return {"plan": model(delivery.PLANNER).invoke(prompt).content}

    def walk(state: State) -> State:
        prompt = delivery.worker_prompt(state["task"], state["plan"])
        return {"walk": model(delivery.WORKER).invoke(prompt).content}

    graph: Any = StateGraph(State)
    graph.add_node("planner", plan)
    graph.add_node("worker", walk)
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "worker")
    graph.add_edge("worker", END)
    return graph.compile().invoke({"task": task})["walk"]
