"""First learner connector: masked token rows from turn records, in padded columns.

An agent's conversation yields one row while each prompt extends the stored ids; where a
prompt does not (edited context, re-rendered history) a new row starts. Every sampled
token is in exactly one row, so it is trained exactly once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.utils.annotations import override

from rllib_llm.connectors.learner.loss_mask import (
    PatternMask,
    leave_out,
    weigh_observations,
)
from rllib_llm.connectors.learner.nucleus_mask import Allowed, allowed_column
from rllib_llm.connectors.learner.rejected_actions import (
    Choices,
    append_rejected,
    expert_column,
    pad_choices,
)
from rllib_llm.data import columns
from rllib_llm.data.action_labels import label_column
from rllib_llm.data.episode_data import SOURCES, agent_episodes, episode_data
from rllib_llm.data.types import Choice, Prompt, StopPolicy, Turn
from rllib_llm.losses.aggregation import token_weights
from rllib_llm.pictures.placement import PictureRef
from rllib_llm.pictures.row_pictures import Placed, picture_columns
from rllib_llm.pictures.spec import ImageSpec

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from ray.rllib.core.rl_module.rl_module import RLModule
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode


@dataclasses.dataclass(frozen=True)
class RowSettings:
    """Settings of a policy's rows.

    Attributes:
        pad_id: Id for padding.
        loss_agg_mode: Aggregation of token losses; its weights become a column.
        loss_agg_constant: The constant of ``seq-mean-token-sum-norm``.
        row_per_turn: One row per turn instead of merged rows.
        has_critic: Whether a truncated episode is bootstrapped with a value; if not,
            its rows end with the last turn.
        observation_weight: Loss weight of prompt tokens, relative to sampled ones; 0
            trains none of them, as all algorithms except imitation require.
        pattern_mask: Finds the sampled tokens that are not trained; None: no pattern.
        pictures: Picture inputs of the model; None: it reads text alone.
        action_labels: Number of labels of parsed actions; None: no such column.
        expert_probs: Whether there is a column of the expert's probabilities.
    """

    pad_id: int
    loss_agg_mode: str = "token-mean"
    loss_agg_constant: float | None = None
    row_per_turn: bool = False
    has_critic: bool = True
    observation_weight: float = 0.0
    pattern_mask: PatternMask | None = None
    pictures: ImageSpec | None = None
    action_labels: int | None = None
    expert_probs: bool = False


class TokenRows(ConnectorV2):
    """Build the rows of every episode and stack them, policy by policy.

    Args:
        settings: Settings of each policy, by ModuleID; other policies get no rows.
        critic: ModuleID of a critic that gets the rows of all policies; None for none.

    Attributes:
        module_ids: Policies whose rows are built; the learner reduces it to those that
            it is about to update.
    """

    def __init__(
        self,
        settings: Mapping[str, RowSettings],
        critic: str | None = None,
    ):
        super().__init__()
        self.settings = dict(settings)
        self.critic = critic
        self.module_ids = tuple(settings)

    @override(ConnectorV2)
    def __call__(
        self,
        *,
        rl_module: RLModule | MultiRLModule,
        batch: dict[str, Any],
        episodes: list[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        parts_by_policy: dict[str, list[tuple[Any, int]]] = {}
        for multi_agent_index, episode in enumerate(episodes):
            for part in agent_episodes(episode):
                module_id = part.module_id or DEFAULT_MODULE_ID
                if module_id in self.module_ids:
                    parts_by_policy.setdefault(module_id, []).append(
                        (part, multi_agent_index)
                    )
        for module_id, parts in parts_by_policy.items():
            batch[module_id] = self._columns(parts, self.settings[module_id])
        if self.critic is not None and parts_by_policy:
            batch[self.critic] = self._columns(
                [p for parts in parts_by_policy.values() for p in parts],
                self.settings[self.module_ids[0]],
            )
        return batch

    def _columns(
        self, parts: list[tuple[Any, int]], settings: RowSettings
    ) -> dict[str, np.ndarray]:
        rows: list[Row] = []
        owners: list[tuple[int, int, int]] = []
        trained: list[bool] = []
        advantages: list[Any] = []
        success: list[float] = []
        sources: list[int] = []
        for index, (episode, multi_agent_index) in enumerate(parts):
            data = episode_data(episode)
            new_rows = _rows(episode, settings)
            rows += new_rows
            owners += [(index, multi_agent_index, data.agent_index)] * len(new_rows)
            trained += [data.stop_policy is not StopPolicy.MASK] * len(new_rows)
            advantages += [data.advantage] * len(new_rows)
            # NaN, not 0: an unknown outcome is no failure.
            solved = np.nan if data.success is None else float(data.success)
            success += [solved] * len(new_rows)
            sources += [SOURCES.index(data.source)] * len(new_rows)
        out = pad_rows(rows, pad_id=settings.pad_id, trained=trained)
        if settings.pictures is not None:
            stores = [episode_data(parts[owner[0]][0]).pictures for owner in owners]
            out |= picture_columns([r.images for r in rows], stores, settings.pictures)
        names = (
            columns.EPISODE_INDEX,
            columns.MULTI_AGENT_EPISODE_INDEX,
            columns.AGENT_INDEX,
        )
        for name, values in zip(names, zip(*owners, strict=True), strict=True):
            out[name] = np.asarray(values, np.int64)
        out[columns.SUCCESS] = np.asarray(success, np.float32)
        if any(sources):
            out[columns.SOURCE] = np.asarray(sources, np.int64)
        if settings.action_labels is not None:
            out[columns.ACTION_LABELS] = label_column(
                [parts[owner[0]][0] for owner in owners],
                out[columns.TURN_IDS],
                settings.action_labels,
            )
        if settings.expert_probs:
            size = out[columns.INPUT_IDS].shape
            out[columns.EXPERT_PROBS] = expert_column(rows, size)
        masked_turns = [episode_data(parts[o[0]][0]).masked_turns for o in owners]
        leave_out(out, masked_turns, settings.pattern_mask)
        mask = out[Columns.LOSS_MASK]
        out[Columns.ADVANTAGES] = _spread(advantages, out[columns.TURN_IDS], mask)
        # After tokens are left out, so that the weights cover trained tokens.
        out[columns.LOSS_WEIGHTS] = np.asarray(
            token_weights(
                mask,
                out[columns.EPISODE_INDEX],
                settings.loss_agg_mode,
                constant=settings.loss_agg_constant,
            ),
            np.float32,
        )
        if settings.observation_weight:
            weight = settings.observation_weight
            weigh_observations(out, weight, settings.pictures)
        return out


def _spread(
    advantages: list[Any], turn_ids: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """Assign each trained token the advantage of its episode or turn. [B, T]"""
    out = np.zeros(mask.shape, np.float32)
    for row, advantage in enumerate(advantages):
        if advantage is None:
            continue
        per_turn = np.asarray(advantage, np.float32)
        # Prompt tokens have turn -1 and so the last turn's entry; the mask removes
        # them.
        out[row] = per_turn if per_turn.ndim == 0 else per_turn[turn_ids[row]]
    return np.where(mask, out, np.float32(0))


def _rows(episode: SingleAgentEpisode, settings: RowSettings) -> list[Row]:
    data = episode_data(episode)
    # RLlib's stock EnvRunner sets no stop reason: bootstrap any truncated episode.
    bootstrap = settings.has_critic and (
        data.stop_reason is None or data.stop_policy is StopPolicy.BOOTSTRAP
    )
    return build_rows(
        episode.get_extra_model_outputs(columns.TURN),
        episode.get_rewards(),
        final_prompt=data.prompt,
        final_conversation=data.conversation,
        bootstrap=episode.is_truncated and bootstrap,
        row_per_turn=settings.row_per_turn,
    )


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
        images: Pictures: index of the first placeholder, and digest.
        allowed: Tokens that a nucleus mask allowed.
    """

    ids: np.ndarray
    turn_ids: np.ndarray
    steps: np.ndarray
    logps: np.ndarray
    rewards: np.ndarray
    bootstrap: bool = False
    bootstraps_agent_turn: bool = False
    choices: Choices | None = None
    images: Placed = dataclasses.field(default_factory=list)
    allowed: Allowed = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def end(self) -> int:
        """Column after the conversation's last token."""
        # Rejected actions lie behind the conversation and are not part of it.
        return len(self) if self.choices is None else self.choices.end


class RowBuilder:
    """Builder of a row from prompts and turns, in order."""

    def __init__(self) -> None:
        """Start an empty row."""
        self.parts: list[tuple[np.ndarray, ...]] = []
        self.length = 0
        self.choices: list[tuple[int, Turn, Choice]] = []
        self.images: Placed = []
        self.allowed: Allowed = []

    def prompt(
        self, ids: Sequence[int] | np.ndarray, images: Iterable[PictureRef] = ()
    ) -> None:
        """Append tokens that were not sampled, and their pictures."""
        self.images += [(self.length + ref.start, ref.digest) for ref in images]
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
        if turn.allowed is not None:
            self.allowed.append((self.length, turn.allowed))
        ids = np.asarray(turn.action_ids, np.int32)
        logps = np.asarray(turn.action_logps, np.float32)
        self.parts.append((ids, index_of, step, logps, rewards))
        self.length += n

    def build(self) -> Row:
        """Return the row."""
        choices = append_rejected(self) if self.choices else None
        ids, turn_ids, steps, logps, rewards = (
            np.concatenate(c) for c in zip(*self.parts, strict=True)
        )
        row = Row(ids, turn_ids, steps, logps, rewards, choices=choices)
        row.images, row.allowed = self.images, self.allowed
        return row


class History:
    """Tokens of a conversation's turns so far, and their pictures."""

    def __init__(self) -> None:
        """Start an empty history."""
        self.ids: list[np.ndarray] = []
        self.images: list[PictureRef] = []
        self._length = 0

    def append(self, turn: Turn) -> None:
        """Append the prompt and the action of a turn."""
        self.images += [ref.moved(self._length) for ref in turn.images]
        for part in (np.asarray(turn.prompt_ids), np.asarray(turn.action_ids)):
            self.ids.append(part)
            self._length += len(part)


def build_rows(
    turns: Sequence[Turn],
    rewards: Sequence[float],
    *,
    final_prompt: Prompt | None = None,
    final_conversation: int = 0,
    bootstrap: bool = False,
    row_per_turn: bool = False,
) -> list[Row]:
    """Return the rows of one episode.

    Args:
        turns: The recorded turns, in time order.
        rewards: One reward per turn.
        final_prompt: Prompt that would have come next; used if ``bootstrap``.
        final_conversation: Number of its conversation.
        bootstrap: Whether the episode was truncated, so that the critic's value at its
            end counts. With ``final_prompt`` that value includes the last observation.
        row_per_turn: Start a row at every turn even where the prefix holds. Each row
            then repeats its context: equal gradients at a higher cost.

    Returns:
        At least one row, in the order in which they start; ``bootstrap`` is set on the
        row of the last turn or prompt only.
    """
    started: list[RowBuilder] = []
    # By conversation: an agent's conversations may alternate.
    newest: dict[int, RowBuilder] = {}
    histories: dict[int, History] = {}

    def start(conversation: int) -> RowBuilder:
        builder = newest[conversation] = RowBuilder()
        started.append(builder)
        return builder

    for index, (turn, reward) in enumerate(zip(turns, rewards, strict=True)):
        number = turn.conversation
        history = histories.setdefault(number, History())
        if not turn.extends:
            history = histories[number] = History()
        # A row ends where the next prompt does not contain it unchanged.
        if number not in newest or row_per_turn or not turn.extends:
            builder = start(number)
            if history.ids:
                # Only with row_per_turn: otherwise the builder has the history already.
                builder.prompt(np.concatenate(history.ids), history.images)
        builder = newest[number]
        builder.prompt(turn.prompt_ids, turn.images)
        builder.turn(index, turn, reward)
        # Kept for row_per_turn only, whose rows repeat their context.
        history.append(turn)
    assert started, "An episode has at least one turn."
    # The last observation is only a prompt: nothing in it is trained.
    if bootstrap and final_prompt is not None:
        if final_conversation not in newest or not final_prompt.extends:
            start(final_conversation)
        builder = newest[final_conversation]
        builder.prompt(final_prompt.ids, final_prompt.images)
    rows = [each.build() for each in started]
    last = rows[started.index(builder)]
    last.bootstrap = bootstrap
    last.bootstraps_agent_turn = bootstrap and final_prompt is not None
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
    # One column more where a row bootstraps.
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
    out[Columns.LOSS_MASK] = sampled & np.asarray(trained, bool)[:, None]
    if any(row.choices is not None for row in rows):
        out |= pad_choices(rows, size)
    if any(row.allowed for row in rows):
        out |= allowed_column([row.allowed for row in rows], size)
    return out
