"""Build masked token rows from turn records (pure numpy, no RLlib).

A trajectory yields one row while each prompt extends the stored ids; where it does
not (edited context, re-rendered history) a new row starts. Every sampled token stands
in exactly one row and is trained exactly once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rllib_llm.connectors.chat import Prompt
from rllib_llm.data import columns
from rllib_llm.data.types import Turn


@dataclasses.dataclass(slots=True)
class Row:
    """One token sequence of an episode; all arrays have one entry per token.

    Attributes:
        ids: Token ids. int32 [T]
        turn_ids: Which turn sampled the token, -1 for prompt tokens. int32 [T]
        steps: Environment step of that turn, -1 for prompt tokens. int32 [T]
        logps: Log-probability recorded when it was sampled, else 0. float32 [T]
        rewards: The turn's reward on its last token, else 0. float32 [T]
        bootstrap: Whether the value after the last token stands for what a cut
            episode would still have earned.
        bootstraps_agent_turn: Whether it does so for a prompt that was still to be
            answered.
        choices: What stands behind the conversation: the actions not taken. None if
            no turn was chosen from a list.
    """

    ids: np.ndarray
    turn_ids: np.ndarray
    steps: np.ndarray
    logps: np.ndarray
    rewards: np.ndarray
    bootstrap: bool = False
    bootstraps_agent_turn: bool = False
    choices: Choices | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def end(self) -> int:
        """Where the conversation ends."""
        return len(self) if self.choices is None else self.choices.end


@dataclasses.dataclass(slots=True)
class Choices:
    """Which tokens of a row belong to which action that could have been taken.

    Attributes:
        starts: Column where the action taken in the token's turn starts, else -1. [T]
        candidates: Number of the token's action in its turn, 0 is the one taken; -1
            for what is no action. [T]
        weights: Of the token's log-probability in the score of its action, else 0. [T]
        end: Where the conversation ends; behind it stand the actions not taken.
    """

    starts: np.ndarray
    candidates: np.ndarray
    weights: np.ndarray
    end: int


class RowBuilder:
    """Puts a row together, piece by piece."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.parts: list[tuple[np.ndarray, ...]] = []
        self.length = 0
        self.choices: list[tuple[int, Turn]] = []

    def prompt(self, ids: Sequence[int]) -> None:
        """Append tokens that were read."""
        ids = np.asarray(ids, np.int32)
        zeros = np.zeros(len(ids), np.float32)
        no_turn = np.full(len(ids), -1, np.int32)
        self.parts.append((ids, no_turn, no_turn, zeros, zeros))
        self.length += len(ids)

    def turn(self, index: int, turn: Turn, reward: float) -> None:
        """Append the tokens of a turn, which earned ``reward``.

        A turn that was chosen as a whole is one step of the policy: its first token
        stands for it.
        """
        n = len(turn.action_ids)
        index_of, step = np.full(n, index, np.int32), np.full(n, turn.env_t, np.int32)
        rewards = np.zeros(n, np.float32)
        if turn.choice is None:
            rewards[-1] = reward
        else:
            rewards[0] = reward
            index_of[1:] = step[1:] = -1
            self.choices.append((self.length, turn))
        ids = np.asarray(turn.action_ids, np.int32)
        logps = np.asarray(turn.action_logps, np.float32)
        self.parts.append((ids, index_of, step, logps, rewards))
        self.length += n

    def build(self) -> Row:
        """Return the row."""
        choices = self._finish_choices() if self.choices else None
        columns_of_row = (np.concatenate(c) for c in zip(*self.parts, strict=True))
        return Row(*columns_of_row, choices=choices)

    def _finish_choices(self) -> Choices:
        """Append what was not taken, and return which token is whose."""
        end = self.length
        starts, candidates = (np.full(end, -1, np.int32) for _ in range(2))
        weights = np.zeros(end, np.float32)
        behind = []
        for start, turn in self.choices:
            taken = slice(start, start + len(turn.action_ids))
            starts[taken], candidates[taken] = start, 0
            weights[taken] = turn.choice.weights[0]
            for number, ids in enumerate(turn.choice.others, start=1):
                self.prompt(ids)
                weight = turn.choice.weights[number]
                behind.append([np.full(len(ids), x) for x in (start, number, weight)])
        found = zip((starts, candidates, weights), *behind, strict=True)
        return Choices(*(np.concatenate(parts) for parts in found), end=end)


def build_rows(
    turns: Sequence[Turn],
    rewards: Sequence[float],
    *,
    final_prompt: Prompt | None = None,
    bootstrap: bool = False,
    row_per_turn: bool = False,
) -> list[Row]:
    """Return the rows of one episode.

    Args:
        turns: The recorded turns, in time order.
        rewards: One reward per turn.
        final_prompt: What the episode would have shown next; read if ``bootstrap``.
        bootstrap: Whether the episode was cut short, so that the critic's value at its
            end counts. With ``final_prompt`` that value sees the last observation.
        row_per_turn: Start a row at every turn even where the prefix holds (each row
            then repeats its context); gradients are the same, the cost is not.

    Returns:
        At least one row; ``bootstrap`` is set on the last one only.
    """
    rows: list[Row] = []
    builder: RowBuilder | None = None
    history: list[np.ndarray] = []
    for index, (turn, reward) in enumerate(zip(turns, rewards, strict=True)):
        if not turn.extends:
            history = []
        if builder is not None and (row_per_turn or not turn.extends):
            rows.append(builder.build())
            builder = None
        if builder is None:
            builder = RowBuilder()
            if history:
                builder.prompt(np.concatenate(history))
        builder.prompt(turn.prompt_ids)
        builder.turn(index, turn, reward)
        history += [np.asarray(turn.prompt_ids), np.asarray(turn.action_ids)]
    if bootstrap and final_prompt is not None:
        if not final_prompt.extends:
            rows.append(builder.build())
            builder = RowBuilder()
        builder.prompt(final_prompt.ids)
    rows.append(builder.build())
    rows[-1].bootstrap = bootstrap
    rows[-1].bootstraps_agent_turn = bootstrap and final_prompt is not None
    return rows


def pad_rows(
    rows: Sequence[Row], *, pad_id: int, trained: Sequence[bool]
) -> dict[str, np.ndarray]:
    """Stack rows into right-padded ``[B, T]`` columns.

    A bootstrapped row gets one extra column, so that the value *after* its last token
    has a place (values stand before their token); it holds ``pad_id``, unattended.

    Args:
        rows: Rows of any lengths.
        pad_id: Id for padding.
        trained: Per row, whether its sampled tokens are trained.

    Returns:
        ``input_ids``, ``attention_mask``, ``loss_mask``, ``turn_ids``, ``turn_steps``,
        ``behaviour_logp``, ``token_rewards`` [B, T]; ``bootstrap_column`` and
        ``bootstraps_agent_turn`` [B]. Of rows with choices also ``choice_starts``,
        ``candidates`` and ``score_weights`` [B, T].
    """
    size = (len(rows), max(max(len(r), r.end + r.bootstrap) for r in rows))
    out = {
        columns.INPUT_IDS: np.full(size, pad_id, np.int64),
        columns.ATTENTION_MASK: np.zeros(size, bool),
        columns.TURN_IDS: np.full(size, -1, np.int64),
        columns.TURN_STEPS: np.full(size, -1, np.int64),
        columns.BEHAVIOUR_LOGP: np.zeros(size, np.float32),
        columns.TOKEN_REWARDS: np.zeros(size, np.float32),
        columns.BOOTSTRAP_COLUMN: np.full(len(rows), -1, np.int64),
        columns.BOOTSTRAPS_AGENT_TURN: np.array(
            [row.bootstraps_agent_turn for row in rows], bool
        ),
    }
    for i, row in enumerate(rows):
        n = len(row)
        out[columns.INPUT_IDS][i, :n] = row.ids
        out[columns.ATTENTION_MASK][i, :n] = True
        out[columns.TURN_IDS][i, :n] = row.turn_ids
        out[columns.TURN_STEPS][i, :n] = row.steps
        out[columns.BEHAVIOUR_LOGP][i, :n] = row.logps
        out[columns.TOKEN_REWARDS][i, :n] = row.rewards
        if row.bootstrap:
            out[columns.BOOTSTRAP_COLUMN][i] = row.end
    sampled = out[columns.TURN_IDS] >= 0
    out["loss_mask"] = sampled & np.asarray(trained, bool)[:, None]
    if any(row.choices is not None for row in rows):
        out |= _pad_choices(rows, size)
    return out


def _pad_choices(rows: Sequence[Row], size: tuple[int, int]) -> dict[str, np.ndarray]:
    out = {
        columns.CHOICE_STARTS: np.full(size, -1, np.int64),
        columns.CANDIDATES: np.full(size, -1, np.int64),
        columns.SCORE_WEIGHTS: np.zeros(size, np.float32),
    }
    for i, row in enumerate(rows):
        if row.choices is not None:
            n = len(row)
            out[columns.CHOICE_STARTS][i, :n] = row.choices.starts
            out[columns.CANDIDATES][i, :n] = row.choices.candidates
            out[columns.SCORE_WEIGHTS][i, :n] = row.choices.weights
    return out
