"""The delivery with the plain ``openai`` client."""

from __future__ import annotations

from typing import Any

from rllib_llm.envs.agent_programs.examples import delivery
from rllib_llm.envs.agent_programs.programs import ProgramEndpoint


def program(task: dict[str, Any], endpoint: ProgramEndpoint) -> str:
    """Ask the planner, then the worker, and return the worker's reply."""
    import openai

    with openai.OpenAI(
        base_url=endpoint.base_url, api_key=endpoint.api_key, timeout=600.0
    ) as client:

        def ask(model: str, prompt: str) -> str:
            answer = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": prompt}]
            )
            return answer.choices[0].message.content or ""

        plan = ask(delivery.PLANNER, delivery.planner_prompt(task))
        return ask(delivery.WORKER, delivery.worker_prompt(task, plan))
