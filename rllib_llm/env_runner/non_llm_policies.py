"""Policies without a language model: RLModules with numeric spaces."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.utils.spaces.space_utils import (
    clip_action,
    get_base_struct_from_space,
    unsquash_action,
)

from rllib_llm.data.types import FinishReason, Turn
from rllib_llm.errors import ConfigError, EnvContractError

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule

_NO_IDS = np.zeros(0, np.int32)
_NO_LOGPS = np.zeros(0, np.float32)


def encoded_space(space: gym.Space) -> gym.Space:
    """Return an RLModule's input space: a Box as it is, any other space one-hot."""
    is_box = isinstance(space, gym.spaces.Box)
    return space if is_box else gym.spaces.utils.flatten_space(space)


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Encodes an agent's observation as input of an RLModule.

    Attributes:
        space: The environment's observation space.
    """

    space: gym.Space

    def __call__(self, observation: Any, agent: str) -> np.ndarray:
        """Return the encoded observation.

        Raises:
            EnvContractError: If it is not in the space.
        """
        if not self.space.contains(observation):
            raise EnvContractError(
                f"{agent!r} observes {observation!r}, which is not in the observation "
                f"space {self.space} of its policy, an RLModule. Map the agent to a "
                "policy with a fitting space, or correct the environment's space."
            )
        if isinstance(self.space, gym.spaces.Box):
            return observation
        return gym.spaces.utils.flatten(self.space, observation).astype(np.float32)


class NonLLMActor:
    """Computes actions with an RLModule, for all waiting agents in one forward pass.

    Each action is drawn with the seed of its turn. It therefore does not depend on the
    other waiting agents, except through rounding in batches of different sizes.

    Args:
        module: A TorchRLModule without recurrent state.
        module_id: Its name.
        action_space: The environment's action space.
        normalize_actions: As in RLlib: actions in [-1, 1] are scaled to a Box's bounds.
        clip_actions: As in RLlib: actions that are not normalised are clipped to them.

    Attributes:
        weights_seq_no: Version of the weights.

    Raises:
        ConfigError: If the module has a recurrent state.
    """

    def __init__(
        self,
        module: TorchRLModule,
        module_id: str,
        action_space: gym.Space,
        *,
        normalize_actions: bool = True,
        clip_actions: bool = False,
    ):
        if module.is_stateful():
            raise ConfigError(
                f"The RLModule of {module_id!r} has a recurrent state, but the env "
                "runner keeps no state between turns. Remove use_lstm, and include the "
                "needed history in the environment's observations."
            )
        self.module, self.module_id = module, module_id
        self.weights_seq_no = 0
        self._struct = get_base_struct_from_space(action_space)
        is_box = isinstance(action_space, gym.spaces.Box)
        self._to_env: Callable[[Any, Any], Any] | None = None
        if is_box and normalize_actions:
            self._to_env = unsquash_action
        elif is_box and clip_actions:
            self._to_env = clip_action

    @torch.no_grad()
    def act(
        self, agent_states: Sequence[Any], seeds: Sequence[int], *, explore: bool
    ) -> list[tuple[Turn, Any]]:
        """Compute the agents' actions from their last observations.

        Writes RLlib's record of the step into the agent states.

        Args:
            agent_states: The agents that must act.
            seeds: One per agent.
            explore: Draw from the exploration distribution (True), or take the mode of
                the inference distribution (False).

        Returns:
            The turn and the environment's action of each agent.
        """
        inputs, dist_class = self._forward(agent_states, explore)
        # As RLlib's connectors do: exploration samples, inference takes the mode.
        if explore:
            actions = _draw(inputs, dist_class, seeds)
            # PPO's old log-probabilities; RLlib's runner records them at this point,
            # too. [B]
            logps = dist_class.from_logits(inputs).logp(actions)
        else:
            mode = dist_class.from_logits(inputs).to_deterministic()
            actions = mode.sample()
            logps = mode.logp(actions)
        acted = []
        for i, agent_state in enumerate(agent_states):
            agent_state.recorded = actions[i].numpy()[()]  # [()]: Discrete as a scalar
            agent_state.outputs = {
                Columns.ACTION_DIST_INPUTS: inputs[i].numpy(),
                Columns.ACTION_LOGP: logps[i].numpy()[()],
            }
            acted.append((self._turn(), self._for_env(agent_state.recorded)))
        return acted

    def _forward(
        self, agent_states: Sequence[Any], explore: bool
    ) -> tuple[Any, type[Any]]:
        """Return the distributions' inputs [B, ...], on the CPU, and their class."""
        module = self.module
        # One forward pass for all agents that wait. [B, ...]
        observations = np.stack(
            [agent_state.episode.get_observations(-1) for agent_state in agent_states]
        )
        device = next(module.parameters()).device
        batch = {Columns.OBS: torch.as_tensor(observations, device=device)}
        if explore:
            out = module.forward_exploration(batch)
            dist_class = module.get_exploration_action_dist_cls()
        else:
            out = module.forward_inference(batch)
            dist_class = module.get_inference_action_dist_cls()
        if Columns.ACTION_DIST_INPUTS not in out:
            raise ConfigError(
                f"The RLModule of {self.module_id!r} returns {sorted(out)}, but PPO "
                f"needs {Columns.ACTION_DIST_INPUTS!r}. Return it from "
                "_forward_exploration and _forward_inference."
            )
        return out[Columns.ACTION_DIST_INPUTS].cpu(), dist_class

    def _for_env(self, action: np.ndarray) -> Any:
        return action if self._to_env is None else self._to_env(action, self._struct)

    def _turn(self) -> Turn:
        """Return a turn without tokens, which episode and metrics need."""
        return Turn(
            prompt_ids=_NO_IDS,
            extends=True,
            action_ids=_NO_IDS,
            action_logps=_NO_LOGPS,
            finish=FinishReason.STOP,
            weights_seq_no=self.weights_seq_no,
            module_id=self.module_id,
        )


def act_together(
    ready: Sequence[tuple[Any, Any]],
    actors: Mapping[str, NonLLMActor],
    seed_of: Callable[[Any, Any], int],
    *,
    explore: bool,
) -> Iterator[tuple[Any, Any, Turn, Any]]:
    """Compute the actions of RLModules, each for all of its waiting agents at once.

    Args:
        ready: Slots and agents that must act, including those of other policies.
        actors: The actors, by ModuleID.
        seed_of: Returns the seed of an agent's turn in a slot.
        explore: See :meth:`NonLLMActor.act`.

    Yields:
        Slot, agent state, turn, and the environment's action.
    """
    waiting: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
    for slot, agent_state in ready:
        # Another agent's context overflow may have ended the episode meanwhile.
        if agent_state.module_id in actors and slot.waiting_for is not None:
            waiting[agent_state.module_id].append((slot, agent_state))
    for module_id, group in waiting.items():
        seeds = [seed_of(*each) for each in group]
        agent_states = [agent_state for _, agent_state in group]
        acted = actors[module_id].act(agent_states, seeds, explore=explore)
        for (slot, agent_state), (turn, action) in zip(group, acted, strict=True):
            yield slot, agent_state, turn, action


def _draw(
    inputs: torch.Tensor, dist_class: type[Any], seeds: Sequence[int]
) -> torch.Tensor:
    """Return one action per row, each drawn with its own seed. [B, ...]"""
    drawn = []
    # The global generator must not depend on the number of agents that acted.
    with torch.random.fork_rng(devices=[]):
        for row, seed in zip(inputs, seeds, strict=True):
            # Not torch.manual_seed: it would reseed the accelerators as well.
            torch.default_generator.manual_seed(seed)
            drawn.append(dist_class.from_logits(row[None]).sample())
    return torch.cat(drawn)


def share_tensors(module: torch.nn.Module, other: torch.nn.Module) -> None:
    """Make ``module`` use the tensors of ``other``, which may have more of them."""
    sources = dict(other.named_parameters()) | dict(other.named_buffers())
    targets = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in targets.items():
        tensor.data = sources[name].data
