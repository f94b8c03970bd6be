"""Settings of ``multi_agent``: mapping from agents to policies, settings per policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Self

from ray.rllib.algorithms.algorithm_config import NotProvided
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm.algorithms.config.declarations import (
    DeclaredSettings,
    fluent_method,
    setting,
    state,
)
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.policy_mapping import MappedPolicies, imported
from rllib_llm.schema import require

if TYPE_CHECKING:
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

SCRIPT, RL_MODULE = "scripted_policy", "rl_module"
_MODE_SETTINGS = ("sharing_modes", "sharing_mode")
_SET_BY_MODES = ("policies", "policy_mapping_fn", "policies_to_train")
# Sections that may differ between policies; all others are the run's.
POLICY_SECTIONS = ("language_model", "generation", "training")
# Settings of "training" that RLlib's PPO reads for an RLModule.
_RL_MODULE_SETTINGS = (
    "lr",
    "gamma",
    "lambda_",
    "clip_param",
    "entropy_coeff",
    "vf_loss_coeff",
    "vf_clip_param",
    "use_kl_loss",
    "kl_coeff",
    "kl_target",
    "grad_clip",
    "weight_decay",
)
_RUN_WIDE = {
    "generation": (
        "engine",
        "engine_kwargs",
        "engine_num_gpus",
        "engine_sleep",
        "engine_forward",
        "kv_cache_gib",
        "num_speculative_tokens",
    ),
    "training": (
        "num_epochs",
        "minibatch_size",
        "micro_batch_tokens",
        "packing",
        "matmul_precision",
        "grad_clip_by",
        "old_logps",
        "nan_policy",
        "critic_warmup_iters",
        "shared_reward_fraction",
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


class MultiAgentSettings(DeclaredSettings):
    """Settings of ``multi_agent``."""

    policies: Collection[str] = setting(
        NotProvided,
        """Names of the policies; or a mapping from them to their special settings:
        sections (``language_model``, ``generation``, ``training``), or
        ``scripted_policy``, a function (or its ``"package.module:name"``) that returns
        the turns, or ``rl_module``: an RLModule that is no language model
        (``module_class`` and ``model_config`` as of RLlib's RLModuleSpec, or such a
        spec). The latter may also be given by ``rl_module(rl_module_spec=...)``.""",
        kind=Mapping[str, Any] | Collection[str] | None,
    )
    policy_mapping_fn: Callable[..., str] = setting(
        MappedPolicies({"*": DEFAULT_MODULE_ID}),
        """RLlib's function of the agent and the episode (or its
        ``"package.module:name"``), a table from agents to policies, or the name of the
        one policy of all agents.""",
        kind=Callable[..., str] | Mapping[str, str] | str | None,
    )
    policies_to_train: Collection[str] | Callable[..., bool] | None = setting(
        NotProvided,
        """Names, or RLlib's function; None trains all that are language models or
        RLModules.""",
    )
    sharing_modes: Mapping[str, Mapping[str, Any]] = setting(
        {},
        """Names to settings of this section, each a way of sharing weights, e.g.
        ``{"own": {...}, "shared": {...}}``.""",
    )
    # Or Tune's search space of such names.
    sharing_mode: str | None = setting(
        None,
        """Name of the mode to use. Tune may search it
        (``tune.grid_search(["own", "shared"])``).""",
    )

    policy_settings: dict[str, dict[str, Any]] = state({})
    _mode_in_force: str | None = state(None)

    @fluent_method()
    def multi_agent(self, **given: Any) -> Self:
        """Map agents to policies, as RLlib does, with names and tables as well.

        ``sharing_modes`` excludes ``policies``, ``policy_mapping_fn`` and
        ``policies_to_train``, which its modes set.
        """
        given = {k: v for k, v in given.items() if v is not NotProvided}
        modes = {k: given.pop(k) for k in _MODE_SETTINGS if k in given}
        if "sharing_modes" in modes and not given.keys().isdisjoint(_SET_BY_MODES):
            raise ConfigError(
                "multi_agent: policies, policy_mapping_fn and policies_to_train beside "
                "sharing_modes would have no effect. Put them into each mode."
            )
        policies = given.get("policies")
        if isinstance(policies, Mapping):
            self.policy_settings = {
                name: dict(settings)
                for name, settings in policies.items()
                if isinstance(settings, Mapping) and settings
            }
            plain = [g is None or isinstance(g, Mapping) for g in policies.values()]
            given["policies"] = list(policies) if all(plain) else policies
        if "policy_mapping_fn" in given:
            given["policy_mapping_fn"] = _as_mapping(given["policy_mapping_fn"])
        super().multi_agent(**given)
        for name, value in modes.items():
            setattr(self, name, value)
        if isinstance(self.sharing_mode, str):
            self._use_sharing_mode()
        return self

    def _use_sharing_mode(self) -> None:
        """Apply the settings of ``sharing_mode``, which Tune may have just sampled.

        Raises:
            ConfigError: If there is no such mode, or it has settings that no mode may
                have.
        """
        from rllib_llm.algorithms.config.sections import apply_section

        name = self.sharing_mode
        if name == self._mode_in_force and (name or not self.sharing_modes):
            return
        if not isinstance(name, str) or name not in self.sharing_modes:
            raise ConfigError(
                f"multi_agent.sharing_mode={name!r} must be one of sharing_modes. "
                f"{did_you_mean(str(name), self.sharing_modes)}"
            )
        mode = self.sharing_modes[name]
        if not isinstance(mode, Mapping) or not set(mode).isdisjoint(_MODE_SETTINGS):
            raise ConfigError(
                f"multi_agent.sharing_modes.{name}={mode!r} must hold settings of "
                "multi_agent, such as policies and policy_mapping_fn."
            )
        self._mode_in_force = name
        self.policy_settings = {}
        apply_section(self, "multi_agent", dict(mode))

    # Derived settings ----------------------------------------------------------------

    @property
    def module_ids(self) -> tuple[str, ...]:
        """All policies, sorted."""
        # Sorted: RLlib also accepts a set, whose order differs between processes.
        return tuple(sorted(self.policies)) if self.policies else (DEFAULT_MODULE_ID,)

    @property
    def llm_module_ids(self) -> tuple[str, ...]:
        """Policies that are language models."""
        others = self.non_llm_module_ids
        return tuple(
            m for m in self.module_ids if self.script_of(m) is None and m not in others
        )

    @property
    def non_llm_module_ids(self) -> tuple[str, ...]:
        """Policies that are RLModules with numeric observations."""
        return tuple(m for m in self.module_ids if self.rl_module_of(m) is not None)

    @property
    def sampled_module_ids(self) -> tuple[str, ...]:
        """Policies with weights: language models and non-LLM RLModules."""
        return (*self.llm_module_ids, *self.non_llm_module_ids)

    @property
    def trained_module_ids(self) -> tuple[str, ...]:
        """Language models that are trained."""
        return self._to_train(self.llm_module_ids)

    @property
    def trained_non_llm_ids(self) -> tuple[str, ...]:
        """Non-LLM RLModules that are trained."""
        return self._to_train(self.non_llm_module_ids)

    def _to_train(self, module_ids: tuple[str, ...]) -> tuple[str, ...]:
        names = self.policies_to_train
        # RLlib's function is called per module and batch; which modules it trains is
        # not known in advance.
        if names is None or callable(names):
            return module_ids
        return tuple(m for m in module_ids if m in names)

    def rl_module_of(self, module_id: str) -> Any:
        """Return the RLModuleSpec of a non-LLM policy, None for other policies.

        Raises:
            ConfigError: If it is invalid, or contradicts other settings of the policy.
        """
        settings = self.policy_settings.get(module_id, {})
        specs = getattr(self._rl_module_spec, "rl_module_specs", {})
        given = specs.get(module_id) if isinstance(specs, Mapping) else None
        if RL_MODULE not in settings and (given is None or _is_language_model(given)):
            return None
        from rllib_llm.algorithms.config.rl_module_spec import as_spec

        if SCRIPT in settings or (RL_MODULE in settings and given is not None):
            raise ConfigError(
                f"The policy {module_id!r} is an RLModule, and something else as well. "
                "Give it only one of rl_module, scripted_policy and rl_module_spec."
            )
        return as_spec(module_id, settings.get(RL_MODULE, given))

    def script_of(self, module_id: str) -> Callable[[Any], str] | None:
        """Return the function of a scripted policy, None for a language model."""
        script = self.policy_settings.get(module_id, {}).get(SCRIPT)
        return (
            imported("scripted_policy", script) if isinstance(script, str) else script
        )

    def resolve_policies(self) -> None:
        """Turn each policy's sections into RLlib's overrides per module.

        Raises:
            ConfigError: If a section or setting cannot differ between policies.
        """
        from rllib_llm.algorithms.config.sections import apply_section

        for name, given in self.policy_settings.items():
            if name not in self.policies:
                raise ConfigError(
                    f"multi_agent has settings for {name!r}, which is not a policy. "
                    f"{did_you_mean(name, self.policies)}"
                )
            # A section is a fluent method: called on a copy, what it changes are the
            # overrides.
            policy_config = self.copy(copy_frozen=False)
            before = dict(vars(policy_config))
            is_non_llm = self.rl_module_of(name) is not None
            where = f"multi_agent.policies.{name}"
            require(where, given, dict[str, Any])
            for section, values in given.items():
                if section in (SCRIPT, RL_MODULE):
                    continue
                require(f"{where}.{section}", values, dict[str, Any] | None)
                _check_section(name, section, values, is_non_llm)
                try:
                    apply_section(policy_config, section, values)
                except ConfigError as error:
                    raise ConfigError(f"{where}: {error}") from error
            changed = {
                # By identity: comparing values of any type could fail.
                k: v
                for k, v in vars(policy_config).items()
                if v is not before.get(k)
            }
            # A state of the config object, not a setting.
            changed.pop("_is_frozen", None)
            overrides = self.algorithm_config_overrides_per_module
            present = overrides.get(name, {})
            # None: the policy may have another model than the run, and is prepared
            # anew.
            overrides[name] = {"resolved_model": None, **present, **changed}
        # Copies of this config also copy the other one's resolved configs.
        self._per_module_overrides.clear()


def _is_language_model(spec: RLModuleSpec) -> bool:
    """Return whether RLlib's specification is a language model's (None: by default)."""
    from rllib_llm.modules.llm_rl_module import LLMRLModule

    return spec.module_class is None or issubclass(spec.module_class, LLMRLModule)


def _check_section(
    policy: str, section: str, values: Any, is_non_llm: bool = False
) -> None:
    if is_non_llm:
        for key in values or {}:
            if section != "training" or key not in _RL_MODULE_SETTINGS:
                raise ConfigError(
                    f"multi_agent.policies.{policy}.{section}.{key} does not concern "
                    f"an RLModule. Beside {RL_MODULE} it has training with "
                    f"{', '.join(_RL_MODULE_SETTINGS)}."
                )
    if section not in POLICY_SECTIONS:
        raise ConfigError(
            f"multi_agent.policies.{policy}.{section}: only "
            f"{', '.join(POLICY_SECTIONS)}, {SCRIPT} and {RL_MODULE} can differ "
            "between policies. "
            f"{did_you_mean(section, (*POLICY_SECTIONS, SCRIPT, RL_MODULE))}"
        )
    for key in values or {}:
        if key in _RUN_WIDE[section]:
            raise ConfigError(
                f"multi_agent.policies.{policy}.{section}.{key} is one for the whole "
                f"run. Set it in {section}."
            )


def _as_mapping(given: Callable[..., str] | Mapping[str, str] | str | None) -> Any:
    if isinstance(given, str) and ":" in given:
        return imported("policy_mapping_fn", given)
    if isinstance(given, str):
        return MappedPolicies({"*": given})
    return MappedPolicies(given) if isinstance(given, Mapping) else given
