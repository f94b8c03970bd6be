"""Model card (README.md) of an exported policy, from the records of its run."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from rllib_llm import yaml_io
from rllib_llm.callbacks import result_keys
from rllib_llm.evaluation.success_statistics import wilson_interval
from rllib_llm.runs.card_seeds import seeds_section
from rllib_llm.runs.reading import Trial
from rllib_llm.version import __version__

CARD_FILE = "README.md"
_LIBRARY = "transformers"
_ENVIRONMENTS = "environments/"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_CLASSIFIER = """## Use

```python
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder = "PATH_OR_REPOSITORY"
model = AutoModelForSequenceClassification.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
ids = tokenizer.apply_chat_template(
    messages, tokenize=True, return_dict=True, return_tensors="pt"
)
score = model(**ids).logits[0, 0]
```

The messages end with a reply; the score is that of the whole conversation."""
_MOST_POINTS = 12  # of the learning curve


@dataclasses.dataclass(frozen=True)
class CardFacts:
    """Facts of a model card beside the records of the trial.

    Attributes:
        name: Title of the card, e.g. the name of the folder.
        recipe: The run's recipe; empty if the run has none.
        policy: ModuleID of the policy.
        iteration: Training iterations of the exported checkpoint.
        parameters: Number of parameters.
        base_model: Model that the policy was trained from.
        is_adapter: Whether the folder holds a LoRA adapter alone.
        license: Identifier of a licence, e.g. ``"apache-2.0"``; None: not stated.
        is_classifier: Whether it is a reward model.
        reads_pictures: Whether it is a vision-language model.
    """

    name: str
    recipe: dict[str, Any]
    policy: str
    iteration: int
    parameters: int
    base_model: str
    is_adapter: bool = False
    license: str | None = None
    is_classifier: bool = False
    reads_pictures: bool = False


@dataclasses.dataclass(frozen=True)
class Score:
    """Success on held-out tasks in one evaluation.

    Attributes:
        environment: Name of the environment.
        iteration: Training iterations before the evaluation.
        success: Success rate.
        low: Lower end of its 95 % interval (Wilson).
        high: Upper end.
        episodes: Number of episodes.
    """

    environment: str
    iteration: int
    success: float
    low: float
    high: float
    episodes: int


def model_card(
    facts: CardFacts, trial: Trial | None, others: Sequence[Trial] = ()
) -> str:
    """Return the text of a model card.

    Args:
        facts: The policy and its recipe.
        trial: The trial that trained it; None: a checkpoint without a run.
        others: Trials of the run that differ from it only in their seed.
    """
    scores = list(last_scores(facts, trial)) if trial is not None else []
    parts = [
        f"---\n{_metadata(facts, scores)}\n---",
        f"# {facts.name}",
        _summary(facts),
        _task(facts.recipe),
        _method(facts, trial),
        _results(facts, trial, scores, others),
        _loading(facts),
        _licence(facts),
        _recipe(facts.recipe),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def last_scores(facts: CardFacts, trial: Trial) -> Iterator[Score]:
    """Yield the scores of the last evaluation that the exported checkpoint had.

    One for each environment of a mixture. Without evaluations, or without a notion of
    success, there are none.
    """
    rows = [
        row
        for row in trial.history
        if row[result_keys.ITERATION] <= facts.iteration
        and row.get(result_keys.EVAL_SUCCESS) is not None
    ]
    if not rows:
        return
    row = rows[-1]
    for name, (success, episodes) in _by_environment(row, facts.recipe).items():
        if success == success and episodes:
            low, high = wilson_interval(success * episodes, episodes)
            yield Score(
                name,
                int(row[result_keys.ITERATION]),
                success,
                low,
                high,
                int(episodes),
            )


def _by_environment(
    row: Mapping[str, Any], recipe: Mapping[str, Any]
) -> dict[str, tuple[float, float]]:
    """Return success and number of episodes of each environment in one result."""
    head = f"evaluation/env_runners/{_ENVIRONMENTS}"
    names = {k[len(head) :].split("/")[0] for k in row if k.startswith(head)}
    if names:
        return {
            name: (
                float(row.get(f"{head}{name}/success_rate") or 0.0),
                float(row.get(f"{head}{name}/num_episodes") or 0.0),
            )
            for name in sorted(names)
        }
    success = float(row[result_keys.EVAL_SUCCESS])
    episodes = float(row.get(result_keys.EVAL_EPISODES) or 0.0)
    return {_environments(recipe)[0]: (success, episodes)}


def _environments(recipe: Mapping[str, Any]) -> list[str]:
    env = recipe.get("env")
    if isinstance(env, Mapping):
        return [str(e.get("name", e.get("env"))) for e in env["mixture"]]
    return [str(env) if env is not None else "environment"]


def _metadata(facts: CardFacts, scores: list[Score]) -> str:
    """Return the YAML at the head of the card."""
    results = [
        EvalResult(
            task_type="reinforcement-learning",
            task_name="held-out tasks",
            dataset_type="rllib-llm-environment",
            dataset_name=score.environment,
            # The hub's library takes results of equal type and config for one data set.
            dataset_config=score.environment,
            metric_type="success_rate",
            metric_value=round(score.success, 4),
            metric_name="success rate",
        )
        for score in scores
    ]
    # Everything else is a local folder, or built by the package.
    is_hub_id = _HUB_ID.fullmatch(facts.base_model) is not None
    data = ModelCardData(
        base_model=facts.base_model if is_hub_id else None,
        library_name="peft" if facts.is_adapter else _LIBRARY,
        license=facts.license,
        model_name=facts.name,
        pipeline_tag=_pipeline(facts),
        tags=["reinforcement-learning", "llm-agent", "rllib-llm", *_tags(facts)],
        eval_results=results or None,
    )
    return data.to_yaml().strip()


def _tags(facts: CardFacts) -> list[str]:
    algo = facts.recipe.get("algo")
    return [str(algo).lower()] if algo else []


def _summary(facts: CardFacts) -> str:
    kind = "LoRA adapter" if facts.is_adapter else "model"
    if facts.is_classifier:
        kind = "reward model, which scores conversations,"
    description = " ".join(str(facts.recipe.get("description", "")).split())
    by = "" if facts.is_classifier else " by reinforcement learning"
    return (
        f"A {kind} with {facts.parameters:,} parameters, trained{by} with rllib_llm "
        f"{__version__}. {description}"
    ).strip()


def _task(recipe: Mapping[str, Any]) -> str:
    if not recipe:
        return ""
    env = recipe.get("env")
    lines = []
    if isinstance(env, Mapping):
        for each in env["mixture"]:
            options = each.get("env_config")
            lines.append(
                f"- `{each['env']}`, weight {each.get('weight', 1)}"
                + (f", options `{options}`" if options else "")
            )
    else:
        options = recipe.get("env_config")
        lines.append(f"- `{env}`" + (f", options `{options}`" if options else ""))
    listed = "\n".join(lines)
    return (
        "## Task and data\n\n"
        f"{listed}\n\n"
        "Training episodes were sampled from the training split of the environment; "
        "results are from its held-out split."
    )


def _method(facts: CardFacts, trial: Trial | None) -> str:
    recipe = facts.recipe
    sft = recipe.get("sft", {}).get("demonstrations", 0)
    lines = [
        ("algorithm", recipe.get("algo")),
        ("policy", facts.policy),
        ("trained from", facts.base_model),
        ("demonstrations of SFT before RL", sft or None),
        ("training iterations", facts.iteration),
        ("tokens sampled", _total(trial, "env_runners/num_completion_tokens_lifetime")),
        ("episodes sampled", _total(trial, "env_runners/num_episodes_lifetime")),
        ("seed", None if trial is None else trial.seed),
        ("versions", _versions(recipe)),
    ]
    rows = "\n".join(f"| {n} | {value} |" for n, value in lines if value is not None)
    return f"## Method\n\n| | |\n|---|---|\n{rows}"


def _versions(recipe: Mapping[str, Any]) -> str | None:
    versions = recipe.get("versions")
    if not isinstance(versions, Mapping):
        return None
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _total(trial: Trial | None, key: str) -> str | None:
    last = None if trial is None else trial.last(key)
    return None if last is None else f"{last:,.0f}"


def _results(
    facts: CardFacts,
    trial: Trial | None,
    scores: list[Score],
    others: Sequence[Trial],
) -> str:
    if trial is None:
        return "## Results\n\nNot stated: the checkpoint is not part of a run's folder."
    parts = ["## Results"]
    if scores:
        rows = "\n".join(
            f"| {s.environment} | {s.success:.3f} | {s.low:.3f} to {s.high:.3f} | "
            f"{s.episodes} |"
            for s in scores
        )
        parts.append(
            f"Success on held-out tasks after {scores[0].iteration} iterations, "
            f"one training seed ({trial.seed}). The interval covers the choice of "
            "tasks and the sampling of tokens, not other seeds.\n\n"
            "| environment | success | 95% interval | episodes |\n|---|---|---|---|\n"
            f"{rows}"
        )
        if others:
            by_seed = {trial.seed: scores}
            by_seed |= {each.seed: list(last_scores(facts, each)) for each in others}
            parts.append(seeds_section(by_seed))
    else:
        parts.append(
            "The run reported no held-out success: it did not evaluate, or the "
            "environment does not define success."
        )
    curve = _curve(facts, trial)
    if curve:
        parts.append(f"### Learning curve\n\n{curve}")
    return "\n\n".join(parts)


_COLUMNS = (
    (result_keys.RETURN, "training return"),
    (result_keys.SUCCESS, "training success"),
    (result_keys.EVAL_RETURN, "held-out return"),
    (result_keys.EVAL_SUCCESS, "held-out success"),
)


def _curve(facts: CardFacts, trial: Trial) -> str:
    """Return the learning curve as a table of at most ``_MOST_POINTS`` rows."""
    points = {key: dict(zip(*trial.curve(key), strict=True)) for key, _ in _COLUMNS}
    columns = [(key, title) for key, title in _COLUMNS if points[key]]
    evaluated = sorted({*points[result_keys.EVAL_RETURN]})
    iterations = [
        n
        for n in evaluated or sorted(points[result_keys.RETURN])
        if n <= facts.iteration
    ]
    if not columns or not iterations:
        return ""
    stride = -(-len(iterations) // _MOST_POINTS)
    shown = iterations[::-1][::stride][::-1]
    head = " | ".join(["iteration", *(title for _, title in columns)])
    rule = "|".join("---" for _ in range(len(columns) + 1))
    rows = [
        " | ".join([str(n), *(_number(points[key].get(n)) for key, _ in columns)])
        for n in shown
    ]
    return "\n".join([f"| {head} |", f"|{rule}|", *(f"| {row} |" for row in rows)])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _pipeline(facts: CardFacts) -> str:
    """Return the hub's name of the model's task."""
    if facts.is_classifier:
        return "text-classification"
    return "image-text-to-text" if facts.reads_pictures else "text-generation"


def _loading(facts: CardFacts) -> str:
    if facts.is_adapter:
        code = (
            "from peft import AutoPeftModelForCausalLM\n"
            "from transformers import AutoTokenizer\n\n"
            'model = AutoPeftModelForCausalLM.from_pretrained("PATH_OR_REPOSITORY")\n'
        )
        note = f"The adapter needs its base model, `{facts.base_model}`. "
    elif facts.is_classifier:
        return _CLASSIFIER
    else:
        loader = "AutoModelForCausalLM"
        if facts.reads_pictures:
            loader = "AutoModelForImageTextToText"
        code = (
            f"from transformers import {loader}, AutoTokenizer\n\n"
            f'model = {loader}.from_pretrained("PATH_OR_REPOSITORY")\n'
        )
        note = ""
    code += 'tokenizer = AutoTokenizer.from_pretrained("PATH_OR_REPOSITORY")\n'
    return (
        f"## Use\n\n```python\n{code}```\n\n{note}"
        "The policy expects the environment's texts in the tokenizer's chat template, "
        "one user message per observation."
    )


def _licence(facts: CardFacts) -> str:
    stated = (
        f"The weights are released under `{facts.license}`."
        if facts.license
        else "No licence is stated for these weights."
    )
    return (
        f"## Licence\n\n{stated} The terms of the model that they were trained from "
        f"(`{facts.base_model}`) and of the environment's data apply as well."
    )


def _recipe(recipe: Mapping[str, Any]) -> str:
    if not recipe:
        return ""
    return (
        "## Recipe\n\nSave it as `recipe.yaml`; `rllib-llm train recipe.yaml` repeats "
        f"the training.\n\n```yaml\n{yaml_io.dump(dict(recipe)).strip()}\n```"
    )
