"""``rllib-llm export``: a policy as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer
from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_llm.algorithms.reward_model.reward_model import RewardModel
from rllib_llm.cli.load_run import load_algorithm, locate
from rllib_llm.cli.session import ray_session
from rllib_llm.errors import CheckpointError, ConfigError, did_you_mean
from rllib_llm.evaluation.runner import local_runner
from rllib_llm.manifest import built_whole
from rllib_llm.modules.architectures import auto_class
from rllib_llm.modules.classifiers import Classifier
from rllib_llm.modules.loading import load_tokenizer
from rllib_llm.modules.reward_model import RewardRLModule
from rllib_llm.pictures.features import has_vision
from rllib_llm.runs import hub
from rllib_llm.runs.card_seeds import other_seeds
from rllib_llm.runs.folders import stored_recipe
from rllib_llm.runs.model_card import CARD_FILE, CardFacts, model_card
from rllib_llm.runs.reading import read_run

if TYPE_CHECKING:
    from rllib_llm.modules.llm_rl_module import LLMRLModule


def export(
    run: str,
    out: Path,
    *,
    policy: str | None,
    adapter: bool,
    license: str | None,
    push: str | None,
    private: bool,
    storage: Path | None,
    verbose: bool,
) -> None:
    """Write the newest policy of ``run`` into ``out``, verify it, and upload it.

    Args:
        run: Folder or name of a run, trial or checkpoint.
        out: Folder to write.
        policy: ModuleID of the policy; None: the only one.
        adapter: Write the LoRA adapter alone.
        license: Licence in the model card.
        push: Repository of the hub to upload to; None: none.
        private: Whether a new repository is private.
        storage: Parent of run folders.
        verbose: Show the output of all processes.

    Raises:
        ConfigError: ``out`` exists, ``adapter`` is set without LoRA, the policy is
            ambiguous or unknown, or the hub refuses the upload.
        CheckpointError: The written model differs from the policy.
    """
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise ConfigError(
            f"{out} exists, and export does not overwrite. Give a new folder."
        )
    if private and push is None:
        raise ConfigError("--private has no effect without --push. Remove it.")
    if push is not None:
        hub.check_access(push)
    paths = locate(run, storage)
    with ray_session(verbose=verbose):
        algo = load_algorithm(paths.checkpoint)
        modules = local_runner(algo).modules
        if isinstance(algo, RewardModel):
            modules = {DEFAULT_MODULE_ID: algo.scored_module()}
        name, module = _choose(modules, policy)
        # The folder appears only once it is complete and verified.
        with built_whole(out, manifest=False) as work:
            module.save_model(work, merged=not adapter)
            is_scored = isinstance(module, RewardRLModule)
            check = verify_classifier if is_scored else verify
            parameters = check(work, module)
            facts = CardFacts(
                name=(push or out.name).rpartition("/")[2],
                recipe=stored_recipe(paths.run) if paths.run else {},
                policy=name,
                iteration=algo.training_iteration,
                parameters=parameters,
                base_model=algo.config.get_config_for_module(name).lm_model,
                is_adapter=adapter,
                license=license,
                is_classifier=is_scored,
                reads_pictures=not is_scored and has_vision(module.lm),
            )
            card = _card(facts, paths.trial)
            (work / CARD_FILE).write_text(card, encoding="utf-8")
        algo.stop()
    loader = "AutoModelForSequenceClassification"
    if not is_scored:
        loader = auto_class(module.lm.config).__name__
    typer.echo(
        f"{out}: {parameters:,} parameters, loaded back with {loader} and "
        f"AutoTokenizer. From {paths.checkpoint}"
    )
    if push is not None:
        typer.echo(f"uploaded: {hub.push_folder(out, push, private=private)}")


def _card(facts: CardFacts, folder: Path | None) -> str:
    """Return the model card of a policy of a trial; None: without a run."""
    if folder is None:
        return model_card(facts, None)
    trial = read_run(folder).trials[0]
    return model_card(facts, trial, other_seeds(read_run(folder.parent), trial))


def _choose(modules: dict[str, Any], policy: str | None) -> tuple[str, Any]:
    """Return the policy of that name, or the only one, with its name."""
    if policy is None and len(modules) == 1:
        policy = next(iter(modules))
    if policy is None:
        raise ConfigError(
            f"The run has several policies: {', '.join(modules)}. Select one with "
            "--policy."
        )
    if policy not in modules:
        hint = did_you_mean(policy, modules)
        raise ConfigError(f"The run does not have a policy {policy!r}. {hint}")
    return policy, modules[policy]


def verify_classifier(folder: Path, module: RewardRLModule) -> int:
    """Load ``folder`` as a classifier and compare a score with ``module``'s.

    Returns:
        The number of parameters loaded.

    Raises:
        CheckpointError: They differ.
    """
    classifier = Classifier(str(folder), dtype=_dtype_name(module))
    ids = load_tokenizer(str(folder)).encode("Hello, world.", add_special_tokens=False)
    (score,) = classifier.scores([ids], max_tokens=len(ids))
    expected = module.score_of(ids)
    tolerance = 1e-4 if classifier.model.dtype == torch.float32 else 0.05
    if abs(score - expected) > tolerance * max(1.0, abs(expected)):
        raise CheckpointError(
            f"The exported reward model gives the score {score:.6g} in place of "
            f"{expected:.6g}, so the export was deleted. Please report this as a bug."
        )
    return sum(p.numel() for p in classifier.model.parameters())


def _dtype_name(module: RewardRLModule) -> str:
    return str(next(module.trunk.parameters()).dtype).removeprefix("torch.")


def verify(folder: Path, module: LLMRLModule) -> int:
    """Load ``folder`` with the Auto classes and compare logits with ``module``'s.

    Returns:
        The number of parameters loaded.
    """
    from transformers import AutoTokenizer

    device = next(module.lm.parameters()).device
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = auto_class(module.lm.config).from_pretrained(
        folder, dtype=next(module.lm.parameters()).dtype
    )
    model.to(device).eval()
    ids = tokenizer("Hello, world.", return_tensors="pt").input_ids.to(device)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits.float()
        expected = module.lm.eval()(input_ids=ids, use_cache=False).logits.float()
    error = (logits - expected).abs().max().item()
    # Merging an adapter into bfloat16 weights rounds them once more.
    is_float32 = model.dtype == torch.float32
    tolerance = 1e-4 if is_float32 else 0.05 * expected.abs().max().item()
    if error > tolerance:
        raise CheckpointError(
            "The logits of the exported model differ from the policy's by "
            f"{error:.3g}, "
            "so the export was deleted. Please report this as a bug."
        )
    return sum(p.numel() for p in model.parameters())
