"""Base class of multi-agent text environments, a PettingZoo AEC environment.

An author implements :meth:`MultiAgentTextEnv.start`,
:meth:`~MultiAgentTextEnv.prompt_for` and :meth:`~MultiAgentTextEnv.apply`, lists the
agents in ``possible_agents`` and decorates the class with
:func:`rllib_llm.envs.register_text_env`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from pettingzoo import AECEnv, ParallelEnv

from rllib_llm.data.types import StopReason, TurnResult
from rllib_llm.envs.admissible import ADMISSIBLE
from rllib_llm.envs.env_options import EnvOptions, is_finite
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.errors import ConfigError, EnvContractError, did_you_mean
from rllib_llm.pictures.contract import IMAGES, check_images

# PettingZoo's api_test and parallel_api_test pass exactly these options to reset.
API_TEST_OPTIONS = {"options": 1}


@dataclasses.dataclass(slots=True)
class Outcome:
    """The result of one agent's turn, or of the end of a round.

    Attributes:
        rewards: Finite rewards by agent. Any of ``possible_agents`` may get one:
            acting, waiting, not yet joined, or ended.
        terminated: Agents whose game has terminated; True for all.
        truncated: Agents whose game is truncated; True for all.
        success: Whether the task was solved; None if undefined or undecided.
        metrics: Values to average over episodes, e.g. ``{"pareto": 1.0}``.
    """

    rewards: dict[str, float] = dataclasses.field(default_factory=dict)
    terminated: bool | Iterable[str] = False
    truncated: bool | Iterable[str] = False
    success: bool | None = None
    metrics: dict[str, float] | None = None


class MultiAgentTextEnv(EnvOptions, AECEnv):
    """A game of several agents that read and write text.

    An agent with :meth:`spaces_for` observes and acts in numbers instead.

    Agents act in turn, round robin unless :meth:`next_agent` is overridden. With
    ``simultaneous = True`` all agents act in every round: all prompts are made before
    any action is applied, and :meth:`end_round` follows.

    ``max_turns`` limits the turns of agents, or the rounds of a simultaneous game; at
    the limit all remaining agents are truncated. Options, the ``split``, ``success``
    and the handling of invalid actions are those of :class:`~rllib_llm.envs.TextEnv`.
    Under ``invalid_action="retry"`` only agents with an invalid action act again; the
    others of a simultaneous round wait, and the repetition counts as a round.

    Observations are ``{"text": str}``, because PettingZoo's ``api_test`` fails on bare
    strings. The last observation of a truncated agent is the text it would have read
    next; that of a terminated agent is empty.

    Args:
        env_config: Options of :meth:`start`, plus ``max_turns``, ``invalid_action``
            and ``invalid_action_reward``.

    Attributes:
        possible_agents: All agents that may ever take part, named like ``"bob_0"``,
            in the order of their turns.
        late_agents: Agents that :meth:`join` after the start of the episode.
        agents: Agents in the game; ended ones stay until their ``step(None)``.
        pending: Agents that must act before the game continues, in order.
        grants: All ``(agent, reward)`` of the last ``step``, including agents that
            PettingZoo's ``rewards`` excludes: not yet joined, or ended.
        np_random: The episode's generator, seeded by ``reset``.
        turn: Number of turns (rounds) so far.

    Raises:
        ConfigError: If an option does not exist or has a value out of range.
        EnvContractError: If a subclass breaks the contract.
    """

    possible_agents: list[str] = []
    late_agents: tuple[str, ...] = ()
    simultaneous: bool = False
    render_mode: str | None = None
    agent_selection: str
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, env_config: dict[str, Any] | None = None):
        self._read_config(env_config)
        self.possible_agents = self._declared(self.options())
        text = gym.spaces.Dict({"text": UnicodeText()}), UnicodeText()
        # Copies, because PettingZoo seeds the spaces of each agent separately.
        given = {a: copy.deepcopy(self.spaces_for(a)) for a in self.possible_agents}
        self._number_agents = {a for a in given if given[a] is not None}
        self._observation_spaces = {a: (given[a] or text)[0] for a in given}
        self._action_spaces = {a: (given[a] or text)[1] for a in given}
        self.np_random = np.random.default_rng()
        self.agents: list[str] = []
        self.turn = 0

    # Methods for authors --------------------------------------------------------

    def start(self, rng: np.random.Generator) -> None:
        """Set up an episode from ``rng`` alone.

        Parameters after ``rng`` are keyword options with defaults.
        """
        raise NotImplementedError(f"{type(self).__name__}.start() is missing.")

    def prompt_for(self, agent: str) -> Any:
        """Return everything new for ``agent`` since its last action, and the question.

        Called once for every turn of an agent, and once when it is truncated, on its
        turn or not; there ``""`` means that nothing is new. A prompt with pictures is a
        TurnResult, of which ``observation`` and ``images`` are read. For agents with
        :meth:`spaces_for` it returns their observation, and is called after every turn
        of any agent.
        """
        raise NotImplementedError(f"{type(self).__name__}.prompt_for() is missing.")

    def parse(self, agent: str, text: str) -> Any | None:
        """Return the action in the agent's text, or None for an invalid action."""
        return text.strip() or None

    def apply(self, agent: str, action: Any) -> Outcome | None:
        """Apply an action that :meth:`parse` returned."""
        raise NotImplementedError(f"{type(self).__name__}.apply() is missing.")

    def end_round(self) -> Outcome | None:
        """Settle a round of a simultaneous game, after all actions were applied."""
        return None

    def next_agent(self) -> str:
        """Return the next agent to act: round robin through the live agents."""
        names = self.possible_agents
        start = names.index(self._round[-1]) + 1 if self._round else 0
        order = names[start:] + names[:start]
        return next(agent for agent in order if agent in self.live_agents)

    def agent_names(self, **options: Any) -> list[str]:
        """Return ``possible_agents``; override it if they depend on the options."""
        return list(type(self).possible_agents)

    def spaces_for(self, agent: str) -> tuple[gym.Space, gym.Space] | None:
        """Return observation and action space of a numeric agent; None for text.

        An RLModule plays a numeric agent: :meth:`prompt_for` returns a member of the
        observation space, :meth:`apply` gets a member of the action space, and
        :meth:`parse` is not called.
        """
        return None

    def system_prompt_for(self, agent: str) -> str | None:
        """Return the agent's system prompt, by default the same for all."""
        return self.system_prompt

    def expert_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return a good text for the agent's turn (demonstrations, checks)."""
        raise NotImplementedError(f"{type(self).__name__} has no scripted expert.")

    def random_action(self, agent: str, rng: np.random.Generator) -> str:
        """Return a random valid text (imperfect demonstrations, checks)."""
        raise NotImplementedError(f"{type(self).__name__} has no random policy.")

    def admissible_actions(self, agent: str) -> list[str] | None:
        """Return all valid texts of ``agent`` in this state, for ``head="score"``.

        Called on its turn; they are part of its info. None if they cannot be listed.
        """
        return None

    # Helpers for authors ---------------------------------------------------------

    @property
    def live_agents(self) -> list[str]:
        """Agents in the game that have not ended."""
        return [a for a in self.agents if not self._has_ended(a)]

    def join(self, agent: str) -> None:
        """Add one of ``late_agents`` to the game."""
        self._require_declared(agent, "join() was called with")
        if agent in self._joined:
            raise EnvContractError(
                f"{agent!r} has joined before. An agent can join only once per "
                "episode; use another name, e.g. with a higher number."
            )
        self._joined.add(agent)
        self.agents.append(agent)
        self.terminations[agent] = self.truncations[agent] = False
        self.rewards[agent] = self._cumulative_rewards[agent] = 0.0
        self.infos[agent] = {}

    # PettingZoo ------------------------------------------------------------------

    def observation_space(self, agent: str) -> gym.Space:
        """Return the agent's space: any text under the key ``"text"`` by default."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> gym.Space:
        """Return the agent's space: any text by default."""
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Start an episode; see :meth:`rllib_llm.envs.TextEnv.reset`."""
        if options == API_TEST_OPTIONS:
            options = None
        start_options = self._read_reset_options(options)
        if self._declared({**self.options(), **start_options}) != self.possible_agents:
            raise ConfigError(
                f"options={options} would change the agents {self.possible_agents}. "
                "Set options that determine the agents in env_config."
            )
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.turn = 0
        self._success: bool | None = None
        self.agents = []
        self._joined: set[str] = set()
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self.infos: dict[str, dict[str, Any]] = {}
        self.rewards: dict[str, float] = {}
        self._cumulative_rewards: dict[str, float] = {}
        self.grants: list[tuple[str, float]] = []
        # observe() is legal for every agent, also before its first turn.
        self._texts: dict[str, Any] = dict.fromkeys(self.possible_agents, "")
        self._round: list[str] = []
        self._answers: dict[str, Any] = {}
        self._actions: dict[str, Any] = {}
        for agent in self.possible_agents:
            if agent not in self.late_agents:
                self.join(agent)
        self.start(self.np_random, **start_options)
        self._ask([])

    def observe(self, agent: str) -> Any:
        """Return the agent's latest observation, the same until the next one."""
        observation = self._texts[agent]
        if agent in self._number_agents:
            return observation
        return {"text": observation}

    def step(self, action: object) -> None:
        """Apply the action of ``agent_selection``; None if that agent has ended."""
        if not self.agents:
            raise EnvContractError("step() without an episode. Call reset() first.")
        agent = self.agent_selection
        self.grants = []
        if self._has_ended(agent):
            self._was_dead_step(action)
            return
        self._require_action(agent, action)
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0.0
        self._answers[agent] = action
        self.pending.remove(agent)
        # A simultaneous round is applied as a whole, once all actions are in.
        if self.pending:
            self.agent_selection = self.pending[0]
            return
        self._play_round()
        self._accumulate_rewards()
        self._deads_step_first()

    def parallel_view(self) -> ParallelEnv:
        """Return this game as a PettingZoo ``ParallelEnv``.

        Raises:
            EnvContractError: If agents do not act simultaneously.
        """
        from rllib_llm.envs.parallel_view import ParallelView

        return ParallelView(self)

    def snapshot(self) -> dict[str, Any]:
        """Return a copy of the whole state, random generator included."""
        return copy.deepcopy(self._state())

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a :meth:`snapshot`, as often as needed."""
        # Attributes that were set after the snapshot must not survive.
        for name in self._state().keys() - state.keys():
            delattr(self, name)
        self.__dict__.update(copy.deepcopy(state))

    def _state(self) -> dict[str, Any]:
        # Without the spaces: PettingZoo requires that they stay the same objects.
        return {k: v for k, v in self.__dict__.items() if not k.endswith("_spaces")}

    # A round ---------------------------------------------------------------------

    def _play_round(self) -> None:
        self.turn += 1
        self.infos = {agent: {} for agent in self.agents}
        invalid = []
        for agent, text in self._answers.items():
            is_text = agent not in self._number_agents
            action = self.parse(agent, text) if is_text else text
            failed = action is None
            self.infos[agent] = {"parsed_action": action, "invalid_action": failed}
            if failed:
                # The others' actions stay valid: only this agent is asked again.
                invalid.append(agent)
                self._grant({agent: self.invalid_action_reward})
            else:
                self._actions[agent] = action
        self._answers = {}
        # With "retry", valid actions of the round wait here for the invalid ones.
        if not invalid:
            self._apply_all()
        elif self.invalid_action == "end":
            self._end(True, self.terminations)
        if self.live_agents and self.turn >= self.max_turns:
            self._end(True, self.truncations)
        if not self.live_agents:
            self._tell_result(bool(invalid))
        self._ask(invalid)

    def _apply_all(self) -> None:
        actors = [a for a in self._round if a in self._actions]
        outcomes = [(a, self.apply(a, self._actions.pop(a))) for a in actors]
        if self.simultaneous:
            outcomes.append((actors[-1], self.end_round()))
        # Only now ends and rewards: they must not affect the rest of the same round.
        for agent, outcome in outcomes:
            if outcome is not None:
                self._settle(agent, outcome)

    def _settle(self, agent: str, outcome: Outcome) -> None:
        if not isinstance(outcome, Outcome):
            raise EnvContractError(
                f"{type(self).__name__}.apply() or end_round() returned "
                f"{type(outcome).__name__}; it must return an Outcome or None."
            )
        self._grant(outcome.rewards)
        if outcome.success is not None:
            self._success = bool(outcome.success)
        if outcome.metrics:
            self.infos[agent].setdefault("metrics", {}).update(outcome.metrics)
        self._end(outcome.terminated, self.terminations)
        self._end(outcome.truncated, self.truncations)

    def _grant(self, rewards: dict[str, float]) -> None:
        for agent, reward in rewards.items():
            self._require_declared(agent, f"A reward of {reward!r} went to")
            if not is_finite(reward):
                raise EnvContractError(
                    f"{type(self).__name__} rewarded {agent!r} with {reward!r} in "
                    f"turn {self.turn}; rewards must be finite numbers."
                )
            self.grants.append((agent, float(reward)))
            # Agents that have left keep their grants, which PettingZoo's dictionary
            # drops.
            if agent in self.rewards:
                self.rewards[agent] += float(reward)

    def _end(self, who: bool | Iterable[str], flags: dict[str, bool]) -> None:
        if isinstance(who, bool):
            who = self.live_agents if who else []
        for agent in [who] if isinstance(who, str) else who:
            self._require_declared(agent, "An Outcome ends")
            if agent in self.agents:
                flags[agent] = True

    def _tell_result(self, by_parse: bool) -> None:
        """Add success and stop reason to the infos of all agents at the end."""
        reason = StopReason.TERMINATED
        if any(self.truncations.values()):
            reason = StopReason.MAX_TURNS
        elif by_parse:
            reason = StopReason.PARSE_ERROR
        unsolved = False if self.has_success else None
        success = unsolved if self._success is None else self._success
        for agent in self.agents:
            self.infos[agent] |= {"success": success, "stop_reason": reason}

    def _ask(self, again: list[str]) -> None:
        """Set the observations of the next agents to act, and of truncated agents."""
        live, self.pending = self.live_agents, []
        for agent in self.agents:
            if agent in self._number_agents:
                self._texts[agent] = self._numbers_for(agent)
            elif self._has_ended(agent):
                # A terminal state has no next observation to bootstrap from.
                cut = self.truncations[agent] and not self.terminations[agent]
                self._texts[agent] = self._text_for(agent, again) if cut else ""
        # PettingZoo's API needs a selection even then, for the dead steps.
        if not live:
            self.agent_selection = self.agents[0]
            return
        self.pending = [a for a in again if a in live]
        if not self.pending:
            self.pending = list(live) if self.simultaneous else [self._chosen(live)]
            self._round = list(self.pending)
        for agent in self.pending:
            if agent not in self._number_agents:
                self._texts[agent] = self._text_for(agent, again)
                actions = self.admissible_actions(agent)
                if actions is not None:
                    self.infos[agent][ADMISSIBLE] = actions
        self.agent_selection = self.pending[0]

    def _chosen(self, live: list[str]) -> str:
        agent = self.next_agent()
        if agent not in live:
            raise EnvContractError(
                f"{type(self).__name__}.next_agent() returned {agent!r}; it must be "
                f"one of the live agents {live}."
            )
        return agent

    def _text_for(self, agent: str, again: list[str]) -> str:
        text = self.format_hint if agent in again else self.prompt_for(agent)
        if isinstance(text, TurnResult):
            source = f"prompt_for({agent!r}) of {type(self).__name__}"
            check_images(text.observation, text.images, source)
            self.infos[agent][IMAGES] = list(text.images)
            text = text.observation
        if not isinstance(text, str) or (agent in self.pending and not text):
            raise EnvContractError(
                f"{type(self).__name__}.prompt_for({agent!r}) returned {text!r}; it "
                "must be a str, and a non-empty one if the agent must act."
            )
        return text

    def _numbers_for(self, agent: str) -> Any:
        numbers, space = self.prompt_for(agent), self._observation_spaces[agent]
        if not space.contains(numbers):
            raise EnvContractError(
                f"{type(self).__name__}.prompt_for({agent!r}) returned {numbers!r}, "
                f"which is not in its observation space {space}. Return a member of "
                "the right shape and dtype."
            )
        return numbers

    # Helpers ---------------------------------------------------------------------

    def _require_action(self, agent: str, action: object) -> None:
        if agent not in self._number_agents:
            if not isinstance(action, str):
                raise EnvContractError(
                    f"step() got {action!r} as the text of {agent!r}; it must be a str."
                )
        elif not self._action_spaces[agent].contains(action):
            raise EnvContractError(
                f"step() got {action!r} as the action of {agent!r}; it must be a "
                f"member of {self._action_spaces[agent]}."
            )

    def _has_ended(self, agent: str) -> bool:
        return self.terminations[agent] or self.truncations[agent]

    def _declared(self, options: dict[str, Any]) -> list[str]:
        names = list(self.agent_names(**options))
        if not names or len(set(names)) < len(names):
            raise EnvContractError(
                f"{type(self).__name__} declares the agents {names}. Set "
                "possible_agents to different names, e.g. ['alice_0', 'bob_0']."
            )
        return names

    def _require_declared(self, agent: str, what: str) -> None:
        if agent not in self.possible_agents:
            raise EnvContractError(
                f"{what} {agent!r}, which {type(self).__name__} does not declare. "
                f"{did_you_mean(agent, self.possible_agents)} Agents: "
                f"{', '.join(self.possible_agents)}; add it to possible_agents."
            )
