"""module-to-env connector: sampled ids to the action text of the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.utils.annotations import override

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.connectors.env_to_module import WAITING
from rllib_llm.connectors.requested_prompts import reply_to
from rllib_llm.data import columns
from rllib_llm.data.episode_data import EpisodeData, episode_data
from rllib_llm.data.model_calls import ModelReply

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from ray.rllib.core.rl_module.rl_module import RLModule

_THINKING = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)


def strip_thinking(text: str) -> str:
    """Return the text without ``<think>...</think>`` (to the end if unclosed)."""
    return _THINKING.sub("", text)


class DecodeAction(ConnectorV2):
    """Decode each sampled turn once, record it as a message, pass it to the env.

    This connector does not check actions. The environment's ``parse`` decides whether a
    text holds an action, and its reward for an invalid turn applies (see
    :class:`rllib_llm.envs.TextEnv`).

    Args:
        renderers: The chat template's renderer of each policy, by ModuleID.
        preprocess: Applied to the text before the environment reads it; thinking is
            removed by default. The recorded message keeps the full text.
    """

    def __init__(
        self,
        renderers: Mapping[str, ChatRenderer | None],
        preprocess: Callable[[str], str] | None = strip_thinking,
    ):
        super().__init__()
        self.renderers = renderers
        self.preprocess = preprocess

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
        if episodes and hasattr(episodes[0], "agent_episodes"):
            assert shared_data is not None  # RLlib passes it
            return self._by_agent(batch, len(episodes), shared_data[WAITING])
        texts = [
            self._text(episode_data(episode), episode.module_id or DEFAULT_MODULE_ID)
            for episode in self.single_agent_episode_iterator(
                episodes, agents_that_stepped_only=False
            )
        ]
        # An object array: RLlib's unbatching would split a list of strings.
        batch[Columns.ACTIONS] = np.empty(len(texts), dtype=object)
        batch[Columns.ACTIONS][:] = texts
        return batch

    def _by_agent(
        self,
        batch: dict[str, Any],
        num_episodes: int,
        waiting: dict[str, list[tuple[int, Any]]],
    ) -> dict[str, Any]:
        """Return each agent's text and turn, for RLlib's stock multi-agent runner."""
        actions: list[dict[str, Any]] = [{} for _ in range(num_episodes)]
        turns: list[dict[str, Any]] = [{} for _ in range(num_episodes)]
        for module_id, parts in waiting.items():
            new_turns = batch[module_id][columns.TURN]
            for (index, part), turn in zip(parts, new_turns, strict=True):
                text = self._text(episode_data(part), module_id)
                actions[index][part.agent_id] = text
                turns[index][part.agent_id] = turn
        return {Columns.ACTIONS: actions, columns.TURN: turns}

    def _text(self, data: EpisodeData, module_id: str) -> str | ModelReply:
        if data.sampled is None:  # RLlib's stock runner passes finished episodes too
            return ""
        renderer = self.renderers[module_id]
        assert renderer is not None, f"{module_id} is no language model."
        text = renderer.decode(data.sampled)
        # With thinking: the next prompt is rendered from the messages, and whether the
        # template keeps thinking is the template's decision.
        data.messages.append({"role": "assistant", "content": text})
        shown = self._shown(text)
        for candidate in data.candidates.get(data.num_turns - 1, ()):
            candidate.text = renderer.decode(candidate.turn.action_ids.tolist())
            candidate.action = self._shown(candidate.text)
        action = (
            reply_to(data, renderer, text, shown) if data.request is not None else shown
        )
        # Decoded once: a second call must not record the turn again.
        data.sampled = None
        return action

    def _shown(self, text: str) -> str:
        """Return what the environment receives of a reply."""
        return self.preprocess(text) if self.preprocess is not None else text
