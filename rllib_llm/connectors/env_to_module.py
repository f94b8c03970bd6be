"""env-to-module: observations become token deltas."""

from __future__ import annotations

from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.utils.annotations import override

from rllib_llm.connectors.chat import ChatRenderer, Prompt
from rllib_llm.connectors.episode_data import EpisodeData, episode_data

PROMPTS = "prompts"
STOP_TOKEN_IDS = "stop_token_ids"


class RenderChat(ConnectorV2):
    """Append the newest observation to the conversation and render what is new.

    Writes a :class:`Prompt` into the episode's :class:`EpisodeData` and, for stock env
    runners, that data into the batch column ``prompts``. An episode that is over gets
    an empty prompt unless it was truncated: then its last observation is rendered too,
    so that the critic can bootstrap from it.

    Args:
        renderer: The chat template's renderer.
        system_prompt: First message of every conversation, if any.
    """

    def __init__(self, renderer: ChatRenderer, system_prompt: str | None = None):
        super().__init__()
        self.renderer = renderer
        self.system_prompt = system_prompt

    @override(ConnectorV2)
    def __call__(
        self,
        *,
        rl_module: Any,
        batch: dict[str, Any],
        episodes: list[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        for episode in self.single_agent_episode_iterator(
            episodes, agents_that_stepped_only=True
        ):
            data = episode_data(episode)
            data.is_over = episode.is_done
            if not episode.is_terminated:
                data.prompt = self._prompt(data, episode.get_observations(-1))
            else:
                data.prompt = Prompt([], extends=True)
            self.add_batch_item(
                batch, PROMPTS, item_to_add=data, single_agent_episode=episode
            )
        batch[STOP_TOKEN_IDS] = self.renderer.stop_token_ids
        return batch

    def _prompt(self, data: EpisodeData, observation: str) -> Prompt:
        message = {"role": "user", "content": str(observation)}
        if not data.messages:
            opening = [message]
            if self.system_prompt:
                opening.insert(0, {"role": "system", "content": self.system_prompt})
            data.messages.extend(opening)
            return Prompt(self.renderer.first(data.messages), extends=True)
        data.messages.append(message)
        return self.renderer.next(data.messages, data.ids, last_sampled_id=data.ids[-1])
