"""Build masked token rows from turn records (pure numpy, no RLlib).

A trajectory yields one row while each prompt extends the stored ids; where a prompt
does not (edited context, re-rendered history) a new row starts. Every sampled token is
in exactly one row, so it is trained exactly once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rllib_llm.data import columns
from rllib_llm.data.types import Choice, Prompt, Turn


@dataclasses.dataclass(slots=True)
class Row:
    """One token sequence of an episode; all arrays have one entry per token.

    Attributes:
        ids: Token ids. int32 [T]
        turn_ids: Turn that sampled the token, -1 for prompt tokens. int32 [T]
        steps: Environment step of that turn, -1 for prompt tokens. int32 [T]
        logps: Log-probability recorded when it was sampled, else 0. float32 [T]
        rewards: The turn's reward on its last token, else 0. float32 [T]
        bootstrap: Whether the value after the last token replaces the rewards that a
            truncated episode did not reach.
        bootstraps_agent_turn: Whether that value follows an unanswered prompt.
        choices: Rejected candidate actions, appended after the conversation. None if
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
        """Column after the conversation's last token."""
        return len(self) if self.choices is None else self.choices.end


@dataclasses.dataclass(slots=True)
class Choices:
    """Assignment of a row's tokens to candidate actions.

    Attributes:
        starts: Column where the action taken in the token's turn starts, else -1. [T]
        candidates: Number of the token's action in its turn: 0 is the action taken, -1
            a token outside all actions. [T]
        weights: Weight of the token's log-probability in the action score, or 0. [T]
        end: Column after the conversation; the rejected actions start here.
    """

    starts: np.ndarray
    candidates: np.ndarray
    weights: np.ndarray
    end: int


class RowBuilder:
    """Builder of a row from prompts and turns, in order."""

    def __init__(self) -> None:
        """Start an empty row."""
        self.parts: list[tuple[np.ndarray, ...]] = []
        self.length = 0
        self.choices: list[tuple[int, Turn, Choice]] = []

    def prompt(self, ids: Sequence[int] | np.ndarray) -> None:
        """Append tokens that were not sampled."""
        tokens = np.asarray(ids, np.int32)
        zeros = np.zeros(len(tokens), np.float32)
        no_turn = np.full(len(tokens), -1, np.int32)
        self.parts.append((tokens, no_turn, no_turn, zeros, zeros))
        self.length += len(tokens)

    def turn(self, index: int, turn: Turn, reward: float) -> None:
        """Append the tokens of a turn with its reward.

        A turn that was chosen as a whole is one step of the policy, represented by its
        first token.
        """
        n = len(turn.action_ids)
        index_of, step = np.full(n, index, np.int32), np.full(n, turn.env_t, np.int32)
        rewards = np.zeros(n, np.float32)
        if turn.choice is None:
            # On the last token: GAE carries it back over the turn's other tokens.
            rewards[-1] = reward
        else:
            rewards[0] = reward
            # The other tokens are masked: the choice has one probability, not several.
            index_of[1:] = step[1:] = -1
            self.choices.append((self.length, turn, turn.choice))
        ids = np.asarray(turn.action_ids, np.int32)
        logps = np.asarray(turn.action_logps, np.float32)
        self.parts.append((ids, index_of, step, logps, rewards))
        self.length += n

    def build(self) -> Row:
        """Return the row."""
        choices = self._finish_choices() if self.choices else None
        ids, turn_ids, steps, logps, rewards = (
            np.concatenate(c) for c in zip(*self.parts, strict=True)
        )
        return Row(ids, turn_ids, steps, logps, rewards, choices=choices)

    def _finish_choices(self) -> Choices:
        """Append the rejected actions and return the assignment of all tokens."""
        end = self.length
        starts, candidates = (np.full(end, -1, np.int32) for _ in range(2))
        weights = np.zeros(end, np.float32)
        behind = []
        for start, turn, choice in self.choices:
            taken = slice(start, start + len(turn.action_ids))
            starts[taken], candidates[taken] = start, 0
            weights[taken] = choice.weights[0]
            for number, ids in enumerate(choice.others, start=1):
                self.prompt(ids)
                weight = choice.weights[number]
                # In the order of the appended tokens, after those of the conversation.
                behind.append([np.full(len(ids), x) for x in (start, number, weight)])
        starts, candidates, weights = (
            np.concatenate(c)
            for c in zip((starts, candidates, weights), *behind, strict=True)
        )
        return Choices(starts, candidates, weights, end=end)


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
        final_prompt: Prompt that would have come next; used if ``bootstrap``.
        bootstrap: Whether the episode was truncated, so that the critic's value at its
            end counts. With ``final_prompt`` that value includes the last observation.
        row_per_turn: Start a row at every turn even where the prefix holds. Each row
            then repeats its context: equal gradients at a higher cost.

    Returns:
        At least one row; ``bootstrap`` is set on the last one only.
    """
    rows: list[Row] = []
    builder: RowBuilder | None = None
    history: list[np.ndarray] = []
    for index, (turn, reward) in enumerate(zip(turns, rewards, strict=True)):
        if not turn.extends:
            history = []
        # A row ends where the next prompt does not contain it unchanged.
        if builder is not None and (row_per_turn or not turn.extends):
            rows.append(builder.build())
            builder = None
        if builder is None:
            builder = RowBuilder()
            if history:
                # Only with row_per_turn: otherwise the builder has the history already.
                builder.prompt(np.concatenate(history))
        builder.prompt(turn.prompt_ids)
        builder.turn(index, turn, reward)
        history += [np.asarray(turn.prompt_ids), np.asarray(turn.action_ids)]
    assert builder is not None, "An episode has at least one turn."
    # The last observation is only a prompt: nothing in it is trained.
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

    A bootstrapped row gets one extra column for the value *after* its last token, since
    values are stored at the token that follows them. It holds ``pad_id``, unattended.

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
            # Not len(row): rejected actions after the conversation are not its future.
            out[columns.BOOTSTRAP_COLUMN][i] = row.end
    sampled = out[columns.TURN_IDS] >= 0  # [B, T]
    out["loss_mask"] = sampled & np.asarray(trained, bool)[:, None]
    if any(row.choices is not None for row in rows):
        out |= _pad_choices(rows, size)
    return out


def _pad_choices(rows: Sequence[Row], size: tuple[int, int]) -> dict[str, np.ndarray]:
    out: dict[str, np.ndarray] = {
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
