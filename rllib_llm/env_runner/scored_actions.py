"""Action scorer: chooses among the environment's admissible actions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.connectors.learner.token_rows import Row, RowBuilder, pad_rows
from rllib_llm.data.micro_batches import micro_batches
from rllib_llm.data.types import Choice, FinishReason, Turn
from rllib_llm.envs.admissible import admissible_actions, expert_probs
from rllib_llm.errors import EnvContractError
from rllib_llm.modules.action_head import score_weight

if TYPE_CHECKING:
    from rllib_llm.env_runner.recorder import AgentState
    from rllib_llm.modules.llm_rl_module import LLMRLModule


class ActionScorer:
    """Scores the admissible actions with a language model and draws one of them.

    All waiting agents share forward passes. Each action is drawn with the seed of its
    turn. It therefore does not depend on the other waiting agents, except through
    rounding in batches of different sizes.

    Args:
        module: The LLMRLModule.
        module_id: Its name.
        renderer: Renderer of its chat template.
        norm: Normalisation of the scores (rllib_llm.modules.action_head).
        max_tokens: Token positions per pass; None means no limit.

    Attributes:
        weights_seq_no: Version of the weights.
    """

    def __init__(
        self,
        module: LLMRLModule,
        module_id: str,
        renderer: ChatRenderer,
        norm: str = "sum",
        max_tokens: int | None = None,
    ):
        self.module, self.module_id = module.eval(), module_id
        self.renderer, self.norm, self.max_tokens = renderer, norm, max_tokens
        self.weights_seq_no = 0
        self._encoded: dict[str, np.ndarray] = {}

    def least_tokens(self, agent_state: AgentState) -> int:
        """Return the length of the agent's longest admissible action in tokens.

        Raises:
            EnvContractError: If the environment lists no actions, or invalid ones.
        """
        return max(len(self._encode(text)) for text in _actions(agent_state))

    @torch.no_grad()
    def choose(
        self, agent_states: Sequence[Any], seeds: Sequence[int], *, explore: bool
    ) -> list[Turn]:
        """Choose an action for each agent.

        Args:
            agent_states: The agents that must act, with rendered prompts.
            seeds: One per agent.
            explore: Draw from the policy (True), or take the most likely action.
        """
        began = time.perf_counter()
        options = [_actions(agent_state) for agent_state in agent_states]
        rows = [
            self._row(agent_state, o)
            for agent_state, o in zip(agent_states, options, strict=True)
        ]
        turns = []
        for i, logps in enumerate(self._score(rows)):
            chosen = int(logps.argmax())
            if explore:
                cumulative = logps.exp().cumsum(0)
                # Scaled by the sum, which rounding keeps from being exactly 1.
                point = np.random.default_rng(seeds[i]).random() * cumulative[-1]
                chosen = int(torch.searchsorted(cumulative, point, right=True))
            logp = float(logps[chosen])
            turns.append(self._turn(agent_states[i], options[i], chosen, logp))
        seconds = time.perf_counter() - began
        for turn in turns:
            turn.seconds = seconds
        return turns

    def _score(self, rows: list[Row]) -> list[torch.Tensor]:
        """Return log-probabilities of each row's actions. float64 [K] each"""
        padded = pad_rows(rows, pad_id=0, trained=[True] * len(rows))
        device = next(self.module.parameters()).device
        batch = {k: torch.as_tensor(v, device=device) for k, v in padded.items()}
        # Micro-batches come sorted by length: restore the order by row index.
        by_row: dict[int, torch.Tensor] = {}
        for index, part in micro_batches(batch, self.max_tokens):
            logps = self.module.action_logps(part).double().cpu()
            by_row |= dict(zip(index.tolist(), logps, strict=True))
        # -inf marks the padding up to the batch's largest number of actions.
        return [by_row[i][by_row[i] > -torch.inf] for i in range(len(rows))]

    def _row(self, agent_state: AgentState, options: list[str]) -> Row:
        """Return the conversation followed by all admissible actions."""
        builder, data = RowBuilder(), agent_state.data
        if data.due_prompt.extends:
            builder.prompt(data.ids)
        builder.prompt(data.due_prompt.ids)
        builder.turn(0, self._turn(agent_state, options, 0, 0.0), 0.0)
        return builder.build()

    def _turn(
        self, agent_state: AgentState, options: list[str], chosen: int, logp: float
    ) -> Turn:
        # A row has the chosen action first, as in Choice.
        order = [chosen, *(i for i in range(len(options)) if i != chosen)]
        texts = [options[i] for i in order]
        action, *others = map(self._encode, texts)
        weights = [
            score_weight(self.norm, len(ids), text)
            for ids, text in zip((action, *others), texts, strict=True)
        ]
        # The policy chooses whole actions: the first token carries the action's
        # log-probability, so that the sum over tokens is right.
        logps = np.zeros(len(action), np.float32)
        logps[0] = logp
        info, where = _last_info(agent_state)
        probs = expert_probs(info, options, where)
        weights_of = np.asarray(weights, np.float32)
        return Turn(
            prompt_ids=np.asarray(agent_state.data.due_prompt.ids, np.int32),
            extends=agent_state.data.due_prompt.extends,
            action_ids=action,
            action_logps=logps,
            finish=FinishReason.STOP,
            weights_seq_no=self.weights_seq_no,
            module_id=self.module_id,
            choice=Choice(others, weights_of, None if probs is None else probs[order]),
        )

    def _encode(self, text: str) -> np.ndarray:
        """Return the token ids of an action, including the end of turn."""
        ids = self._encoded.get(text)
        if ids is None:
            token_ids = self.renderer.encode_reply(text)
            decoded = self.renderer.decode(token_ids)
            if decoded != text:
                raise EnvContractError(
                    f"The admissible action {text!r} of {self.module_id!r} decodes to "
                    f"{decoded!r}; actions must survive the model's tokenizer "
                    "unchanged. Rename the action, e.g. without control tokens or "
                    "surrounding spaces."
                )
            ids = self._encoded[text] = np.asarray(token_ids, np.int32)
        return ids


def _actions(agent_state: AgentState) -> list[str]:
    return admissible_actions(*_last_info(agent_state))


def _last_info(agent_state: AgentState) -> tuple[dict[str, Any], str]:
    """Return the info before the agent's turn, and where it is, for messages."""
    agent, turn = agent_state.agent_id, agent_state.data.num_turns
    assert agent_state.episode is not None  # it has observed its prompt
    where = f"The environment of {agent!r} at turn {turn}"
    return agent_state.episode.get_infos(-1), where
