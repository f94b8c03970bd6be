"""``rllib-llm export``: a policy as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from rllib_llm.cli.loading import load_algorithm, locate
from rllib_llm.cli.session import ray_session
from rllib_llm.errors import CheckpointError, ConfigError, did_you_mean
from rllib_llm.evaluation.runner import local_runner
from rllib_llm.manifest import built_whole


def export(
    run: str,
    out: Path,
    *,
    policy: str | None,
    adapter: bool,
    storage: Path | None,
    verbose: bool,
) -> None:
    """Write the newest policy of ``run`` into ``out`` and load it back.

    Raises:
        ConfigError: If ``out`` exists, an adapter is asked for without LoRA, or it is
            not clear which policy is meant.
        CheckpointError: If what was written does not load as the same model.
    """
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise ConfigError(
            f"{out} exists. Choose a new folder, so that nothing is lost."
        )
    paths = locate(run, storage)
    with ray_session(verbose=verbose):
        algo = load_algorithm(paths.checkpoint)
        module = _choose(local_runner(algo).modules, policy)
        with built_whole(out, manifest=False) as work:
            module.save_model(work, merged=not adapter)
            parameters = verify(work, module)
        algo.stop()
    typer.echo(
        f"{out}: {parameters:,} parameters, loaded back with AutoModelForCausalLM and "
        f"AutoTokenizer. From {paths.checkpoint}"
    )


def _choose(modules: dict[str, Any], policy: str | None) -> Any:
    """Return the policy of that name, or the only one."""
    if policy is None and len(modules) == 1:
        policy = next(iter(modules))
    if policy is None:
        raise ConfigError(
            f"The run has several policies: {', '.join(modules)}. Choose one with "
            "--policy."
        )
    if policy not in modules:
        hint = did_you_mean(policy, modules)
        raise ConfigError(f"The run has no policy {policy!r}. {hint}")
    return modules[policy]


def verify(folder: Path, module: Any) -> int:
    """Load ``folder`` with the Auto classes and compare logits with ``module``'s.

    Returns:
        The number of parameters loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    device = next(module.lm.parameters()).device
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=next(module.lm.parameters()).dtype
    )
    model.to(device).eval()
    ids = tokenizer("Hello, world.", return_tensors="pt").input_ids.to(device)
    with torch.no_grad():
        theirs = model(input_ids=ids, use_cache=False).logits.float()
        ours = module.lm.eval()(input_ids=ids, use_cache=False).logits.float()
    gap = (theirs - ours).abs().max().item()
    # Folding an adapter into bfloat16 weights rounds them once more.
    tolerance = 1e-4 if model.dtype == torch.float32 else 0.05 * ours.abs().max().item()
    if gap > tolerance:
        raise CheckpointError(
            f"What was exported has logits that differ from the policy's by {gap:.3g}, "
            "so it was deleted. Please report this."
        )
    return sum(p.numel() for p in model.parameters())
