"""From a prompt that is due to a request at the engine, and from there to a turn."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from rllib_llm.data.types import Task, Turn
from rllib_llm.engines.base import Generation, SamplingParams
from rllib_llm.env_runner.recorder import AgentState
from rllib_llm.env_runner.slots import ActionSource
from rllib_llm.env_runner.tasks import stable_seed


def prompt_length(agent_state: AgentState) -> int:
    """Return how many tokens the seat's conversation has, its due prompt included."""
    prompt = agent_state.data.prompt
    return len(prompt.ids) + (len(agent_state.data.ids) if prompt.extends else 0)


def turn_seed(task: Task, attempt: int, agent_state: AgentState) -> int:
    """Return what seeds the random numbers of the seat's next turn."""
    return stable_seed(task.seed, task.rollout, attempt, *agent_state.seed_parts())


def request_turn(
    action_source: ActionSource,
    agent_state: AgentState,
    session: Hashable,
    *,
    num_sampled: int,
    seed: int,
    unseen: int = 0,
) -> None:
    """Ask the engine for the seat's turn.

    Args:
        voice: How its policy makes turns; it has an engine, where the session is open.
        seat: Its prompt is due.
        session: The conversation's name at the engine.
        num_sampled: Tokens sampled in the episode so far.
        seed: Of the turn.
        unseen: How many of the conversation's last ids the engine does not know yet.
    """
    data, prompt = agent_state.data, agent_state.data.prompt
    ids, extends = prompt.ids, prompt.extends
    if unseen and extends:
        ids = [*data.ids[-unseen:], *ids]
        extends = unseen < len(data.ids)  # else nothing of what it knows holds
    budget = action_source.turn_budget(prompt_length(agent_state), num_sampled)
    agent_state.request_id = action_source.engine.submit(
        session,
        ids,
        SamplingParams(max_new_tokens=budget, seed=seed, **action_source.sampling),
        extends=extends,
    )


def sampled_turn(result: Generation, agent_state: AgentState) -> Turn:
    """Return the turn that the engine's result is."""
    prompt = agent_state.data.prompt
    agent_state.request_id = None
    return Turn(
        prompt_ids=np.asarray(prompt.ids, np.int32),
        extends=prompt.extends,
        action_ids=result.token_ids,
        action_logps=result.logps,
        finish=result.finish,
        weights_seq_no=result.weights_version,
        module_id=agent_state.module_id,
        seconds=result.seconds,
    )
