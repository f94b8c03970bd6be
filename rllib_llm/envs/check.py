"""check_env, which plays an environment and reports what would break training."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rllib_llm.envs.check_common import (
    SINGLE_AGENT_CHECKS,
    CheckReport,
    combined,
    name_of,
    run_checks,
)
from rllib_llm.envs.check_episodes import Subject, raised_by
from rllib_llm.envs.check_forks import check_forks
from rllib_llm.envs.check_remedies import described
from rllib_llm.envs.env_kinds import is_multi_agent
from rllib_llm.envs.make import EnvSpec, make_env
from rllib_llm.envs.mixture import check_mixture
from rllib_llm.envs.mixture_members import MIXTURE, read_members
from rllib_llm.errors import RLlibLLMError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_env(
    spec: EnvSpec,
    env_config: dict[str, Any] | None = None,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_context_tokens: int | None = None,
    seeds: Iterable[int] = range(16),
    env_processes: bool = False,
    forks: bool = False,
) -> CheckReport:
    """Play an environment and report everything that would break training.

    Args:
        spec: Any argument of :func:`make_env`. Multi-agent environments are checked by
            :func:`~rllib_llm.envs.multi_checks.check_multi_env`, and each environment
            of a mixture for itself.
        env_config: Options of the environment.
        tokenizer: Any object with ``encode(text, add_special_tokens=False)`` and
            ``decode(ids)``. If given, both must preserve texts, and so must its chat
            template, if any.
        max_context_tokens: With a tokenizer: the maximum length of a conversation, in
            tokens.
        seeds: Episodes to play with each of the random and the expert policy.
        env_processes: Whether training uses ``rollouts(env_processes=True)``, so that
            instances need not share a process.
        forks: Also fork episodes at random turns, and compare how they go on.

    Returns:
        Problems and measurements.

    Raises:
        ConfigError: If ``spec`` does not exist, an option is wrong, or ``seeds`` is
            empty.
    """
    config, seeds = dict(env_config or {}), list(seeds)
    if spec == MIXTURE:
        check_mixture(config)
        return combined(
            MIXTURE,
            {
                member.name: check_env(
                    member.env,
                    member.env_config,
                    tokenizer=tokenizer,
                    max_context_tokens=max_context_tokens,
                    seeds=seeds,
                    env_processes=env_processes,
                    forks=forks,
                )
                for member in read_members(config)
            },
        )
    started = time.perf_counter()
    try:
        env = make_env(spec, config)
        # Measures import, construction and the first reset; later checks report faults.
        raised_by(lambda: env.reset(seed=seeds[0] if seeds else 0))
        first_reset_s = time.perf_counter() - started
        env.close()
    except RLlibLLMError:
        raise
    except Exception as error:  # environments may raise anything
        text = f"Building it raised {described(error)}"
        return CheckReport(name_of(spec), [f"{text}\n      Correct __init__()."])
    if is_multi_agent(env):
        from rllib_llm.envs.multi_checks import check_multi_env

        return check_multi_env(
            spec,
            config,
            tokenizer=tokenizer,
            max_context_tokens=max_context_tokens,
            seeds=seeds,
            env_processes=env_processes,
            first_reset_s=first_reset_s,
            forks=forks,
        )
    subject = Subject(
        name=name_of(spec),
        build=lambda **changed: make_env(spec, {**config, **changed}),
        seeds=seeds,
        tokenizer=tokenizer,
        max_context_tokens=max_context_tokens,
        env_processes=env_processes,
        first_reset_s=first_reset_s,
    )
    checks = (*SINGLE_AGENT_CHECKS, check_forks) if forks else SINGLE_AGENT_CHECKS
    return run_checks(subject, checks)
