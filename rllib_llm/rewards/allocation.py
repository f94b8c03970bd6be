"""Reward allocation: rewards per message from team rewards or scores of answers."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np

from rllib_llm.advantages.column_keys import combined_keys, key_means
from rllib_llm.advantages.gae import _discounted_sums
from rllib_llm.losses._checks import (
    check_choice,
    check_finite,
    check_same_shape,
    check_unit_interval,
    check_vector,
)

ALLOCATIONS = ("individual", "team", "shared")
SHAPINGS = ("margin", "quality")


def allocate_rewards(
    rewards: np.ndarray,
    sets: Sequence[Hashable] | np.ndarray,
    mode: str,
    *,
    team_weight: float | None = None,
) -> np.ndarray:
    """Share rewards among messages.

    ``individual``: each message keeps its reward. ``team``: each message gets the mean
    of its set. ``shared``: ``(1 - w) * reward + w * mean``; w = 0.5 is the "parallel"
    baseline of AReaL-MARFT. A mean keeps the scale of teams whose members all get the
    same reward; the sum over a set does not change in any mode.

    Args:
        rewards: Reward of each message. [M]
        sets: Set of each message, e.g. ``combined_keys(episodes, turns)``. [M]
        mode: "individual", "team" or "shared".
        team_weight: w in [0, 1]; required by "shared", not allowed otherwise.

    Returns:
        Rewards. [M]

    Raises:
        ValueError: If shapes differ, a reward is not finite, the mode is unknown, or
            ``team_weight`` is missing, out of range, or given to another mode.
    """
    check_choice("mode", mode, ALLOCATIONS)
    if (team_weight is None) == (mode == "shared"):
        raise ValueError(
            f"team_weight is {team_weight} with mode {mode!r}. 'shared' needs it, and "
            "the other modes do not use it. Use e.g. mode='shared', team_weight=0.5."
        )
    rewards, keys = _finite("rewards", rewards), combined_keys(sets)
    check_same_shape(rewards=rewards, sets=keys)
    weight = {"individual": 0.0, "team": 1.0}.get(mode, team_weight or 0.0)
    check_unit_interval(team_weight=weight)
    # Means by set, expanded to messages by the set's index. [M]
    return (1.0 - weight) * rewards + weight * key_means(rewards, keys)[keys]


def team_and_local_rewards(
    team: np.ndarray, local: np.ndarray, *, alpha: float
) -> np.ndarray:
    """Return ``alpha * team + local`` (AT-GRPO, arXiv:2510.11062).

    Args:
        team: The team's reward in each message's round. [M]
        local: The message's individual reward, e.g. for its format or tests. [M]
        alpha: Weight of the team, >= 0; 0.7 to 1 in the released settings.

    Raises:
        ValueError: If shapes differ, an entry is not finite, or alpha is negative.
    """
    team, local = _finite("team", team), _finite("local", local)
    check_same_shape(team=team, local=local)
    if not 0 <= alpha < math.inf:
        raise ValueError(f"alpha is {alpha}. It must be finite and >= 0. Use e.g. 1.0.")
    return alpha * team + local


def gated_rewards(
    well_formed: np.ndarray, main_succeeded: np.ndarray, *, partial: float = 0.1
) -> np.ndarray:
    """Return a sub-agent's reward from the main agent's (M-GRPO, arXiv:2511.13288).

    The reward is 1 if the sub-agent's message is well formed and the main agent
    succeeded, ``partial`` if it is well formed and the main agent failed, else 0, as in
    the released code. The paper adds the score of an expert, which is not included.

    Args:
        well_formed: Whether the message has the required format. bool [M]
        main_succeeded: Whether the main agent of its rollout succeeded. bool [M]
        partial: Reward of a well-formed message if the main agent failed, in [0, 1].

    Raises:
        ValueError: If shapes differ, an array is not boolean, or ``partial`` is
            outside [0, 1].
    """
    well_formed, main_succeeded = np.asarray(well_formed), np.asarray(main_succeeded)
    check_same_shape(well_formed=well_formed, main_succeeded=main_succeeded)
    check_unit_interval(partial=partial)
    for name, a in (("well_formed", well_formed), ("main_succeeded", main_succeeded)):
        if a.dtype != np.bool_:
            raise ValueError(
                f"{name} has dtype {a.dtype}. It must be bool. Pass {name} > threshold."
            )
    return well_formed * np.where(main_succeeded, 1.0, partial)


def influence_rewards(
    scores: np.ndarray,
    episodes: Sequence[Hashable] | np.ndarray,
    turns: np.ndarray,
    *,
    discount: float,
) -> np.ndarray:
    """Return the score of each answer with its influence on later rounds (MAPoRL).

    Park et al. 2025 (arXiv:2502.18439), ``discounted_sum`` over all agents:
    ``S[i,t] = (v[i,t] + sum over t' > t of g^(t'-t) * mean_j v[j,t']) / sum over
    t' >= t of g^(t'-t)``, for the rounds t' of the episode. It is a weighted mean, so
    scores in [0, 1] stay in [0, 1]. With ``combined_keys(episodes, agents)`` as
    episodes it is the released code's ``individual`` share.

    Args:
        scores: Verifier's score of each message's answer. [M]
        episodes: Episode of each message. [M]
        turns: Round of each message, integers. [M]
        discount: g in [0, 1].

    Returns:
        Rewards. [M]

    Raises:
        ValueError: If shapes differ, a score is not finite, or g is outside [0, 1].
    """
    check_unit_interval(discount=discount)
    scores, episodes = _finite("scores", scores), combined_keys(episodes)
    turns = _integers("turns", turns)
    check_same_shape(scores=scores, episodes=episodes, turns=turns)
    if not len(scores):
        return scores.copy()
    rounds = combined_keys(episodes, turns)
    _, first = np.unique(rounds, return_index=True)
    # Rounds may be missing in an episode: discount by the gap, and not across episodes.
    gaps = np.diff(turns[first], append=0)
    last = np.diff(episodes[first], append=-1) != 0
    # After an episode's last round the gap is that to another episode. It may be
    # negative, and 0 ** -1 is infinite; hence 1.
    decay = np.where(last, 0.0, discount ** np.where(last, 1, gaps))
    means = key_means(scores, rounds)  # [rounds]
    future = _discounted_sums(means, decay) - means
    weights = _discounted_sums(np.ones_like(means), decay)
    return (scores + future[rounds]) / weights[rounds]


def persuasion_bonuses(
    correct: np.ndarray,
    episodes: Sequence[Hashable] | np.ndarray,
    turns: np.ndarray,
    agents: Sequence[Hashable] | np.ndarray,
    *,
    persuaded: float = 0.0,
    opposed: float = 0.0,
    contrary: float = 0.0,
    leading: float = 0.0,
) -> np.ndarray:
    """Return MAPoRL's bonuses for being persuaded and for persuading.

    Park et al. 2025 (arXiv:2502.18439). An answer is correct above correctness 0.5 and
    wrong below. The others are the mean of the other agents that acted in the round:

    - The agent's answer changes between t-1 and t, wrong to correct +, correct to
      wrong -: ``persuaded`` (alpha_0) if the others had the new side at t-1,
      ``opposed`` (alpha_1) if they had the old side or there were none.
    - The others change between t and t+1, with the same signs: ``leading`` (alpha_3)
      if the agent's answer at t had their new side, ``contrary`` (alpha_2) if it had
      their old side.

    The released code subtracts the last two if the others improve and adds them if
    they get worse. Here improvement adds, because the paper rewards persuasion. There
    is no bonus without an answer of the agent in the round before, or of the others in
    the round after.

    Args:
        correct: Correctness of each message's answer, in [0, 1]. [M]
        episodes: Episode of each message. [M]
        turns: Round of each message, integers. [M]
        agents: Agent of each message, once per episode and round. [M]
        persuaded: alpha_0.
        opposed: alpha_1.
        contrary: alpha_2.
        leading: alpha_3.

    Returns:
        Bonuses, to be added to :func:`influence_rewards`. [M]

    Raises:
        ValueError: If shapes differ, an entry is not finite, or an agent answers
            twice in a round.
    """
    correct, turns = _finite("correct", correct), _integers("turns", turns)
    episodes, agents = combined_keys(episodes), combined_keys(agents)
    check_same_shape(correct=correct, episodes=episodes, turns=turns, agents=agents)
    if len(np.unique(combined_keys(episodes, turns, agents))) < len(correct):
        raise ValueError(
            "An agent has two messages in one round of an episode; it must have one. "
            "Number its rounds differently, or keep its last message."
        )
    if not len(correct):
        return correct.copy()
    # Answers by episode, round and agent, padded with an empty round on both sides.
    # Turns from 1, so that turn - 1 and turn + 1 are valid indices.
    turns = turns - turns.min() + 1
    shape = (episodes.max() + 1, turns.max() + 2, agents.max() + 1)
    answers = np.full(shape, np.nan)
    answers[episodes, turns, agents] = correct

    # Sides are -1, 0 or 1. A product of two is negative if and only if they are
    # opposite.
    now, before = _side(correct), _side(answers[episodes, turns - 1, agents])
    others_before, others_now, others_next = (
        _side(_others_mean(answers, episodes, turns + shift, agents))
        for shift in (-1, 0, 1)
    )
    alone = _others_count(answers, episodes, turns - 1, agents) == 0
    kept = (others_before == before) | alone
    of_change = persuaded * (others_before == now) + opposed * kept
    of_influence = leading * (others_next == now) + contrary * (others_now == now)
    changed, others_changed = now * before < 0, others_now * others_next < 0
    return changed * now * of_change + others_changed * others_next * of_influence


def shaped_rewards(
    rewards: np.ndarray,
    episodes: Sequence[Hashable] | np.ndarray,
    order: np.ndarray,
    *,
    shaping: str,
    alpha: float = 0.5,
    beta: float = 0.0,
) -> np.ndarray:
    """Return rewards shaped by the rewards of earlier messages (MARTI).

    With R a message's reward and Q the mean reward of the episode's messages of lower
    order, ``margin`` is ``R + alpha * (R - Q)`` and ``quality`` is ``R + alpha * (Q R -
    (1 - Q) (1 - R))``; messages of the lowest order keep R. ``beta`` adds beta times
    the mean reward of the highest order (``_with_outcome``). Released defaults: alpha
    0.5, beta 0.5.

    The released code treats the agents of a mixture's layer as consecutive, though they
    act at once, and adds each debater's last reward as the outcome. Here the order
    decides.

    Args:
        rewards: Reward of each message's answer; in [0, 1] for ``"quality"``. [M]
        episodes: Episode of each message. [M]
        order: Order of the message in the episode, see
            :meth:`~rllib_llm.dependency_graph.DependencyGraph.order`. [M]
        shaping: "margin" or "quality".
        alpha: Weight of the shaping, >= 0.
        beta: Weight of the final reward, >= 0.

    Returns:
        Rewards. [M]

    Raises:
        ValueError: If shapes differ, a reward is not finite or out of range, the name
            is unknown, or a weight is negative.
    """
    check_choice("shaping", shaping, SHAPINGS)
    rewards, episodes = _finite("rewards", rewards), combined_keys(episodes)
    steps = combined_keys(episodes, order)
    check_same_shape(rewards=rewards, episodes=episodes, order=steps)
    if not (0 <= alpha < math.inf and 0 <= beta < math.inf):
        raise ValueError(
            f"alpha is {alpha} and beta is {beta}. They must be finite and >= 0. "
            "Use e.g. 0.5."
        )
    if shaping == "quality" and not ((rewards >= 0) & (rewards <= 1)).all():
        raise ValueError(
            f"rewards lie in [{rewards.min()}, {rewards.max()}]. 'quality' needs "
            "rewards in [0, 1]. Rescale them, or use shaping='margin'."
        )
    if not len(rewards):
        return rewards.copy()
    _, first = np.unique(steps, return_index=True)
    starts = np.diff(episodes[first], prepend=-1) != 0
    quality, has_past = _earlier_mean(rewards, steps, starts)
    # The last step of each episode; episodes are numbered in the order of the steps.
    last_step = np.flatnonzero(np.append(starts[1:], True))
    final = key_means(rewards, steps)[last_step][episodes]
    terms = {
        "margin": rewards - quality,
        "quality": quality * rewards - (1 - quality) * (1 - rewards),
    }
    return rewards + alpha * np.where(has_past, terms[shaping], 0.0) + beta * final


def shapley_values(coalition_values: np.ndarray) -> np.ndarray:
    """Return the exact Shapley value of each agent.

    ``phi[i] = sum over S without i of |S|! (N - |S| - 1)! / N! * (v(S + i) - v(S))``
    (Shapley 1953). v(S) is the return if the agents of S act and all others send an
    empty message, which takes 2**N rollouts. The values sum to ``v(all) - v(none)``.

    Args:
        coalition_values: v by coalition; agent i is in coalition c if bit i of c is
            set, so entry 0 is the empty coalition and the last one that of all agents.
            [..., 2**N]

    Returns:
        Shapley values. [..., N]

    Raises:
        ValueError: If the size of the last axis is not a power of two above 1, or a
            value is not finite.
    """
    values = np.asarray(coalition_values, dtype=np.float64)
    size = values.shape[-1] if values.ndim else 0
    if size < 2 or size & (size - 1):
        raise ValueError(
            f"coalition_values has {size} coalitions; there must be 2**N for N agents. "
            "Roll out every subset, including the empty one."
        )
    check_finite("coalition_values", values, "Roll those coalitions out again.")
    count = size.bit_length() - 1
    coalitions = np.arange(size)
    members = (coalitions[:, None] >> np.arange(count)) & 1
    # |S|! (N - |S| - 1)! / N! = 1 / (N * C(N - 1, |S|)), without large factorials.
    by_size = [1 / (count * math.comb(count - 1, s)) for s in range(count)]
    shares = []
    for agent in range(count):
        without = coalitions[members[:, agent] == 0]
        weights = np.array(by_size)[members[without].sum(1)]
        # Marginal contributions to all coalitions without the agent. [..., 2**(N-1)]
        gains = values[..., without | (1 << agent)] - values[..., without]
        shares.append(gains @ weights)
    return np.stack(shares, axis=-1)


def _finite(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array, dtype=np.float64)
    check_vector(name, array)
    check_finite(name, array, "Drop the failed episodes before this step.")
    return array


def _integers(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(
            f"{name} has dtype {array.dtype}. They must be integers. "
            f"Pass {name}.astype(int)."
        )
    return array.astype(np.int64)


def _side(correctness: np.ndarray) -> np.ndarray:
    """Return 1 for correct, -1 for wrong, 0 for undecided or missing (NaN) answers."""
    return np.nan_to_num(np.sign(correctness - 0.5))


def _others_count(
    answers: np.ndarray, episodes: np.ndarray, turns: np.ndarray, agents: np.ndarray
) -> np.ndarray:
    answered = ~np.isnan(answers)
    return answered.sum(2)[episodes, turns] - answered[episodes, turns, agents]


def _others_mean(
    answers: np.ndarray, episodes: np.ndarray, turns: np.ndarray, agents: np.ndarray
) -> np.ndarray:
    """Return the mean answer of the other agents of a round; NaN if none. [M]"""
    count = _others_count(answers, episodes, turns, agents)
    filled = np.nan_to_num(answers)
    others = filled.sum(2)[episodes, turns] - filled[episodes, turns, agents]
    return np.where(count > 0, others / np.maximum(count, 1), np.nan)


def _earlier_mean(
    rewards: np.ndarray, steps: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean reward of earlier steps, and whether there are any.

    Args:
        rewards: Reward of each message. [M]
        steps: Step of each message, sorted by episode and order. [M]
        starts: True at the first step of each episode. bool [S]
    """
    # Sums run over the reversed steps and are reset at each episode's first step.
    decay = np.where(starts, 0.0, 1.0)[::-1]

    def before(per_step: np.ndarray) -> np.ndarray:
        sums = _discounted_sums(per_step[::-1].astype(np.float64), decay)[::-1]
        return np.where(starts, 0.0, np.append(0.0, sums[:-1]))[steps]

    counts = before(np.bincount(steps))
    return before(np.bincount(steps, rewards)) / np.maximum(counts, 1), counts > 0
