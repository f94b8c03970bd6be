"""Transcripts of a few episodes per iteration, carried by the result dictionary.

RLlib's result is the only channel that leads from every EnvRunner to the driver and
through Tune; a transcript travels in it as one JSON string. The record's fields are in
docs/metrics.md; ``version`` rises when their meaning changes.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.annotations import override
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS

from rllib_llm import columns
from rllib_llm.connectors.episode_data import episode_data

VERSION = 1
TRANSCRIPTS = "transcripts"  # key below env_runners/ and evaluation/env_runners/
TRAIN, EVALUATION = "train", "evaluation"

_PATHS = ((ENV_RUNNER_RESULTS,), (EVALUATION_RESULTS, ENV_RUNNER_RESULTS))


class TranscriptCollector(RLlibCallback):
    """Picks the best, the worst and some random episodes of every iteration.

    Active in every LLM algorithm. To change how much is kept, subclass it and hand the
    subclass to ``config.callbacks(...)``; it takes the default's place.

    Example:
        >>> class MoreTranscripts(TranscriptCollector):
        ...     per_iteration = 16

    Attributes:
        per_iteration: Episodes per sampling round and split, shared among the
            EnvRunners (rounded up); 0 switches transcripts off.
        max_chars: Longest observation or completion, in characters.
        max_turns: Most turns of an episode; the middle is left out.
    """

    per_iteration = 4
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
        runners = max(1, config.num_env_runners or 0)
        count = math.ceil(self.per_iteration / runners)
        if not count or not samples:
            return
        split = EVALUATION if config.in_evaluation else TRAIN
        for why, episode in pick_episodes(samples, count):
            record = transcript_record(
                episode,
                split=split,
                picked=why,
                max_chars=self.max_chars,
                max_turns=self.max_turns,
            )
            metrics_logger.log_value(
                TRANSCRIPTS, _dumps(record), reduce="item_series", window=count
            )

    @override(RLlibCallback)
    def on_train_result(self, *, result: dict[str, Any], **kwargs: Any) -> None:
        """Write the iteration into the records (on the driver)."""
        for holder in _holders(result):
            records = _parse(holder[TRANSCRIPTS])
            for record in records:
                record["iteration"] = result.get("training_iteration")
            holder[TRANSCRIPTS] = [_dumps(record) for record in records]


def pick_episodes(episodes: list[Any], count: int) -> Iterator[tuple[str, Any]]:
    """Yield up to ``count`` pairs of why (best, worst, random) and episode.

    The random ones are the same for the same episodes, so that runs stay repeatable.
    """
    order = sorted(range(len(episodes)), key=lambda i: -episodes[i].get_return())
    seeds = [_seed(e) for e in episodes]
    rng = random.Random(repr(seeds))
    picks = [("best", order[0])] if count > 1 else []
    if count > 1 and len(order) > 1:
        picks.append(("worst", order[-1]))
    taken = {i for _, i in picks}
    rest = [i for i in order if i not in taken]
    more = min(len(rest), count - len(picks))
    picks += [("random", i) for i in rng.sample(rest, more)]
    for why, index in picks:
        yield why, episodes[index]


def transcript_record(
    episode: Any, *, split: str, picked: str, max_chars: int, max_turns: int
) -> dict[str, Any]:
    """Return what is kept of one finished episode (schema: docs/metrics.md)."""
    data = episode_data(episode)
    task = data.task
    told = told_turns(episode)
    shown = [told[i] for i in _ends(len(told), max_turns)]
    return {
        "version": VERSION,
        "iteration": None,
        "split": split,
        "picked": picked,
        "group_id": task.group_id if task else None,
        "rollout": task.rollout if task else None,
        "seed": task.seed if task else None,
        "return": _number(episode.get_return()),
        "success": data.success,
        "stop_reason": data.stop_reason.value if data.stop_reason else None,
        "stop_policy": data.stop_policy.value,
        "advantage": _number(data.advantage),
        "weights": int(told[0][2].weights_seq_no) if told else None,
        "num_turns": len(told),
        "num_tokens": data.num_sampled,
        "agents": sorted({part.agent_id for part, _, _ in told if part.agent_id}),
        "turns": [_turn_record(*each, max_chars) for each in shown],
        "final_observation": _shorten(_last_words(episode), max_chars),
    }


def told_turns(episode: Any) -> list[tuple[Any, int, Any]]:
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


def _turn_record(part: Any, index: int, turn: Any, max_chars: int) -> dict[str, Any]:
    whole = turn.choice is not None  # its log-probability stands on the first token
    logps = np.asarray(turn.action_logps[: 1 if whole else None], np.float64)
    return {
        "turn": turn.env_t,
        "agent": part.agent_id,
        "policy": part.module_id,
        "observation": _shorten(part.get_observations(index), max_chars),
        "completion": _shorten(part.get_actions(index), max_chars),
        "reward": _number(part.get_rewards(index)),
        "tokens": len(turn.action_ids),
        "logp_mean": _number(logps.mean(), 4) if logps.size else None,
        "finish": turn.finish.value,
        "invalid": turn.invalid,
    }


# Reading them from a result ----------------------------------------------------------


def read_result(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the transcripts of an iteration's result, training ones first."""
    return [r for holder in _holders(result) for r in _parse(holder[TRANSCRIPTS])]


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


def _parse(value: Any) -> list[dict[str, Any]]:
    # RLlib turns a series of one item into the item, and an empty one into NaN or [].
    items: Iterable[Any] = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return []
    return [json.loads(item) for item in items if isinstance(item, str)]


# Making them small and safe ----------------------------------------------------------


def _dumps(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def _shorten(text: Any, max_chars: int) -> str:
    """Cut the middle out of a long text; make it encodable in any case."""
    text = str(text)
    if len(text) > max_chars:
        head = max_chars * 3 // 4
        tail = max_chars - head
        cut = len(text) - max_chars
        text = f"{text[:head]}\n... [{cut} characters cut] ...\n{text[-tail:]}"
    return text.encode("utf-8", "replace").decode("utf-8")


def _ends(total: int, most: int) -> list[int]:
    if total <= most:
        return list(range(total))
    head = most - most // 2
    return [*range(head), *range(total - most // 2, total)]


def _number(value: Any, digits: int = 6) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return round(float(value), digits)


def _seed(episode: Any) -> Any:
    task = episode_data(episode).task
    return (task.seed, task.rollout) if task else None
