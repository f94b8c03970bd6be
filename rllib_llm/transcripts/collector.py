"""Transcripts of a few episodes per iteration, carried by the result dictionary.

RLlib's result is the only channel that leads from every EnvRunner to the driver and
through Tune; a transcript travels in it as one JSON string. The EnvRunner begins it;
driver and Learners add notes (transcript_annotations.py). Its fields are in
docs/transcripts.md; ``version`` rises when their meaning changes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS

from rllib_llm.data import columns
from rllib_llm.data.episode_data import episode_data
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

TRANSCRIPTS = "transcripts"  # key below env_runners/ and evaluation/env_runners/
TRAIN, EVALUATION = "train", "evaluation"

_PATHS = ((ENV_RUNNER_RESULTS,), (EVALUATION_RESULTS, ENV_RUNNER_RESULTS))


class TranscriptCollector(RLlibCallback):
    """Picks the best, the worst and some random episodes of every iteration.

    Where tasks have several rollouts it picks groups, by their mean return, and keeps
    the siblings. Active in every LLM algorithm. To change how much is kept, subclass it
    and hand the subclass to ``config.callbacks(...)``; it takes the default's place.

    Example:
        >>> class MoreTranscripts(TranscriptCollector):
        ...     per_iteration = 16

    Attributes:
        per_iteration: Episodes per sampling round and split, shared among the
            EnvRunners (rounded up); 0 switches transcripts off.
        groups_per_iteration: The like, of groups where ``group_size`` is above 1.
        max_group_mates: Most episodes kept of a group.
        max_tokens: Sampled tokens per sampling round and split that are kept one by
            one, with what the Learner makes of them, shared among the EnvRunners; 0
            keeps texts alone. Ten to sixty bytes each.
        max_size: Characters of JSON per sampling round and split, before the Learner
            adds to it, shared among the EnvRunners. Episodes beyond it are left out,
            siblings first; one always stays.
        max_chars: Longest observation or completion, in characters.
        max_turns: Most turns of an episode; the middle is left out.
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
        env_runner: Any = None,
        metrics_logger: Any = None,
        samples: list[Any],
        **kwargs: Any,
    ) -> None:
        """Log the picked episodes (on the EnvRunner)."""
        config = env_runner.config
        if not self.per_iteration or not samples:
            return
        runners = max(1, config.num_env_runners or 0)
        budget = self.max_tokens // runners
        renderers = config.chat_renderers() if budget else {}
        tokenizers = {m: r.tokenizer for m, r in renderers.items() if r is not None}
        picked, most = self._pick(samples, runners)
        split = EVALUATION if config.in_evaluation else TRAIN
        texts: list[str] = []
        with_tokens: list[bool] = []
        for why, episode in picked:
            sampled = episode_data(episode).num_sampled
            with_tokens.append(0 < sampled <= budget)
            budget -= sampled * with_tokens[-1]
            tokens = tokenizers if with_tokens[-1] else None
            texts.append(dumps(self._record(episode, split, why, tokens)))
        for place in that_fit(picked, texts, self.max_size // runners):
            metrics_logger.log_value(
                TRANSCRIPTS, texts[place], reduce="item_series", window=most
            )
            data = episode_data(picked[place][1])
            data.is_annotated = split == TRAIN
            data.annotates_tokens = data.is_annotated and with_tokens[place]

    def _record(
        self, episode: Any, split: str, why: str, tokenizers: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        return transcript_record(
            episode,
            split=split,
            picked=why,
            max_chars=self.max_chars,
            max_turns=self.max_turns,
            tokenizers=tokenizers,
        )

    def _pick(
        self, samples: Sequence[Any], runners: int
    ) -> tuple[list[tuple[str, Any]], int]:
        """Return pairs of why and episode, and how many there can be."""
        groups = groups_of(samples)
        if len(groups) == len(samples):
            count = math.ceil(self.per_iteration / runners)
            return list(select_episodes(samples, count)), count
        count = math.ceil(self.groups_per_iteration / runners)
        picked = select_groups(groups, count, self.max_group_mates)
        return list(picked), count * self.max_group_mates

    @override(RLlibCallback)
    def on_train_result(self, *, result: dict[str, Any], **kwargs: Any) -> None:
        """Write iteration and notes into the records (on the driver)."""
        notes = pop_annotations(result)
        for holder in _holders(result):
            records = parse(holder[TRANSCRIPTS])
            for record in records:
                record["iteration"] = result.get("training_iteration")
            write_annotations(records, notes)
            holder[TRANSCRIPTS] = [dumps(record) for record in records]


# What is kept of them ----------------------------------------------------------------


def transcript_record(
    episode: Any,
    *,
    split: str,
    picked: str,
    max_chars: int,
    max_turns: int,
    tokenizers: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what is kept of one finished episode (schema: docs/transcripts.md).

    Args:
        episode: RLlib's record.
        split: ``"train"`` or ``"evaluation"``.
        picked: Why this one.
        max_chars: Longest text.
        max_turns: Most turns.
        tokenizers: Of each policy, by ModuleID, to keep tokens one by one; None: the
            texts are enough.
    """
    data = episode_data(episode)
    task = data.task
    told = observed_turns(episode)
    shown = [told[i] for i in _ends(len(told), max_turns)]
    return {
        "version": VERSION,
        "iteration": None,
        "episode": episode.id_,
        "split": split,
        "picked": picked,
        "group_id": task.group_id if task else None,
        "rollout": task.rollout if task else None,
        "seed": task.seed if task else None,
        "return": number(episode.get_return()),
        "success": data.success,
        "stop_reason": data.stop_reason.value if data.stop_reason else None,
        "stop_policy": data.stop_policy.value,
        "trained": False,
        "advantage": None,
        "weights": int(told[0][2].weights_seq_no) if told else None,
        "num_turns": len(told),
        "num_tokens": data.num_sampled,
        "agents": sorted({part.agent_id for part, _, _ in told if part.agent_id}),
        "turns": [_turn_record(*each, max_chars, tokenizers) for each in shown],
        "final_observation": _shorten(_last_words(episode), max_chars),
    }


def observed_turns(episode: Any) -> list[tuple[Any, int, Any]]:
    """Return all turns of an episode in the order in which they were taken.

    Each is an agent's part of the episode, the turn's index there, and the turn. In a
    MultiAgentEpisode turns that scripts made are among them.
    """
    parts = getattr(episode, "agent_episodes", {None: episode}).values()
    parts = sorted(parts, key=lambda part: episode_data(part).agent_index)
    told = [
        (part, index, turn)
        for part in parts
        if len(part)
        for index, turn in enumerate(part.get_extra_model_outputs(columns.TURN))
    ]
    return sorted(told, key=lambda each: each[2].env_t)


def _last_words(episode: Any) -> str:
    parts = getattr(episode, "agent_episodes", None)
    if parts is None:
        return episode.get_observations(-1)
    return "\n".join(f"{a}: {part.get_observations(-1)}" for a, part in parts.items())


def _turn_record(
    part: Any,
    index: int,
    turn: Any,
    max_chars: int,
    tokenizers: Mapping[str, Any] | None,
) -> dict[str, Any]:
    whole = turn.choice is not None  # its log-probability stands on the first token
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
    }


# Reading them from a result ----------------------------------------------------------


def read_result(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the transcripts of an iteration's result, training ones first."""
    return [r for holder in _holders(result) for r in parse(holder[TRANSCRIPTS])]


def pop_transcripts(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Like :func:`read_result`, and take them out of ``result``."""
    records = read_result(result)
    for holder in _holders(result):
        del holder[TRANSCRIPTS]
    return records


def without_transcripts(result: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``result`` that lacks transcripts (other values are shared)."""
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


def _shorten(text: Any, max_chars: int) -> str:
    """Cut the middle out of a long text; make it encodable in any case."""
    text = str(text)
    if len(text) > max_chars:
        head = max_chars * 3 // 4
        tail = max_chars - head
        cut = len(text) - max_chars
        text = f"{text[:head]}\n... [{cut} characters cut] ...\n{text[-tail:]}"
    return _encodable(text)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _ends(total: int, most: int) -> list[int]:
    if total <= most:
        return list(range(total))
    head = most - most // 2
    return [*range(head), *range(total - most // 2, total)]
