"""Table of the methods of the literature in docs/literature.md, from literature.yaml.

    python scripts/literature.py    # writes the generated part of docs/literature.md

docs/literature.yaml has a row per method. The components of a shipped recipe are read
from the recipe itself.
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

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "literature.md"
DATA = DOCS / "literature.yaml"
MARKER = "<!-- methods -->"

# By state: the fields a row requires besides its id and name, and the optional ones.
STATES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "works": (frozenset({"yaml"}), frozenset()),
    "by config": (frozenset({"yaml", "change"}), frozenset()),
    "scripted": (frozenset({"yaml"}), frozenset({"change"})),
    "text only": (frozenset({"yaml"}), frozenset({"change"})),
    "incomplete": (frozenset({"lacks"}), frozenset({"yaml", "components", "env"})),
    "out of scope": (frozenset({"why"}), frozenset()),
}
_COMMON = {"id", "name", "state", "paper", "note"}

_SECTIONS = {
    "rewards": ("rollouts", "reward"),
    "reward_transforms": ("rollouts", "reward_transform"),
    "filters": ("rollouts", "filter"),
    "save_where": ("rollouts", "filter"),
    "curriculum": ("rollouts", "curriculum"),
    "prompt_text": ("rollouts", "prompt_text"),
    "fork": ("rollouts", "fork"),
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
# Settings that define a method without being components.
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
    """One row of the table.

    Attributes:
        id: A letter for the group, and a number.
        name: Name of the method.
        state: One of ``STATES``.
        paper: arXiv id, "" without one.
        yaml: Shipped recipes of the method; of an incomplete one, of a part of it.
        change: Overrides of the one recipe in ``yaml``, as the command line takes them.
        components: Its components besides those of the recipes, as ``"kind name"``.
        env: Environment for a method without a recipe.
        lacks: Keys of ``missing`` that the method needs.
        why: Reason why it is out of scope.
        note: Differences from the paper.
    """

    id: str
    name: str
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
        """The letter of the group."""
        return self.id[0]

    def recipes(self) -> list[dict[str, Any]]:
        """Return its recipes with overrides applied, one per stage."""
        recipes = (_read_recipe(name) for name in self.yaml)
        return [stage for recipe in recipes for stage in _stages(recipe, self.change)]

    def all_components(self) -> list[str]:
        """Return the components as ``"kind name"``, in the order of ``KINDS``."""
        components = {
            *self.components,
            *(c for r in self.recipes() for c in components_of(r)),
        }
        return sorted(components, key=lambda c: (KINDS.index(c.split()[0]), c))

    def envs(self) -> list[str]:
        """Return the environments of its recipes, or else ``env``."""
        envs = dict.fromkeys(name for r in self.recipes() for name in envs_of(r))
        return [*envs] or [self.env] * bool(self.env)


@dataclasses.dataclass(frozen=True)
class Methods:
    """The whole table.

    Attributes:
        rows: The methods.
        groups: Titles of the groups by letter.
        missing: Descriptions of the missing parts, by the names that rows use.
        examples: Shipped recipes that reproduce no row without changes.
    """

    rows: tuple[Method, ...]
    groups: dict[str, str]
    missing: dict[str, str]
    examples: tuple[str, ...]


@functools.cache
def load_methods() -> Methods:
    """Return the table of docs/literature.yaml, validated.

    Raises:
        ConfigError: A row is invalid; the message has its id.
    """
    return read_methods(yaml_io.read(DATA))


def read_methods(data: Mapping[str, Any]) -> Methods:
    """Return the table in parsed YAML; see :func:`load_methods`."""
    groups, missing = data["groups"], data["missing"]
    methods: dict[str, Method] = {}
    for row in data["methods"]:
        method = _read_row(row, missing)
        if method.id in methods or method.group not in groups:
            raise ConfigError(
                f"{method.id}: an id is a letter of {', '.join(groups)} and a number, "
                "and must be unique."
            )
        methods[method.id] = method
    _check_missing(missing, methods.values())
    run = {n for row in methods.values() if not row.change for n in row.yaml}
    examples = tuple(sorted(set(shipped_recipes()) - run))
    return Methods(tuple(methods.values()), groups, missing, examples)


@functools.cache
def _read_recipe(name: str) -> dict[str, Any]:
    return yaml_io.read(shipped_recipes()[name])


def _stages(recipe: dict[str, Any], change: Iterable[str]) -> list[dict[str, Any]]:
    if STAGES not in recipe:
        return [apply_overrides(recipe, change)]
    named = override_stages(stages_by_name(recipe), change)
    return list(recipes_of_stages(named, "").values())


def envs_of(recipe: Mapping[str, Any]) -> list[str]:
    """Return the name of a recipe's environment, or those of its mixture."""
    env = recipe["env"]
    return [env] if isinstance(env, str) else [each["env"] for each in env["mixture"]]


def components_of(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield a recipe's components, defaults included, as ``"kind name"``."""
    defaults = _DEFAULTS.get(recipe["algo"], {})
    for setting, (section, kind) in _SECTIONS.items():
        given = recipe.get(section, {}).get(setting, defaults.get(setting))
        for name in _names(given):
            yield f"{kind} {name}"


def settings_of(recipe: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that define the method, as ``"name: value"``."""
    for section, names in _SETTINGS.items():
        for name in names:
            if value := recipe.get(section, {}).get(name):
                text = value if isinstance(value, str) else json.dumps(value)
                yield f"{name}: {text}"


def _names(specs: Any) -> Iterator[str]:
    """Yield the names of components, also those nested in ``gate`` and ``tiers``."""
    for spec in specs if isinstance(specs, list) else [specs]:
        if isinstance(spec, str):
            yield spec
        elif isinstance(spec, Mapping):
            yield spec["name"]
            yield from _names(_nested(spec))
        elif isinstance(spec, list):
            yield from _names(spec)


def _nested(spec: Mapping[str, Any]) -> list[Any]:
    if spec["name"] == "tiers":
        return [spec.get("of", "evidence")]
    levels = spec["levels"] if spec["name"] == "gate" else []
    return [level[key] for level in levels for key in ("when", "reward")]


def _read_row(row: Mapping[str, Any], missing: Mapping[str, str]) -> Method:
    where = str(row.get("id", row))
    if row.get("state") not in STATES:
        raise ConfigError(f"{where}: {did_you_mean(str(row.get('state')), STATES)}")
    needed, allowed = STATES[row["state"]]
    for key in needed - set(row):
        raise ConfigError(f"{where}: state {row['state']!r} requires {key!r}.")
    for key in set(row) - needed - allowed - _COMMON:
        raise ConfigError(f"{where}: state {row['state']!r} does not allow {key!r}.")
    method = Method(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
    )
    if method.change and len(method.yaml) != 1:
        raise ConfigError(
            f"{where}: 'change' requires exactly one recipe, not {method.yaml}."
        )
    _check_names(where, method.yaml, shipped_recipes())
    _check_names(where, method.lacks, missing)
    _check_names(where, [method.env] * bool(method.env), TEXT_ENVS)
    for component in method.components:
        kind, _, name = component.partition(" ")
        _check_names(where, [kind], COMPONENTS)
        _check_names(where, [name], COMPONENTS[kind])
    return method


def _check_names(where: str, names: Iterable[str], valid: Iterable[str]) -> None:
    valid = list(valid)
    for name in names:
        if name not in valid:
            raise ConfigError(f"{where}: unknown {name!r}. {did_you_mean(name, valid)}")


def _check_missing(missing: Mapping[str, str], methods: Iterable[Method]) -> None:
    lacked = {name for method in methods for name in method.lacks}
    for name in set(missing) - lacked:
        raise ConfigError(f"missing: no row lacks {name!r}. Remove it.")
    for name in missing:
        for kind in KINDS:
            if name.replace(" ", "_") in COMPONENTS[kind]:
                raise ConfigError(
                    f"missing: {name!r} is a {kind} now. Update the rows that lack it."
                )


# The page ----------------------------------------------------------------------------


def write_page() -> None:
    """Replace the generated part of docs/literature.md."""
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(MARKER)
    PAGE.write_text(f"{text}{MARKER}\n{markdown()}", encoding="utf-8")


def markdown() -> str:
    """Return the generated part of docs/literature.md, below its marker."""
    methods = load_methods()
    parts = [_counts(methods)]
    for letter, title in methods.groups.items():
        rows = [_row(s) for s in methods.rows if s.group == letter]
        head = "| | method | paper | made of | preset | environment | state |"
        parts += [f"## {title}", "\n".join([head, "|---" * 7 + "|", *rows])]
    parts += ["## What is missing", _missing(methods)]
    parts += ["## Other examples", _examples(methods)]
    return "\n\n".join(parts) + "\n"


def state_of(method: Method) -> str:
    """Return state and reasons, e.g. ``"incomplete: branching. Clip is ..."``."""
    lines = " ".join(f"`{line}`" for line in method.change)
    reason = lines or method.why or ", ".join(method.lacks)
    state = f"{method.state}: {reason}" if reason else method.state
    return (
        f"{state}. {method.note[0].upper()}{method.note[1:]}" if method.note else state
    )


def _counts(methods: Methods) -> str:
    states = [s.state for s in methods.rows]
    counted = ", ".join(f"{states.count(s)} {s}" for s in STATES)
    return f"{len(states)} entries: {counted}."


def _row(method: Method) -> str:
    arxiv = f"[{method.paper}](https://arxiv.org/abs/{method.paper})"
    cells = [
        method.id,
        method.name,
        arxiv if method.paper else "-",
        _made_of(method),
        ", ".join(_link(name) for name in method.yaml) or "-",
        ", ".join(method.envs()) or "-",
        state_of(method),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _made_of(method: Method) -> str:
    parts = list(dict.fromkeys(recipe["algo"] for recipe in method.recipes()))
    by_kind: dict[str, list[str]] = {}
    for component in method.all_components():
        kind, _, name = component.partition(" ")
        by_kind.setdefault(kind, []).append(f"`{name}`")
    parts += [f"{kind} {', '.join(names)}" for kind, names in by_kind.items()]
    settings = (s for recipe in method.recipes() for s in settings_of(recipe))
    parts += [f"`{setting}`" for setting in dict.fromkeys(settings)]
    return "; ".join(parts) or "-"


def _missing(methods: Methods) -> str:
    rows = ["| name | description | rows |", "|---|---|---|"]
    for name, description in methods.missing.items():
        lacking = ", ".join(s.id for s in methods.rows if name in s.lacks)
        rows.append(f"| {name} | {description} | {lacking} |")
    return "\n".join(rows)


def _examples(methods: Methods) -> str:
    rows = ["| preset | description |", "|---|---|"]
    for name in methods.examples:
        about = " ".join(_read_recipe(name)["description"].split())
        rows.append(f"| {_link(name)} | {about} |")
    return "\n".join(rows)


def _link(name: str) -> str:
    path = shipped_recipes()[name].relative_to(recipes_folder())
    return f"[{name}](../tuned_examples/{path.as_posix()})"


if __name__ == "__main__":
    write_page()
