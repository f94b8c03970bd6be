"""Which policy acts for which agent, and what is special about each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.core import DEFAULT_MODULE_ID
from typing_extensions import Self

from rllib_llm.errors import ConfigError, did_you_mean

SCRIPT = "script"
# What may differ between policies; everything else is the run's.
POLICY_SECTIONS = ("language_model", "generation", "training")
_RUN_WIDE = {
    "generation": (
        "engine",
        "engine_kwargs",
        "engine_num_gpus",
        "engine_sleep",
        "engine_forward",
        "kv_cache_gib",
    ),
    "training": (
        "num_epochs",
        "minibatch_size",
        "micro_batch_tokens",
        "matmul_precision",
        "grad_clip_by",
        "old_logps",
        "nan_policy",
        "critic_warmup_iters",
        "team_share",
        "level",
        "critic",
        "team_reward",
        "message_logp",
        "update_schedule",
        "alternate_every",
        "sequential_ratio_clip",
        "sequential_factor_clip",
        "whiten_by",
        "advantage_baseline",
        "advantage_scale",
        "advantage_group_by",
        "turn_discount",
        "drop_zero_variance_groups",
        "dynamic_sampling_rounds",
    ),
    "language_model": ("history", "compile"),
}


class MappedPolicies:
    """A ``policy_mapping_fn`` written as a table.

    Args:
        table: Policies by agent. ``solver`` also stands for ``solver_0``, ``solver_1``
            and so on; ``"*"`` for all others.
    """

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = dict(table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MappedPolicies) and self.table == other.table

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.table.items())))

    def __call__(self, agent_id: str, episode: Any = None, **kwargs: Any) -> str:
        """Return the agent's policy.

        Raises:
            ConfigError: If the table has none.
        """
        stem = agent_id.rpartition("_")[0]
        for name in (agent_id, stem, "*"):
            if name in self.table:
                return self.table[name]
        raise ConfigError(
            f"policy_mapping_fn maps no policy to the agent {agent_id!r}. "
            f"{did_you_mean(agent_id, self.table)} '*' stands for all others."
        )


class MultiAgentSettings:
    """Defaults and fluent method of ``multi_agent``."""

    def _set_multi_agent_defaults(self) -> None:
        self.policy_settings: dict[str, dict[str, Any]] = {}
        self.policy_mapping_fn = MappedPolicies({"*": DEFAULT_MODULE_ID})

    def multi_agent(
        self,
        *,
        policies: Any = NotProvided,
        policy_mapping_fn: Any = NotProvided,
        policies_to_train: Collection[str] | Callable[..., bool] | None = NotProvided,
        **kwargs: Any,
    ) -> Self:
        """Choose who acts for whom, as RLlib does; names and tables serve too.

        Args:
            policies: Names of the policies; or a mapping from them to what is special
                about each: sections of settings (``language_model``, ``generation``,
                ``training``), or ``script``, a function (or its
                ``"package.module:name"``) that answers in the policy's place.
            policy_mapping_fn: RLlib's function of the agent and the episode (or its
                ``"package.module:name"``), a table from agents to policies, or the
                name of the one policy that acts for all.
            policies_to_train: Names, or RLlib's function; None trains all that are
                language models.
            kwargs: RLlib's other settings.
        """
        if isinstance(policies, Mapping):
            self.policy_settings = {
                name: dict(given)
                for name, given in policies.items()
                if isinstance(given, Mapping) and given
            }
            plain = [g is None or isinstance(g, Mapping) for g in policies.values()]
            policies = list(policies) if all(plain) else policies
        if policy_mapping_fn is not NotProvided:
            policy_mapping_fn = _as_mapping(policy_mapping_fn)
        super().multi_agent(
            policies=policies,
            policy_mapping_fn=policy_mapping_fn,
            policies_to_train=policies_to_train,
            **kwargs,
        )
        return self

    # What follows from them ----------------------------------------------------------

    @property
    def module_ids(self) -> tuple[str, ...]:
        """All policies, sorted."""
        return tuple(sorted(self.policies)) if self.policies else (DEFAULT_MODULE_ID,)

    @property
    def llm_module_ids(self) -> tuple[str, ...]:
        """Those that are language models."""
        return tuple(m for m in self.module_ids if self.script_of(m) is None)

    @property
    def trained_module_ids(self) -> tuple[str, ...]:
        """Those that training may change."""
        wanted = self.policies_to_train
        if wanted is None or callable(wanted):
            return self.llm_module_ids
        return tuple(m for m in self.llm_module_ids if m in wanted)

    def script_of(self, module_id: str) -> Callable[[Any], str] | None:
        """Return the function that plays for a policy, None for a language model."""
        script = self.policy_settings.get(module_id, {}).get(SCRIPT)
        return _imported("script", script) if isinstance(script, str) else script

    def resolve_policies(self) -> None:
        """Turn each policy's sections into RLlib's overrides per module.

        Raises:
            ConfigError: If a section or setting cannot differ between policies.
        """
        from rllib_llm.recipes.sections import apply_section

        for name, given in self.policy_settings.items():
            if name not in self.policies:
                raise ConfigError(
                    f"multi_agent has settings for {name!r}, which is no policy. "
                    f"{did_you_mean(name, self.policies)}"
                )
            own = self.copy(copy_frozen=False)
            before = dict(vars(own))
            for section, values in given.items():
                if section != SCRIPT:
                    _check_section(name, section, values)
                    apply_section(own, section, values)
            changed = {k: v for k, v in vars(own).items() if v is not before.get(k)}
            changed.pop("_is_frozen", None)
            overrides = self.algorithm_config_overrides_per_module
            found = overrides.get(name, {})
            overrides[name] = {"resolved_model": None, **found, **changed}
        # Copies of this config carry what was resolved for another one along.
        self._per_module_overrides.clear()


def _check_section(policy: str, section: str, values: Any) -> None:
    if section not in POLICY_SECTIONS:
        raise ConfigError(
            f"multi_agent.policies.{policy}.{section}: only "
            f"{', '.join(POLICY_SECTIONS)} and {SCRIPT} can differ between policies. "
            f"{did_you_mean(section, (*POLICY_SECTIONS, SCRIPT))}"
        )
    for key in values or {}:
        if key in _RUN_WIDE[section]:
            raise ConfigError(
                f"multi_agent.policies.{policy}.{section}.{key} is one for the whole "
                f"run. Set it in {section}."
            )


def _as_mapping(given: Any) -> Any:
    if isinstance(given, str) and ":" in given:
        return _imported("policy_mapping_fn", given)
    if isinstance(given, str):
        return MappedPolicies({"*": given})
    return MappedPolicies(given) if isinstance(given, Mapping) else given


def _imported(what: str, path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"multi_agent: {what}={path!r} cannot be imported: {error}. Install the "
            "package, or put its folder on PYTHONPATH."
        ) from error
