"""Conversations in which an agent undoes a wrong branch and takes another one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rllib_llm.data.turn_table import Trajectory
from rllib_llm.envs.back import undo_text
from rllib_llm.envs.go_to import replay
from rllib_llm.offline.corrections import (
    Row,
    WrongTurn,
    context,
    has_texts,
    messages_by_turn,
    wrong_turns,
)
from rllib_llm.offline.played_replies import play_on


def rollbacks(env: Any, trajectories: Iterable[Trajectory], sentence: str) -> list[Row]:
    """Return failed episodes that go back to their first wrong turn, and on.

    The environment plays the whole conversation: the failed episode up to its last
    turn, a reply that says the sentence and uses ``back``, and the rest of the solved
    episode with most leading turns in common. The first of these replies names, before
    its action, the replies that the group's episodes gave at this place. So reflection,
    rollback and branching are text (WebCoT, Hu et al. 2025, arXiv:2505.20013); all
    replies before the reflection are context and not trained.

    A conversation is left out if the environment does not count it as a success, e.g.
    because no use of ``back`` was left, and if a reply is empty.

    Args:
        env: ``back-v0`` with ``thoughts``.
        trajectories: Trajectories of its episodes, of whole groups.
        sentence: The reflection.

    Returns:
        Rows of data files: ``messages``, sampled replies of the failed episode with
        ``train: false``.

    Raises:
        EnvContractError: If the environment returns other texts than before.
    """
    chains = (_chain(env, wrong, sentence) for wrong in wrong_turns(trajectories))
    return [{"messages": chain} for chain in chains if chain and has_texts(chain)]


def _chain(env: Any, wrong: WrongTurn, sentence: str) -> list[Row] | None:
    """Play one conversation; None if there is nothing to undo or it fails."""
    count = _go_to_the_end(env, wrong)
    if count < 1:
        return None
    turn, solved = wrong.turn, wrong.solved.completions
    choice = f"{' or '.join(wrong.replies)}?\n{solved[turn]}"
    replies = [f"{sentence}\n{undo_text(count)}", choice, *solved[turn + 1 :]]
    after = play_on(env, replies)
    if after is None:
        return None
    *prompt, _ = messages_by_turn(wrong.failed)[-1]
    return [*context(wrong.failed, len(wrong.failed) - 1), *prompt, *after]


def _go_to_the_end(env: Any, wrong: WrongTurn) -> int:
    """Play the failed episode up to its last turn; return how many turns to undo.

    0 if ``back`` cannot return to the wrong turn's place, e.g. because the episode
    itself went back beyond it.
    """
    failed, end = wrong.failed, len(wrong.failed) - 1
    if end <= wrong.turn:
        return 0
    places = replay(
        env,
        seed=failed.task.seed,
        options=dict(failed.task.options),
        actions=failed.completions[:end],
        observations=failed.observations,
    )
    there: list[Any] = []
    for place in places:
        if place == wrong.turn:
            there = list(env.unwrapped.earlier)
    now = env.unwrapped.earlier
    return len(now) - len(there) if now[: len(there)] == there else 0
