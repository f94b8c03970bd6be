"""Generation requests for prompts, and turns from their results."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from rllib_llm.data.episode_data import EpisodeData
from rllib_llm.data.types import Task, Turn
from rllib_llm.engines.base import Generation, SamplingParams
from rllib_llm.env_runner.recorder import AgentState
from rllib_llm.env_runner.slots import ActionSource
from rllib_llm.pictures.placement import PlacedPicture, placed
from rllib_llm.seeding import stable_seed


def prompt_length(agent_state: AgentState) -> int:
    """Return the length of the agent's conversation in tokens, with the new prompt."""
    prompt = agent_state.data.due_prompt
    return len(prompt.ids) + (len(agent_state.data.ids) if prompt.extends else 0)


def turn_seed(
    task: Task, attempt: int, agent_state: AgentState, candidate: int | None = None
) -> int:
    """Return the sampling seed of the agent's next turn.

    Args:
        task: Task of the episode.
        attempt: Number of earlier attempts at it.
        agent_state: The agent.
        candidate: Number of the candidate to sample; None: the reply to play.
    """
    # The rollout is part of the seed, since rollouts of a group share the task's seed.
    # So is the attempt: a repeated episode must not repeat the turn that made it fail.
    request = agent_state.data.request
    parts = agent_state.seed_parts()
    if request is not None and request.seed is not None:
        parts = request.seed_parts(agent_state.index)
    # And the place of a fork, whose number of turns may be that of another one.
    forked = () if task.place is None else task.place.seed_parts
    # Without a number for the reply that is played, which so depends on no candidate.
    if candidate is not None:
        forked = (*forked, "candidate", candidate)
    return stable_seed(task.seed, task.rollout, attempt, *forked, *parts)


def request_turn(
    action_source: ActionSource,
    agent_state: AgentState,
    session: Hashable,
    *,
    num_sampled: int,
    seed: int,
    unseen: int = 0,
    replaces: bool = False,
) -> None:
    """Submit the agent's next turn to the engine.

    Args:
        action_source: Source of its policy's turns, whose engine has the session open.
        agent_state: The agent, with a rendered prompt.
        session: Name of the conversation at the engine.
        num_sampled: Tokens sampled in the episode so far.
        seed: Sampling seed of the turn.
        unseen: Number of the conversation's last ids that the engine's cache lacks.
        replaces: Whether the engine has sampled another reply to this prompt, which the
            conversation does not contain.
    """
    data, prompt = agent_state.data, agent_state.data.due_prompt
    ids, extends = prompt.ids, prompt.extends
    if replaces:
        # The whole conversation again; the engine keeps what it has computed of it.
        unseen = len(data.ids)
    if extends and (unseen or replaces):
        # E.g. turns of another engine, or turns that were appended without sampling.
        ids = [*data.ids[len(data.ids) - unseen :], *ids]
        # If the engine lacks all ids, there is nothing to extend.
        extends = unseen < len(data.ids)
    shown = _pictures(data, unseen if prompt.extends else 0)
    budget = action_source.turn_budget(prompt_length(agent_state), num_sampled)
    sampling = action_source.sampling
    request = data.request
    if request is not None:
        budget = min(budget, request.max_tokens or budget)
        stop = (*sampling.get("stop_strings", ()), *request.stop)
        sampling = {**sampling, "stop_strings": stop}
    agent_state.request_id = action_source.engine.submit(
        session,
        ids,
        SamplingParams(max_new_tokens=budget, seed=seed, **sampling),
        extends=extends,
        **shown,
    )


def _pictures(data: EpisodeData, unseen: int) -> dict[str, list[PlacedPicture]]:
    """Return the pictures of submitted ids as an argument of ``submit``.

    Args:
        data: The conversation, with a rendered prompt.
        unseen: Number of its last ids that are submitted before the prompt.
    """
    if not data.pictures:  # text: engines that read no pictures have no such argument
        return {}
    first = len(data.ids) - unseen
    refs = [r.moved(-first) for r in data.images if r.start >= first]
    refs += [r.moved(unseen) for r in data.due_prompt.images]
    return {"pictures": placed(refs, data.pictures)} if refs else {}


def sampled_turn(result: Generation, agent_state: AgentState) -> Turn:
    """Return the Turn of an engine's result."""
    prompt = agent_state.data.due_prompt
    agent_state.request_id = None
    return Turn(
        # The new part of the prompt only: rows are concatenated from these parts.
        prompt_ids=np.asarray(prompt.ids, np.int32),
        images=prompt.images,
        extends=prompt.extends,
        action_ids=result.token_ids,
        action_logps=result.logps,
        finish=result.finish,
        weights_seq_no=result.weights_version,
        module_id=agent_state.module_id,
        seconds=result.seconds,
        version_changes=result.version_changes,
        conversation=agent_state.data.conversation,
        allowed=result.allowed,
    )
