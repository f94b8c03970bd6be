"""The delivery with the OpenAI Agents SDK: two agents, one of which has a tool."""

from __future__ import annotations

from typing import Any

from rllib_llm.envs.agent_programs.examples import delivery
from rllib_llm.envs.agent_programs.programs import ProgramEndpoint


async def program(task: dict[str, Any], endpoint: ProgramEndpoint) -> str:
    """Run the planner, which may list the doors with a tool, then the worker."""
    import agents
    import openai

    # Nothing of an episode goes to the traces that the SDK sends by default.
    agents.set_tracing_disabled(True)
    client = openai.AsyncOpenAI(
        base_url=endpoint.base_url, api_key=endpoint.api_key, timeout=600.0
    )

    # The endpoint refuses strict tools: calls are sampled and may be malformed.
    @agents.function_tool(strict_mode=False)
    def list_doors() -> str:
        """List the doors."""
        return " ".join(task["doors"])

    def agent(name: str, tools: list[Any]) -> Any:
        model = agents.OpenAIChatCompletionsModel(model=name, openai_client=client)
        return agents.Agent(name=name, model=model, tools=tools)

    async def run(name: str, prompt: str, tools: list[Any]) -> str:
        result = await agents.Runner.run(agent(name, tools), prompt, max_turns=4)
        return str(result.final_output)

    try:
        prompt = delivery.planner_prompt(task)
        plan = await run(delivery.PLANNER, prompt, [list_doors])
        return await run(delivery.WORKER, delivery.worker_prompt(task, plan), [])
    finally:
        await client.close()
