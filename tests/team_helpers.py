"""Small teams: games, configs, and a run without Ray or RLlib's Algorithm."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import torch
from pettingzoo import ParallelEnv
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm import LLMPPOConfig
from rllib_llm.algorithms.grpo.grpo import GRPO, estimators_of_policies
from rllib_llm.algorithms.learner.training_data import LLMTrainingData
from rllib_llm.algorithms.marft.marft import MARFTConfig
from rllib_llm.data.episode_data import agent_episodes
from rllib_llm.data.sampled_episodes import SampledEpisodes
from rllib_llm.data.types import TurnResult
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.env_runner.replay import Replay
from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.envs import MultiAgentTextEnv, Outcome
from rllib_llm.envs.spaces import UnicodeText
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.modules.tiny import save_tiny_model

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
LORA = {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj"]}
PAIR = {"ann": "a", "ben": "b"}


@functools.cache
def tiny_model(seed: int = 0) -> str:
    """Return a folder with a tiny random model whose tokens are single bytes."""
    folder = Path(tempfile.mkdtemp(prefix="team_model_"))
    save_tiny_model(folder, ["hello"], seed=seed, **SIZES)
    return str(folder)


def worth(text: str) -> float:
    """Return a reward that differs between random texts."""
    return (sum(map(ord, text)) % 7) / 7.0


# Games --------------------------------------------------------------------------------


class Alone(TextEnv):
    """Gymnasium environment of three turns."""

    system_prompt = "Be brief."
    max_turns = 3

    def start(self, rng):
        self.number = int(rng.integers(100))
        return f"Number {self.number}."

    def parse(self, completion):
        return completion or "-"

    def reply(self, action):
        over = worth(action) > 0.7
        return TurnResult(f"On {self.turn}.", reward=worth(action), terminated=over)


class AloneTogether(MultiAgentTextEnv):
    """The same game for PettingZoo with one agent."""

    system_prompt = "Be brief."
    possible_agents = ["ann_0"]
    max_turns = 3

    def start(self, rng):
        self.number = int(rng.integers(100))

    def prompt_for(self, agent):
        return f"On {self.turn}." if self.turn else f"Number {self.number}."

    def parse(self, agent, text):
        return text or "-"

    def apply(self, agent, action):
        return Outcome({agent: worth(action)}, terminated=worth(action) > 0.7)


class Pair(MultiAgentTextEnv):
    """Ann and Ben act in turn, twice each, with different rewards and prompts."""

    possible_agents = ["ann_0", "ben_0"]
    max_turns = 8

    def start(self, rng, rounds: int = 2):
        self.number, self.rounds = int(rng.integers(100)), rounds
        self.texts = []

    def prompt_for(self, agent):
        extra = " and that is all there is" if agent == "ann_0" else ""
        return f"{agent} {self.number}, turn {self.turn}{extra}."

    def parse(self, agent, text):
        return text or "-"

    def apply(self, agent, action):
        self.texts.append(action)
        over = len(self.texts) == 2 * self.rounds
        pay = {"ann_0": 0.5 * worth(action), "ben_0": worth(action[::-1] + "x")}
        return Outcome(pay, terminated=over, success=over or None)


class PairTogether(Pair):
    """Both agents act at the same time."""

    simultaneous = True

    def apply(self, agent, action):
        self.texts.append(action)

    def end_round(self):
        pay = {"ann_0": worth(self.texts[-2]), "ben_0": 0.5 * worth(self.texts[-1])}
        return Outcome(pay, terminated=len(self.texts) == 2 * self.rounds)


class Uneven(Pair):
    """Ben acts in every third task only."""

    def next_agent(self):
        return "ben_0" if self.turn == 1 and self.number % 3 == 0 else "ann_0"


class Quiet(ParallelEnv):
    """Plain ParallelEnv: Ben acts in every second round only."""

    metadata = {"render_modes": []}
    render_mode = None
    possible_agents = ["ann_0", "ben_0"]

    def __init__(self, env_config=None):
        self._space = UnicodeText()

    def observation_space(self, agent):
        return self._space

    action_space = observation_space

    def _tell(self):
        ben = f"Ben at {self.t}." if self.t % 2 else ""
        return {"ann_0": f"Ann at {self.t}.", "ben_0": ben}

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, list(self.possible_agents)
        return self._tell(), {a: {} for a in self.agents}

    def step(self, actions):
        self.t += 1
        over = dict.fromkeys(self.agents, self.t == 4)
        never = dict.fromkeys(self.agents, False)
        rewards = {a: worth(text) for a, text in actions.items()}
        infos = {a: {} for a in self.agents}
        if self.t == 4:
            self.agents = []
        return self._tell(), rewards, over, never, infos


# Scripts ------------------------------------------------------------------------------


def random_script(turn):
    """Return a random number."""
    return f"{turn.agent_id} {turn.rng.integers(10**6)}"


def parrot(turn):
    """Repeat the observation."""
    return turn.observation.upper()


def by_seed(agent_id, episode, **kwargs):
    """Map Ann to "a" or "b" by the task's seed."""
    from rllib_llm.data.episode_data import episode_data

    swapped = episode_data(episode).task.seed % 2
    return "ab"[(agent_id == "ben_0") ^ swapped]


# Runs ---------------------------------------------------------------------------------


def team_config(
    env=Pair,
    config_class=MARFTConfig,
    *,
    policies=("a", "b"),
    mapping=PAIR,
    train=None,
    model=None,
    slots=8,
    **sections,
):
    """Return a validated config; ``sections`` are arguments of its fluent methods."""
    training = {"lr": 1e-2, "matmul_precision": "highest"}
    # Random models are cut off in every turn; this must not decide which agents
    # bootstrap.
    cut_off = {"max_tokens_turn": "bootstrap"}
    config = (
        config_class()
        .environment(env, env_config=sections.pop("env_config", {}))
        .env_runners(num_envs_per_env_runner=slots, **sections.pop("env_runners", {}))
        .generation(**{"max_new_tokens": 4, **sections.pop("generation", {})})
        .rollouts(
            **{"episodes_per_iteration": 4, "group_size": 1, "stop_policies": cut_off}
            | sections.pop("rollouts", {})
        )
        .training(**training | sections.pop("training", {}))
        .language_model(
            **{"model": model or tiny_model()} | sections.pop("language_model", {})
        )
    )
    if policies is not None:
        given = {} if train is None else {"policies_to_train": train}
        if isinstance(policies, tuple):
            policies = list(policies)
        config.multi_agent(policies=policies, policy_mapping_fn=mapping, **given)
    for name, keywords in sections.items():
        getattr(config, name)(**keywords)
    return config


def single_config(config_class=LLMPPOConfig, env=Alone, **sections):
    """Return the same for one agent."""
    return team_config(env, config_class, policies=None, **sections)


class Run:
    """EnvRunner and Learner with shared weights in this process."""

    def __init__(self, config, *, learner=True):
        config.validate()
        self.config = config
        self.runner = LLMEnvRunner(config=config, worker_index=0)
        self.source = TaskSource(seed=3, group_size=config.group_size)
        if learner:
            self.learner = make_team_learner(config)
            modules = self.learner.module
            self.runner.share_weights_of(
                {m: modules[m].unwrapped() for m in config.llm_module_ids}
            )

    def sample(self, groups=4):
        return self.runner.sample(tasks=self.source.next_groups(groups))

    def update(self, episodes, **kwargs):
        if hasattr(self.config, "advantage_baseline"):
            set_group_advantages(self.config, episodes)
        result = update(self.learner, episodes, **kwargs)
        self.runner.set_weights_version(self.learner._weights_seq_no)
        return result

    def weights(self, module_id=DEFAULT_MODULE_ID):
        return weights_of(self.learner, module_id)


def make_team_learner(config):
    spaces = dict.fromkeys(config.module_ids, (UnicodeText(), UnicodeText()))
    learner = config.build_learner(spaces=spaces)
    learner.build()
    return learner


def set_group_advantages(config, episodes):
    """Set advantages as GRPO's driver does."""
    algo = GRPO.__new__(GRPO)
    algo.config = config
    algo._advantage_estimators = estimators_of_policies(config)
    algo._replay = Replay(config.make_text_env)
    sampled = SampledEpisodes(episodes)
    for one in sampled.trajectories:
        one.scores = list(one.rewards)
    algo._set_advantages(sampled)


def update(learner, episodes, **kwargs):
    return learner.update(
        training_data=LLMTrainingData(episodes=episodes), timesteps={}, **kwargs
    )


def batches(learner, episodes):
    """Return the batches that the learner's connectors build, by policy."""
    learner._choose_modules()
    made = learner._make_batch_if_necessary(
        training_data=LLMTrainingData(episodes=episodes)
    )
    return {m: dict(b) for m, b in made.policy_batches.items()}


def gradients(learner, episodes, **kwargs):
    """Return the gradients of every policy for one update, without a step."""
    taken = {}
    names = {
        p: (m, n)
        for m in learner.module.keys()
        for n, p in learner.module[m].unwrapped().named_parameters()
    }

    def keep(grads):
        for parameter, gradient in grads.items():
            module_id, name = names[parameter]
            taken.setdefault(module_id, {})[name] = gradient.clone()

    learner.apply_gradients = keep
    learner.config.grad_clip = None
    update(learner, episodes, **kwargs)
    return taken


def weights_of(learner, module_id=DEFAULT_MODULE_ID):
    module = learner.module[module_id].unwrapped()
    return {n: p.detach().clone() for n, p in module.named_parameters()}


def wake_critic(learner, module_id="critic"):
    """Give a value head, whose last layer starts at zero, values that differ."""
    head = learner.module[module_id].unwrapped().value_head
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        noise = torch.randn(head.out.weight.shape, generator=generator)
        head.out.weight.copy_(0.2 * noise)
        head.out.bias.fill_(0.3)


def assert_bit_equal(left, right):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


def assert_near(left, right, atol=2e-6, rtol=1e-4):
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=atol, rtol=rtol)


def turns_of(episode):
    """Return all (agent, turn) of language models, in order of time."""
    from rllib_llm.data import columns

    turns = [
        (part.agent_id, turn)
        for part in agent_episodes(episode)
        for turn in part.get_extra_model_outputs(columns.TURN)
    ]
    return sorted(turns, key=lambda each: each[1].env_t)


def message_ratios(model, episode, agent):
    """Return the geometric mean of the token ratios of each of an agent's turns.

    Args:
        model: A language model with updated weights.
        episode: An episode whose recorded log-probabilities are the old ones.
        agent: Agent id.

    Returns:
        Array ``[turns]``, from one full pass per turn.
    """
    turn_ratios, ids = [], []
    for turn in (turn for name, turn in turns_of(episode) if name == agent):
        ids += turn.prompt_ids.tolist()
        start = len(ids)
        ids += turn.action_ids.tolist()
        with torch.no_grad():
            logps = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        new = sum(float(logps[p - 1, ids[p]]) for p in range(start, len(ids)))
        change = (new - turn.action_logps.sum()) / len(turn.action_ids)
        turn_ratios.append(np.exp(change))
    return np.array(turn_ratios)
