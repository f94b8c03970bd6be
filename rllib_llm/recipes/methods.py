"""Systems of the literature, and what each is made of here: docs/literature.md.

``methods.yaml`` says it, row by row; what a shipped recipe is made of is read from the
recipe itself.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rllib_llm import yaml_io
from rllib_llm.components.registry import COMPONENTS, KINDS
from rllib_llm.envs.registry import TEXT_ENVS
from rllib_llm.errors import ConfigError, did_you_mean
from rllib_llm.recipes.names import recipes_folder, shipped_recipes
from rllib_llm.recipes.overrides import apply_overrides
from rllib_llm.recipes.stages import (
    STAGES,
    override_stages,
    recipes_of_stages,
    stages_by_name,
)

# What a row must give beside its id and name, and what it may.
STATES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "works": (frozenset({"yaml"}), frozenset()),
    "by config": (frozenset({"yaml", "change"}), frozenset()),
    "text only": (frozenset({"yaml", "change"}), frozenset()),
    "part two": (frozenset({"lacks"}), frozenset({"yaml", "components", "env"})),
    "out of scope": (frozenset({"why"}), frozenset()),
}
_CHANGED = ("by config", "text only")
_ANYWHERE = {"id", "system", "state", "paper", "note"}

_SECTIONS = {
    "rewards": ("rollouts", "reward"),
    "reward_transforms": ("rollouts", "reward_transform"),
    "filters": ("rollouts", "filter"),
    "curriculum": ("rollouts", "curriculum"),
    "advantage_estimator": ("training", "advantage_estimator"),
    "advantage_transforms": ("training", "advantage_transform"),
    "policy_loss": ("training", "policy_loss"),
    "loss_terms": ("training", "loss_term"),
    "token_advantage_transforms": ("training", "token_advantage_transform"),
}
_DEFAULTS = {
    "GRPO": {"advantage_estimator": "group", "policy_loss": "ppo_clip"},
    "SelfPlay": {"advantage_estimator": "role", "policy_loss": "ppo_clip"},
    "LLMPPO": {"policy_loss": "ppo_clip"},
}
# Settings that make a method what it is, without being pieces.
_SETTINGS = {
    "generation": ("head", "score_norm"),
    "rollouts": ("row_per_turn", "max_turns"),
    "multi_agent": ("policies_to_train",),
    "training": (
        "level",
        "critic",
        "gae_level",
        "lambda_critic",
        "lambda_length_alpha",
        "critic_warmup_iters",
        "dynamic_sampling_rounds",
        "ref_kl_coeff",
    ),
}


@dataclasses.dataclass(frozen=True)
class Method:
    """A row.

    Attributes:
        id: A letter for the group, and a number.
        system: Its name.
        state: One of ``STATES``.
        paper: arXiv id, "" if none is known.
        yaml: Shipped recipes of it; with "part two" those that run a part of it.
        change: Overrides of the one recipe in ``yaml``, as the command line takes them.
        pieces: What there is of it beside recipes, as ``"kind name"``.
        env: Where what there is could run.
        lacks: What it still needs, of ``missing``.
        why: It is out of scope.
        note: In what it differs from the paper's.
    """

    id: str
    system: str
    state: str
    paper: str = ""
    yaml: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    env: str = ""
    lacks: tuple[str, ...] = ()
    why: str = ""
    note: str = ""

    @property
    def group(self) -> str:
        """The letter."""
        return self.id[0]

    def recipes(self) -> list[dict[str, Any]]:
        """Return what its recipes say, overrides applied; each stage is one."""
        read = (_read_recipe(name) for name in self.yaml)
        return [stage for recipe in read for stage in _stages(recipe, self.change)]

    def all_components(self) -> list[str]:
        """Return the pieces as ``"kind name"``, in the order of ``KINDS``."""
        found = {
            *self.components,
            *(p for r in self.recipes() for p in components_of(r)),
        }
        return sorted(found, key=lambda p: (KINDS.index(p.split()[0]), p))

    def envs(self) -> list[str]:
        """Return the environments."""
        found = dict.fromkeys(recipe["env"] for recipe in self.recipes())
        return [*found] or [self.env] * bool(self.env)


@dataclasses.dataclass(frozen=True)
class Methods:
    """All of them.

    Attributes:
        rows: The systems.
        groups: Titles by letter.
        missing: What part two brings, by the names that rows use.
        examples: Shipped recipes that run no row as they are.
    """

    rows: tuple[Method, ...]
    groups: dict[str, str]
    missing: dict[str, str]
    examples: tuple[str, ...]


@functools.cache
def load_methods() -> Methods:
    """Return the systems of the package, every name in them checked.

    Raises:
        ConfigError: Naming the row and what is wrong with it.
    """
    return read_methods(yaml_io.read(Path(__file__).with_name("methods.yaml")))


def read_methods(data: Mapping[str, Any]) -> Methods:
    """Return the systems that parsed YAML describes; see :func:`load_methods`."""
    groups, missing = data["groups"], data["missing"]
    systems: dict[str, Method] = {}
    for row in data["methods"]:
        system = _read_row(row, missing)
        if system.id in systems or system.group not in groups:
            raise ConfigError(
                f"{system.id}: ids are a letter of {', '.join(groups)} and a number, "
                "and stand once."
            )
        systems[system.id] = system
    _check_components_missing(missing, systems.values())
    run = {n for row in systems.values() if row.state not in _CHANGED for n in row.yaml}
    examples = tuple(sorted(set(shipped_recipes()) - run))
    return Methods(tuple(systems.values()), groups, missing, examples)


@functools.cache
def _read_recipe(name: str) -> dict[str, Any]:
    return yaml_io.read(shipped_recipes()[name])


def _stages(recipe: dict[str, Any], change: Iterable[str]) -> list[dict[str, Any]]:
    if STAGES not in recipe:
        return [apply_overrides(recipe, change)]
    named = override_stages(stages_by_name(recipe), change)
    return list(recipes_of_stages(named, "").values())


def components_of(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pieces that a recipe names or its algorithm has, as ``"kind name"``."""
    defaults = _DEFAULTS.get(recipe["algo"], {})
    for setting, (section, kind) in _SECTIONS.items():
        given = recipe.get(section, {}).get(setting, defaults.get(setting))
        for name in _names(given):
            yield f"{kind} {name}"


def settings_of(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that matter beside pieces, as ``"name: value"``."""
    for section, names in _SETTINGS.items():
        for name in names:
            if value := recipe.get(section, {}).get(name):
                text = value if isinstance(value, str) else json.dumps(value)
                yield f"{name}: {text}"


def _names(specs: Any) -> Iterator[str]:
    """Yield names of pieces, those inside of ``gate`` and ``tiers`` too."""
    for spec in specs if isinstance(specs, list) else [specs]:
        if isinstance(spec, str):
            yield spec
        elif isinstance(spec, Mapping):
            yield spec["name"]
            yield from _names(_inside(spec))
        elif isinstance(spec, list):
            yield from _names(spec)


def _inside(spec: Mapping[str, Any]) -> list[Any]:
    if spec["name"] == "tiers":
        return [spec.get("of", "evidence")]
    levels = spec["levels"] if spec["name"] == "gate" else []
    return [level[key] for level in levels for key in ("when", "pay")]


def _read_row(row: Mapping[str, Any], missing: Mapping[str, str]) -> Method:
    where = str(row.get("id", row))
    if row.get("state") not in STATES:
        raise ConfigError(f"{where}: {did_you_mean(str(row.get('state')), STATES)}")
    needed, allowed = STATES[row["state"]]
    for key in needed - set(row):
        raise ConfigError(f"{where}: state {row['state']!r} needs {key!r}.")
    for key in set(row) - needed - allowed - _ANYWHERE:
        raise ConfigError(f"{where}: {key!r} has no place with {row['state']!r}.")
    system = Method(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    )
    if system.change and len(system.yaml) != 1:
        raise ConfigError(
            f"{where}: 'change' belongs to one recipe, not {system.yaml}."
        )
    _check_names(where, system.yaml, shipped_recipes())
    _check_names(where, system.lacks, missing)
    _check_names(where, [system.env] * bool(system.env), TEXT_ENVS)
    for found in system.components:
        kind, _, name = found.partition(" ")
        _check_names(where, [kind], COMPONENTS)
        _check_names(where, [name], COMPONENTS[kind])
    return system


def _check_names(where: str, names: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}: unknown {name!r}. {did_you_mean(name, known)}")


def _check_components_missing(
    missing: Mapping[str, str], systems: Iterable[Method]
) -> None:
    lacked = {name for system in systems for name in system.lacks}
    for name in set(missing) - lacked:
        raise ConfigError(f"missing: no row lacks {name!r}. Take it away.")
    for name in missing:
        for kind in KINDS:
            if name.replace(" ", "_") in COMPONENTS[kind]:
                raise ConfigError(
                    f"missing: {name!r} is a {kind} now. Mend the rows that lack it."
                )


# For people --------------------------------------------------------------------------


def markdown() -> str:
    """Return what docs/literature.md has below its ``<!-- methods -->``."""
    systems = load_methods()
    parts = [_counts(systems)]
    for letter, title in systems.groups.items():
        rows = [_row(s) for s in systems.rows if s.group == letter]
        head = "| | system | paper | made of | preset | environment | state |"
        parts += [f"## {title}", "\n".join([head, "|---" * 7 + "|", *rows])]
    parts += ["## What is missing", _missing(systems)]
    parts += ["## Other examples", _examples(systems)]
    return "\n\n".join(parts) + "\n"


def state_of(system: Method) -> str:
    """Return state and reasons, e.g. ``"part two: branching. What is there: ..."``."""
    lines = " ".join(f"`{line}`" for line in system.change)
    reason = lines or system.why or ", ".join(system.lacks)
    state = f"{system.state}: {reason}" if reason else system.state
    return (
        f"{state}. {system.note[0].upper()}{system.note[1:]}" if system.note else state
    )


def _counts(systems: Methods) -> str:
    states = [s.state for s in systems.rows]
    counted = ", ".join(f"{states.count(s)} {s}" for s in STATES)
    return f"{len(states)} entries: {counted}."


def _row(system: Method) -> str:
    arxiv = f"[{system.paper}](https://arxiv.org/abs/{system.paper})"
    cells = [
        system.id,
        system.system,
        arxiv if system.paper else "-",
        _made_of(system),
        ", ".join(_link(name) for name in system.yaml) or "-",
        ", ".join(system.envs()) or "-",
        state_of(system),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _made_of(system: Method) -> str:
    parts = list(dict.fromkeys(recipe["algo"] for recipe in system.recipes()))
    by_kind: dict[str, list[str]] = {}
    for component in system.all_components():
        kind, _, name = component.partition(" ")
        by_kind.setdefault(kind, []).append(f"`{name}`")
    parts += [f"{kind} {', '.join(names)}" for kind, names in by_kind.items()]
    settings = (s for recipe in system.recipes() for s in settings_of(recipe))
    parts += [f"`{setting}`" for setting in dict.fromkeys(settings)]
    return "; ".join(parts) or "-"


def _missing(systems: Methods) -> str:
    rows = ["| name | what | rows |", "|---|---|---|"]
    for name, what in systems.missing.items():
        lacking = ", ".join(s.id for s in systems.rows if name in s.lacks)
        rows.append(f"| {name} | {what} | {lacking} |")
    return "\n".join(rows)


def _examples(systems: Methods) -> str:
    rows = ["| preset | what |", "|---|---|"]
    for name in systems.examples:
        about = " ".join(_read_recipe(name)["description"].split())
        rows.append(f"| {_link(name)} | {about} |")
    return "\n".join(rows)


def _link(name: str) -> str:
    path = shipped_recipes()[name].relative_to(recipes_folder())
    return f"[{name}](../tuned_examples/{path.as_posix()})"
