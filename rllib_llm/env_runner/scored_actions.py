"""Seats whose policy chooses among the actions that the environment admits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rllib_llm.connectors.chat import ChatRenderer
from rllib_llm.connectors.learner.micro_batches import micro_batches
from rllib_llm.connectors.learner.rows import Row, RowBuilder, pad_rows
from rllib_llm.data.types import Choice, FinishReason, Turn
from rllib_llm.envs.admissible import admissible_actions
from rllib_llm.errors import EnvContractError
from rllib_llm.modules.action_head import score_weight


class ActionScorer:
    """Scores the admissible actions with a language model and draws one of them.

    All waiting seats share forward passes. Actions are drawn with the seeds of their
    turns, so they do not depend on who else is waiting, up to the rounding of
    differently sized batches.

    Args:
        module: The LLMRLModule.
        module_id: Its name.
        renderer: Of its chat template.
        norm: How scores are normalised (rllib_llm.modules.action_head).
        max_tokens: Token positions per pass; None means no limit.

    Attributes:
        weights_seq_no: Version of the weights.
    """

    def __init__(
        self,
        module: Any,
        module_id: str,
        renderer: ChatRenderer,
        norm: str = "sum",
        max_tokens: int | None = None,
    ):
        self.module, self.module_id = module.eval(), module_id
        self.renderer, self.norm, self.max_tokens = renderer, norm, max_tokens
        self.weights_seq_no = 0
        self._encoded: dict[str, np.ndarray] = {}

    def least_tokens(self, agent_state: Any) -> int:
        """Return the room that any of the seat's actions needs, in tokens.

        Raises:
            EnvContractError: If the environment lists no actions, or unfit ones.
        """
        return max(len(self._encode(text)) for text in _actions(agent_state))

    @torch.no_grad()
    def choose(
        self, agent_states: Sequence[Any], seeds: Sequence[int], *, explore: bool
    ) -> list[Turn]:
        """Choose an action for each seat.

        Args:
            seats: Whose turn it is; their prompts are due.
            seeds: One per seat.
            explore: Draw from the policy, or take the likeliest action.
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
                chances = logps.exp().cumsum(0)
                point = np.random.default_rng(seeds[i]).random() * chances[-1]
                chosen = int(torch.searchsorted(chances, point, right=True))
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
        found: dict[int, torch.Tensor] = {}
        for index, part in micro_batches(batch, self.max_tokens):
            logps = self.module.action_logps(part).double().cpu()
            found |= dict(zip(index.tolist(), logps, strict=True))
        return [found[i][found[i] > -torch.inf] for i in range(len(rows))]

    def _row(self, agent_state: Any, options: list[str]) -> Row:
        """Return the conversation with all actions behind it."""
        builder, data = RowBuilder(), agent_state.data
        if data.prompt.extends:
            builder.prompt(data.ids)
        builder.prompt(data.prompt.ids)
        builder.turn(0, self._turn(agent_state, options, 0, 0.0), 0.0)
        return builder.build()

    def _turn(
        self, agent_state: Any, options: list[str], chosen: int, logp: float
    ) -> Turn:
        order = [chosen, *(i for i in range(len(options)) if i != chosen)]
        texts = [options[i] for i in order]
        action, *others = map(self._encode, texts)
        weights = [
            score_weight(self.norm, len(ids), text)
            for ids, text in zip((action, *others), texts, strict=True)
        ]
        logps = np.zeros(len(action), np.float32)
        logps[0] = logp
        return Turn(
            prompt_ids=np.asarray(agent_state.data.prompt.ids, np.int32),
            extends=agent_state.data.prompt.extends,
            action_ids=action,
            action_logps=logps,
            finish=FinishReason.STOP,
            weights_seq_no=self.weights_seq_no,
            module_id=self.module_id,
            choice=Choice(others, np.asarray(weights, np.float32)),
        )

    def _encode(self, text: str) -> np.ndarray:
        """Return the ids of an action, its end of turn included."""
        ids = self._encoded.get(text)
        if ids is None:
            listed = self.renderer.encode_reply(text)
            heard = self.renderer.decode(listed)
            if heard != text:
                raise EnvContractError(
                    f"The admissible action {text!r} of {self.module_id!r} reads "
                    f"{heard!r} in the model's tokens. Name it in a way that its "
                    "tokenizer keeps, e.g. without control tokens or outer spaces."
                )
            ids = self._encoded[text] = np.asarray(listed, np.int32)
        return ids


def _actions(agent_state: Any) -> list[str]:
    agent, turn = agent_state.agent_id, agent_state.data.num_turns
    where = f"The environment of {agent!r} at turn {turn}"
    return admissible_actions(agent_state.episode.get_infos(-1), where)
