"""Collector of transcripts of a few episodes per iteration.

RLlib's result is the only channel from every EnvRunner to the driver and through Tune,
so a transcript is one JSON string in it. The EnvRunner creates it; driver and Learners
add annotations (annotations.py). docs/transcripts.md has the fields; ``version`` rises
when their meaning changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
from rllib_llm.pictures.png import picture_records
from rllib_llm.transcripts.annotations import (
    compact,
    dumps,
    number,
    parse,
    pop_annotations,
    write_annotations,
)
from rllib_llm.transcripts.reader import VERSION
from rllib_llm.transcripts.selection import (
    groups_of,
    select_episodes,
    select_groups,
    that_fit,
)
from rllib_llm.transcripts.token_texts import decode_all, token_texts

if TYPE_CHECKING:
    from ray.rllib.env.env_runner import EnvRunner
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

    from rllib_llm.data.types import Turn
    from rllib_llm.types import Episode

TRANSCRIPTS = "transcripts"  # key below env_runners/ and evaluation/env_runners/
TRAIN, EVALUATION = "train", "evaluation"

_PATHS = ((ENV_RUNNER_RESULTS,), (EVALUATION_RESULTS, ENV_RUNNER_RESULTS))


class TranscriptCollector(RLlibCallback):
    """Records the best, the worst and some random episodes of every iteration.

    If tasks have several rollouts, it selects groups by their mean return and records
    all rollouts of a group. Active in every LLM algorithm. To record more or less, pass
    a subclass to ``config.callbacks(...)``; it replaces the default.

    Example:
        >>> class MoreTranscripts(TranscriptCollector):
        ...     per_iteration = 16

    Attributes:
        per_iteration: Episodes per sampling round and split, divided among the
            EnvRunners (rounded up); 0 switches transcripts off.
        groups_per_iteration: Likewise for groups if ``group_size`` is above 1.
        max_group_mates: Maximum episodes of a group.
        max_tokens: Sampled tokens per sampling round and split with token columns,
            including the Learner's, divided among the EnvRunners; 0: texts only. A
            token takes ten to sixty bytes.
        max_size: Characters of JSON per sampling round and split without the Learner's
            columns, divided among the EnvRunners. Episodes beyond it are dropped, group
            mates first, but at least one is kept.
        max_chars: Maximum characters of an observation or completion.
        max_turns: Maximum turns of an episode; those in the middle are dropped.
    """

    per_iteration = 4
    groups_per_iteration = 2
    max_group_mates = 8
    max_tokens = 5_000
    max_size = 400_000
    max_chars = 2_000
    max_turns = 64

    @override(RLlibCallback)
    def on_sample_end(
        self,
        *,
        env_runner: EnvRunner = None,
        metrics_logger: MetricsLogger = None,
        samples: list[Any],
        **kwargs: Any,
    ) -> None:
        """Log the selected episodes (on the EnvRunner)."""
        config = env_runner.config
        if not self.per_iteration or not samples:
            return
        runners = max(1, config.num_env_runners or 0)
        budget = self.max_tokens // runners
        renderers = config.chat_renderers() if budget else {}
        tokenizers = {m: r.tokenizer for m, r in renderers.items() if r is not None}
        selected, limit = self._select(samples, runners)
        split = EVALUATION if config.in_evaluation else TRAIN
        texts: list[str] = []
        with_tokens: list[bool] = []
        for why, episode in selected:
            sampled = episode_data(episode).num_sampled
            with_tokens.append(0 < sampled <= budget)
            budget -= sampled * with_tokens[-1]
            tokens = tokenizers if with_tokens[-1] else None
            texts.append(dumps(self._record(episode, split, why, tokens)))
        for place in that_fit(selected, texts, self.max_size // runners):
            metrics_logger.log_value(
                TRANSCRIPTS, texts[place], reduce="item_series", window=limit
            )
            data = episode_data(selected[place][1])
            data.is_annotated = split == TRAIN
            data.annotates_tokens = data.is_annotated and with_tokens[place]

    def _record(
        self,
        episode: Episode,
        split: str,
        why: str,
        tokenizers: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        return transcript_record(
            episode,
            split=split,
            selected_as=why,
            max_chars=self.max_chars,
            max_turns=self.max_turns,
            tokenizers=tokenizers,
        )

    def _select(
        self, samples: Sequence[Any], runners: int
    ) -> tuple[list[tuple[str, Any]], int]:
        """Return pairs of reason and episode, and their maximum number."""
        groups = groups_of(samples)
        if len(groups) == len(samples):
            count = math.ceil(self.per_iteration / runners)
            return list(select_episodes(samples, count)), count
        count = math.ceil(self.groups_per_iteration / runners)
        selected = select_groups(groups, count, self.max_group_mates)
        return list(selected), count * self.max_group_mates

    @override(RLlibCallback)
    def on_train_result(self, *, result: dict[str, Any], **kwargs: Any) -> None:
        """Write the iteration and annotations into the records (on the driver)."""
        notes = pop_annotations(result)
        for holder in _holders(result):
            records = parse(holder[TRANSCRIPTS])
            for record in records:
                record["iteration"] = result.get("training_iteration")
            write_annotations(records, notes)
            holder[TRANSCRIPTS] = [dumps(record) for record in records]


# Records ----------------------------------------------------------------


def transcript_record(
    episode: Episode,
    *,
    split: str,
    selected_as: str,
    max_chars: int,
    max_turns: int,
    tokenizers: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the transcript of a finished episode (docs/transcripts.md).

    Args:
        episode: RLlib's episode.
        split: ``"train"`` or ``"evaluation"``.
        selected_as: Reason for the selection.
        max_chars: Maximum characters of a text.
        max_turns: Maximum number of turns.
        tokenizers: Tokenizers by ModuleID, to record single tokens; None: texts only.
    """
    data = episode_data(episode)
    task = data.task
    turns = observed_turns(episode)
    kept = [turns[i] for i in _ends(len(turns), max_turns)]
    return {
        "version": VERSION,
        "iteration": None,
        "episode": episode.id_,
        "split": split,
        "selected_as": selected_as,
        "group_id": task.group_id if task else None,
        "rollout": task.rollout if task else None,
        "seed": task.seed if task else None,
        "environment": task.environment if task else None,
        "return": number(episode.get_return()),
        "success": data.success,
        "stop_reason": data.stop_reason.value if data.stop_reason else None,
        "stop_policy": data.stop_policy.value,
        "trained": False,
        "advantage": None,
        "weights": int(turns[0][2].weights_seq_no) if turns else None,
        "num_turns": len(turns),
        "num_tokens": data.num_sampled,
        "agents": sorted({part.agent_id for part, _, _ in turns if part.agent_id}),
        "turns": [_turn_record(*each, max_chars, tokenizers) for each in kept],
        "final_observation": _shorten(_final_observation(episode), max_chars),
    }


def observed_turns(episode: Episode) -> list[tuple[Any, int, Any]]:
    """Return all turns of an episode in order.

    Each is an agent's part of the episode, the turn's index in it, and the turn. Those
    of a MultiAgentEpisode include turns of scripted policies.
    """
    parts = getattr(episode, "agent_episodes", {None: episode}).values()
    parts = sorted(parts, key=lambda part: episode_data(part).agent_index)
    turns = [
        (part, index, turn)
        for part in parts
        if len(part)
        for index, turn in enumerate(part.get_extra_model_outputs(columns.TURN))
    ]
    return sorted(turns, key=lambda each: each[2].env_t)


def _final_observation(episode: Episode) -> str:
    parts = getattr(episode, "agent_episodes", None)
    if parts is None:
        return episode.get_observations(-1)
    return "\n".join(f"{a}: {part.get_observations(-1)}" for a, part in parts.items())


def _turn_record(
    part: SingleAgentEpisode,
    index: int,
    turn: Turn,
    max_chars: int,
    tokenizers: Mapping[str, Any] | None,
) -> dict[str, Any]:
    # The first token has the log-probability of a whole scored action.
    whole = turn.choice is not None
    logps = np.asarray(turn.action_logps[: 1 if whole else None], np.float64)
    tokenizer = (tokenizers or {}).get(part.module_id or DEFAULT_MODULE_ID)
    prompt = token_columns = None
    if tokenizer is not None and len(turn.action_ids):
        prompt = _shorten(decode_all(tokenizer, turn.prompt_ids), max_chars)
        padding = [math.nan] * (len(turn.action_ids) - len(logps))
        token_columns = {
            "text": [_encodable(t) for t in token_texts(tokenizer, turn.action_ids)],
            "logp": compact([*logps, *padding]),
        }
    return {
        "turn": turn.env_t,
        "index": index,
        "agent": part.agent_id,
        "agent_index": episode_data(part).agent_index,
        "policy": part.module_id,
        "observation": _shorten(part.get_observations(index), max_chars),
        "prompt": prompt,
        "completion": _shorten(part.get_actions(index), max_chars),
        "reward": number(part.get_rewards(index)),
        "reward_parts": {},
        "advantage": None,
        "tokens": len(turn.action_ids),
        "logp_mean": number(logps.mean(), 4) if logps.size else None,
        "finish": turn.finish.value,
        "invalid": turn.invalid,
        "columns": token_columns,
        **_shown_images(part, turn),
    }


def _shown_images(part: SingleAgentEpisode, turn: Turn) -> dict[str, Any]:
    """Return the turn's pictures as a field of its record, if it has any."""
    if not turn.images:
        return {}
    return {"images": picture_records(turn.images, episode_data(part).pictures)}


# Reading from a result ----------------------------------------------------------


def read_result(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the transcripts of an iteration's result, training ones first."""
    return [r for holder in _holders(result) for r in parse(holder[TRANSCRIPTS])]


def pop_transcripts(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Remove the transcripts from ``result`` and return them."""
    records = read_result(result)
    for holder in _holders(result):
        del holder[TRANSCRIPTS]
    return records


def without_transcripts(result: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``result`` without transcripts (other values are shared)."""
    copy = dict(result)
    for path in _PATHS:
        level = copy
        for key in path:
            if not isinstance(level.get(key), dict):
                break
            level[key] = dict(level[key])
            level = level[key]
        else:
            level.pop(TRANSCRIPTS, None)
    return copy


def _holders(result: dict[str, Any]) -> list[dict[str, Any]]:
    holders = []
    for path in _PATHS:
        level: Any = result
        for key in path:
            level = level.get(key) if isinstance(level, dict) else None
        if isinstance(level, dict) and TRANSCRIPTS in level:
            holders.append(level)
    return holders


# Making them small and safe ----------------------------------------------------------


def _shorten(text: str, max_chars: int) -> str:
    """Return the text with its middle cut if it is too long, encodable as UTF-8."""
    text = str(text)
    if len(text) > max_chars:
        head = max_chars * 3 // 4
        tail = max_chars - head
        cut = len(text) - max_chars
        text = f"{text[:head]}\n... [{cut} characters cut] ...\n{text[-tail:]}"
    return _encodable(text)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _ends(total: int, limit: int) -> list[int]:
    """Return the indices of the first and last items, ``limit`` at most."""
    if total <= limit:
        return list(range(total))
    head = limit - limit // 2
    return [*range(head), *range(total - limit // 2, total)]
