"""env-to-module connector: observations to token deltas."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.utils.annotations import override

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.connectors.requested_prompts import requested_prompt
from rllib_llm.connectors.tool_prompts import later, opening
from rllib_llm.data.edits import DELETED, delete_observations
from rllib_llm.data.episode_data import EpisodeData, episode_data
from rllib_llm.data.model_calls import MODEL_REQUEST
from rllib_llm.data.types import Message, Prompt
from rllib_llm.pictures.contract import stored

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModule
    from ray.rllib.core.rl_module.rl_module import RLModule
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

logger = logging.getLogger("rllib_llm")

PROMPTS = "prompts"
STOP_TOKEN_IDS = "stop_token_ids"
WAITING = "waiting_for_policies"  # shared_data: agents' episodes by policy


class RenderChat(ConnectorV2):
    """Append the newest observation to the conversation and render the new part.

    Writes a :class:`Prompt` into the episode's :class:`EpisodeData` and, for stock env
    runners, that data into the batch column ``prompts``. A terminated episode gets an
    empty prompt. A truncated one gets its last observation, so that the critic can
    bootstrap from it.

    Args:
        renderers: The chat template's renderer of each policy, by ModuleID; None for a
            policy that reads text (a scripted one).
        system_prompts: First message of a policy's conversations, by ModuleID.
        role_prompts: First message for agents whose policy has none, by AgentID.
        max_context_tokens: Longest conversation of each policy, by ModuleID. An
            observation with more characters than so many tokens can hold is truncated
            before it is encoded; it overflows the context in any case, at once.
    """

    def __init__(
        self,
        renderers: Mapping[str, ChatRenderer | None],
        system_prompts: Mapping[str, str] | None = None,
        role_prompts: Mapping[str, str] | None = None,
        max_context_tokens: Mapping[str, int | None] | None = None,
    ):
        super().__init__()
        self.renderers = renderers
        self.system_prompts = dict(system_prompts or {})
        self.role_prompts = dict(role_prompts or {})
        self.max_context_tokens = dict(max_context_tokens or {})
        self._max_chars: dict[str, int] = {}  # of an observation, by ModuleID

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
        # RLlib's MultiAgentEpisode; the pipeline is the same for both kinds of runners.
        if episodes and hasattr(episodes[0], "agent_episodes"):
            assert shared_data is not None  # RLlib passes it
            return self._by_policy(episodes, shared_data)
        for episode in self.single_agent_episode_iterator(
            episodes, agents_that_stepped_only=True
        ):
            data = episode_data(episode)
            # The stock runner passes finished episodes once more, with their last
            # observation.
            data.is_over = episode.is_done
            if not episode.is_terminated:
                data.prompt = self._prompt(data, episode)
            else:
                data.prompt = Prompt([], extends=True)
            self.add_batch_item(
                batch, PROMPTS, item_to_add=data, single_agent_episode=episode
            )
        if DEFAULT_MODULE_ID in self.renderers:  # RLlib's stock runner samples itself
            # The pipeline's only way to pass settings to forward_exploration() is the
            # batch.
            batch[STOP_TOKEN_IDS] = self._renderer(DEFAULT_MODULE_ID).stop_token_ids
        return batch

    def _renderer(self, module_id: str) -> ChatRenderer:
        """Return the renderer of a language model."""
        renderer = self.renderers[module_id]
        assert renderer is not None, f"{module_id} is no language model."
        return renderer

    def _by_policy(
        self, episodes: list[Any], shared_data: dict[str, Any]
    ) -> dict[str, Any]:
        """Return each policy's prompts, for RLlib's stock multi-agent runner.

        ``shared_data`` keeps their agents, so that module-to-env finds the way back.
        """
        waiting: dict[str, list[tuple[int, Any]]] = {}
        for index, episode in enumerate(episodes):
            for agent in sorted(episode.get_agents_that_stepped()):
                part = episode.agent_episodes[agent]
                data = episode_data(part)
                if not part.is_terminated:
                    data.prompt = self._prompt(data, part)
                # Agents that have ended are rendered above for the critic, but do not
                # act.
                if not part.is_done:
                    waiting.setdefault(part.module_id, []).append((index, part))
        shared_data[WAITING] = waiting
        return {
            module_id: {
                PROMPTS: {module_id: [episode_data(part) for _, part in parts]},
                STOP_TOKEN_IDS: self._renderer(module_id).stop_token_ids,
            }
            for module_id, parts in waiting.items()
        }

    def _prompt(self, data: EpisodeData, episode: SingleAgentEpisode) -> Prompt | None:
        module_id = episode.module_id or DEFAULT_MODULE_ID
        renderer = self.renderers.get(module_id)
        text, info = str(episode.get_observations(-1)), episode.get_infos(-1) or {}
        info = stored(
            data.pictures, info
        )  # of RLlib's own runners, whose infos keep it
        # The environment's prompt for this agent, then the policy's, then the role's.
        system = data.system or self.system_prompts.get(module_id)
        if MODEL_REQUEST in info:
            return requested_prompt(data, info[MODEL_REQUEST], renderer, system)
        text, info = self._cut(text, module_id), self._cut_results(info, module_id)
        # Not the first observation: render only the part after the sampled tokens.
        if data.messages:
            deleted = info.get(DELETED, ())
            delete_observations(data.messages, deleted)
            messages = later(text, info, data.tools)
            data.messages += with_later_texts(messages, data, episode)
            if renderer is None:
                return None
            if deleted:
                return renderer.again(data.messages, data.tools)
            return renderer.next(
                data.messages,
                data.ids,
                last_sampled_id=data.ids[-1],
                tools=data.tools,
            )
        text = data.first_message(text)
        agent_id = episode.agent_id or DEFAULT_AGENT_ID
        system = system or self.role_prompts.get(agent_id)
        data.messages, data.tools = opening(
            text, info, system=system, renderer=renderer
        )
        # A scripted policy reads messages; it has no tokens.
        if renderer is None:
            return None
        return renderer.opened(data.messages, data.tools)

    def _cut_results(self, info: dict[str, Any], module_id: str) -> dict[str, Any]:
        results = info.get("tool_results")
        if not results:
            return info
        cut = [{**r, "content": self._cut(r["content"], module_id)} for r in results]
        return {**info, "tool_results": cut}

    def _cut(self, text: str, module_id: str) -> str:
        """Return the text, at most as long as the policy's context can hold."""
        limit = self.max_context_tokens.get(module_id)
        # A text this short is never cut: even if it overflows the context, encoding it
        # is cheap.
        if limit is None or len(text) <= limit:
            return text
        if module_id not in self._max_chars:
            longest = self._renderer(module_id).longest_token
            # One token more than fits, so that a truncated text still overflows.
            self._max_chars[module_id] = (limit + 1) * longest
        max_chars = self._max_chars[module_id]
        if len(text) > max_chars:
            logger.warning(
                "Truncated an observation of %s characters for policy %s to %s: "
                "max_context_tokens=%s cannot hold more. Return shorter observations, "
                "or raise max_context_tokens.",
                len(text),
                module_id,
                max_chars,
                limit,
            )
        return text[:max_chars]


def with_later_texts(
    messages: list[Message], data: EpisodeData, episode: SingleAgentEpisode
) -> list[Message]:
    """Return the messages of a later observation, the first with added texts."""
    if data.text_source is None:
        return messages
    shown = data.later_message(
        messages[0]["content"],
        [str(observation) for observation in episode.get_observations()],
        [str(action) for action in episode.get_actions()],
    )
    return [{**messages[0], "content": shown}, *messages[1:]]
