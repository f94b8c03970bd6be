"""Base class of the game adapters: options, invalid answers, limits, bookkeeping."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Dict
from pettingzoo import AECEnv

from rllib_llm.data.types import StopReason
from rllib_llm.envs.admissible import ADMISSIBLE
from rllib_llm.envs.env_options import SPLITS
from rllib_llm.envs.parsing import require_float, require_int
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError, EnvContractError, did_you_mean

# PettingZoo's api_test passes this option to reset.
_OPTION_OF_API_TEST = "options"
_LARGEST_REWARD = 1e6


class TextGame(AECEnv):
    """A turn-based game of another library as text (a PettingZoo AECEnv).

    Observations are ``{"text": str}``: everything new for the agent since its last
    move. An agent's text is made once, at its turn; ``observe`` repeats it.

    Invalid answers: an agent may give ``error_allowance`` of them in a row, each
    followed by a hint. One more ends the game with the stop reason ``parse_error``: the
    agent gets ``invalid_action_reward``, every other agent ``invalid_opponent_reward``,
    in addition to earlier rewards. The defaults are SPIRAL's (arXiv:2506.24119). Every
    answer counts towards ``max_turns``.

    Competitive games have no ``success``; ``metrics`` hold the winner instead.

    Subclasses implement ``_load`` and the hooks below it.

    Args:
        env_config: Options; ``options()`` lists them.

    Raises:
        ConfigError: If an option does not exist or has a value out of range.
        MissingExtraError: If the game's library is not installed.
    """

    _OPTIONS: ClassVar[dict[str, Any]] = {
        "max_turns": 100,
        "error_allowance": 0,
        "invalid_action_reward": -1.5,
        "invalid_opponent_reward": 0.5,
    }
    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "name": "text_game"}
    render_mode = None
    has_success = False
    has_winner = True

    def __init__(self, env_config: dict[str, Any] | None = None):
        given = dict(env_config or {})
        for name in given:
            if name not in self._OPTIONS:
                hint = did_you_mean(name, self._OPTIONS)
                raise ConfigError(
                    f"{type(self).__name__} has no option {name!r}. {hint}"
                )
        self._options = {**self._OPTIONS, **given}
        self._check_options(self._options)
        self.possible_agents = self._load(self._options)
        self.max_turns: int = self._options["max_turns"] or self._longest_game()
        self.agents: list[str] = []
        self.observation_spaces = {
            agent: Dict({"text": UnicodeText()}) for agent in self.possible_agents
        }
        self.action_spaces = {agent: UnicodeText() for agent in self.possible_agents}
        self._rng = np.random.default_rng()

    # Hooks for adapters -----------------------------------------------------------

    def _load(self, options: dict[str, Any]) -> list[str]:
        """Load the library, check the other options, return the agents' names."""
        raise NotImplementedError

    def _longest_game(self) -> int:
        """Return the maximum length of a game in answers (for ``max_turns=None``)."""
        raise ConfigError(
            "max_turns=None requires a game with a limit of its own. Set max_turns."
        )

    def _invalid_rewards(self) -> tuple[float, float]:
        """Return the rewards of a forfeit by an invalid answer: offender, others.

        Forfeits must cost more than honest losses, otherwise agents learn to forfeit.
        """
        options = self._options
        return options["invalid_action_reward"], options["invalid_opponent_reward"]

    def _begin(self, rng: np.random.Generator) -> None:
        """Start a game; everything random about it must come from ``rng``."""
        raise NotImplementedError

    def _next_agent(self) -> str | None:
        """Return the next agent to move; None when the game is over."""
        raise NotImplementedError

    def _prompt(self, agent: str) -> str:
        """Return everything new for ``agent`` at its turn (called once per turn)."""
        raise NotImplementedError

    def _move(self, agent: str, text: str) -> dict[str, float] | None:
        """Play the move named in ``text``.

        Returns:
            Rewards by agent; None if the text does not name a legal move, in which case
            the state must not change.
        """
        raise NotImplementedError

    def _is_cut(self) -> bool:
        """Return whether the game is truncated now."""
        return self.turn >= self.max_turns

    def _hint(self, agent: str) -> str:
        """Return the text for ``agent`` after an invalid answer."""
        return f"No legal move. {self._prompt(agent)}"

    def _admissible(self, agent: str) -> list[str] | None:
        """Return all legal answers of ``agent`` at its turn; None if unknown."""
        return None

    def _opening(self, agent: str) -> str:
        """Return the observation before the agent's first turn."""
        return "Wait for your turn."

    # PettingZoo --------------------------------------------------------------------

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Start a game.

        Args:
            seed: Seed of everything random about the game; without one, the generator
                of the last seed continues.
            options: ``split`` only. The games have no held-out instances: both splits
                play the same games.
        """
        self._check_reset_options(options or {})
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.turn, self._errors = 0, 0
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self._returns = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._skip_agent_selection = None
        self._begin(self._rng)
        self._texts = {agent: self._opening(agent) for agent in self.agents}
        first = self._next_agent()
        if first is None:
            raise EnvContractError(
                f"{type(self).__name__} is over before the first move with the options "
                f"{self._options}. Choose another game or other options."
            )
        self.agent_selection: str = first
        self._texts[first] = self._prompt(first)
        self._list_actions(first)

    def observe(self, agent: str) -> dict[str, str]:
        """Return the agent's current text."""
        return {"text": self._texts[agent]}

    def observation_space(self, agent: str) -> Dict:
        """Return the space of texts."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> UnicodeText:
        """Return the space of texts."""
        return self.action_spaces[agent]

    def step(self, action: str | None) -> None:
        """Apply one answer of the agent to act.

        The ``infos`` of that agent then hold ``invalid_action``, those of the next one
        ``admissible_actions`` if the adapter can list them. At the end of the game the
        infos of all agents hold ``success``, ``metrics`` and ``stop_reason``.
        """
        if not self.agents:
            raise EnvContractError("step() without an episode. Call reset() first.")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        if not isinstance(action, str):
            raise EnvContractError(
                f"step() got {action!r} as the text of {agent!r}; it must be a str."
            )
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.turn += 1
        granted = self._move(agent, action)
        invalid = granted is None
        self.infos[agent] = {"invalid_action": invalid, "success": None, "metrics": {}}
        self._errors = self._errors + 1 if invalid else 0
        forfeited = self._errors > self._options["error_allowance"]
        self._grant(self._forfeit(agent) if forfeited else granted or {})
        self._accumulate_rewards()
        upcoming = None if forfeited else self._next_agent()
        if upcoming is None:
            self._end(StopReason.PARSE_ERROR if forfeited else StopReason.TERMINATED)
        else:
            self.agent_selection = upcoming
            make = self._hint if invalid else self._prompt
            self._texts[upcoming] = make(upcoming)
            self._list_actions(upcoming)
            if self._is_cut():
                self._end(StopReason.MAX_TURNS)

    def render(self) -> None:
        """Do nothing: the texts show everything."""

    def close(self) -> None:
        """Do nothing: this class holds no resources."""

    # For demonstrations and checks ----------------------------------------------------

    def options(self) -> dict[str, Any]:
        """Return the current options, defaults included."""
        return dict(self._options)

    def system_prompt_for(self, agent: str) -> str | None:
        """Return None: the rules are part of the first observation."""
        return None

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return a good text for the agent's turn (demonstrations, checks)."""
        raise NotImplementedError(f"{type(self).__name__} has no scripted expert.")

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return a random legal text (imperfect demonstrations, checks)."""
        raise NotImplementedError(f"{type(self).__name__} has no random policy.")

    # Helpers ---------------------------------------------------------------------

    def _list_actions(self, agent: str) -> None:
        actions = self._admissible(agent)
        if actions is not None:
            self.infos[agent] = {**self.infos[agent], ADMISSIBLE: actions}

    def _grant(self, rewards: dict[str, float]) -> None:
        for agent, reward in rewards.items():
            self.rewards[agent] = reward
            self._returns[agent] += reward

    def _forfeit(self, offender: str) -> dict[str, float]:
        offender_reward, others = self._invalid_rewards()
        return {**dict.fromkeys(self.agents, others), offender: offender_reward}

    def _end(self, reason: StopReason) -> None:
        cut = reason is StopReason.MAX_TURNS
        flags = self.truncations if cut else self.terminations
        metrics = {} if cut else self._winners()
        for agent in self.agents:
            flags[agent] = True
            if not cut:
                self._texts[agent] = f"Game over: {self._returns[agent]:+g}."
            elif agent != self.agent_selection:
                self._texts[agent] = ""  # only the next agent to act has a new text
            end = {"success": None, "metrics": metrics, "stop_reason": reason}
            self.infos[agent] = {**self.infos[agent], **end}
        self.agent_selection = self.agents[0]

    def _winners(self) -> dict[str, float]:
        """Return the winner by return; equal returns of all agents are a draw."""
        if not self.has_winner:
            return {}
        best = max(self._returns.values())
        draw = all(value == best for value in self._returns.values())
        won = {
            f"{agent}_won": float(value == best and not draw)
            for agent, value in self._returns.items()
        }
        return {**won, "draw": float(draw)}

    def _check_options(self, options: dict[str, Any]) -> None:
        if options["max_turns"] is not None:
            require_int("max_turns", options["max_turns"], 1, 10**6)
        require_int("error_allowance", options["error_allowance"], 0, 10**6)
        for name in ("invalid_action_reward", "invalid_opponent_reward"):
            if options[name] is not None or self._OPTIONS[name] is not None:
                require_float(name, options[name], -_LARGEST_REWARD, _LARGEST_REWARD)

    def _check_reset_options(self, options: dict[str, Any]) -> None:
        for name, value in options.items():
            if name == "split":
                if value not in SPLITS:
                    raise ConfigError(f"split={value!r} must be one of {SPLITS}.")
            elif name != _OPTION_OF_API_TEST:
                raise ConfigError(
                    f"{name!r} cannot change between episodes. Set it in env_config."
                )
