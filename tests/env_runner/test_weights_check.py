"""Check of an engine's copy of the weights against the module."""

from __future__ import annotations

import copy

import pytest
import torch
from hf_folders import write_folder

from rllib_llm import GRPOConfig
from rllib_llm.data import columns
from rllib_llm.engines import TorchEngine
from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
from rllib_llm.env_runner.weights_check import TOLERANCE, tolerance_of
from rllib_llm.errors import ModelError
from rllib_llm.offline.prepare_model import prepare_language_model


class CopyEngine(TorchEngine):
    """Holds a copy of the weights, with an optional ``fault`` in its updates."""

    fault: str | None = None

    @property
    def shares_weights(self):
        return False

    def update_weights(self, named_tensors, version):
        if self.fault == "lost" and version:
            named_tensors = []
        super().update_weights(named_tensors, version)
        if self.fault == "corrupt":
            layer = self._runner._model.model.layers[0].mlp.down_proj
            layer.weight.data = layer.weight.data.flip(0)
            self._runner.refresh()
        if self.fault == "lagging":
            self._version = version + 1  # as if another client had brought newer ones


class CopyConfig(GRPOConfig):
    """Builds a CopyEngine in place of vLLM."""

    fault: str | None = None

    def build_generation_engine(self, module, share=1.0):
        engine = CopyEngine(
            copy.deepcopy(module.lm),
            max_slots=8,
            max_context_tokens=self.resolved_context_tokens(),
            tokenizer=self.chat_renderer().tokenizer,
            vocabulary=module.vocabulary,
        )
        engine.fault = self.fault
        return engine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("model"), "qwen2", vocab_size=400)


def make_runner(folder, fault=None):
    config = (
        CopyConfig()
        .environment("guess_number-v0", env_config={"upper": 7, "max_turns": 1})
        .language_model(model=folder)
        .generation(max_new_tokens=3, temperature=0.8)
        .env_runners(num_envs_per_env_runner=4)
    )
    config.fault = fault
    return LLMEnvRunner(config=config)


def change(runner):
    with torch.no_grad():
        for parameter in runner.module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


def test_a_correct_copy_passes_and_metrics_exclude_the_check(folder):
    runner = make_runner(folder)
    checked = []
    for version in range(4):
        change(runner)
        runner.set_weights_version(version)
        before = len(runner._weights_checks[0]._versions)
        episodes = runner.sample(num_episodes=4)
        checked.append(len(runner._weights_checks[0]._versions) - before)
        stats = runner.get_metrics()["engine"]
        turns = [t for e in episodes for t in e.get_extra_model_outputs(columns.TURN)]
        assert stats["decoded_tokens"].peek() == sum(len(t.action_ids) for t in turns)
    assert checked == [1, 1, 0, 0]  # the first two versions


@pytest.mark.parametrize(("fault", "version"), [("corrupt", 0), ("lost", 1)])
def test_a_wrong_copy_is_refused(folder, fault, version):
    runner = make_runner(folder, fault)
    for _ in range(version):
        runner.sample(num_episodes=1)
    change(runner)
    runner.set_weights_version(version)
    message = rf"version {version} of policy 'default_policy'.*nats per token.*0\.01"
    with pytest.raises(ModelError, match=message):
        runner.sample(num_episodes=1)


def test_a_shared_engine_with_newer_weights_is_not_compared(folder):
    runner = make_runner(folder, "lagging")
    change(runner)
    runner._weights_checks[0]._engine._version = 1
    check = runner._weights_checks[0]
    assert check._gap(0) is None


@pytest.mark.parametrize(
    ("dtype", "kwargs", "kind"),
    [
        ("float32", {}, "float32"),
        ("float32", {"dtype": "bfloat16"}, "bfloat16"),
        ("bfloat16", {}, "bfloat16"),
        ("bfloat16", {"quantization": "fp8"}, "quantized"),
    ],
)
def test_tolerance_depends_on_the_precision(dtype, kwargs, kind):
    config = GRPOConfig().language_model(dtype=dtype)
    config.engine_kwargs = kwargs
    assert tolerance_of(config) == TOLERANCE[kind]


class PictureCopyEngine(CopyEngine):
    """Keeps the first values of the tower if its fault is "tower"."""

    def update_weights(self, named_tensors, version):
        if self.fault == "tower" and version:
            named_tensors = [(n, t) for n, t in named_tensors if "vision" not in n]
        super().update_weights(named_tensors, version)


class PictureCopyConfig(CopyConfig):
    """Builds a PictureCopyEngine."""

    def build_generation_engine(self, module, share=1.0):
        engine = PictureCopyEngine(
            copy.deepcopy(module.lm),
            max_slots=8,
            max_context_tokens=self.resolved_context_tokens(),
            pictures=self.chat_renderer().pictures,
            vocabulary=module.vocabulary,
        )
        engine.fault = self.fault
        return engine


@pytest.mark.parametrize("fault", [None, "tower"])
def test_towers_are_compared_by_a_picture(fault):
    config = (
        PictureCopyConfig()
        .environment("colour_grid-v0")
        .language_model(model="tiny-vlm", tiny={"initializer_range": 0.3})
        .generation(max_new_tokens=2)
    )
    config.fault = fault
    config.resolved_model = prepare_language_model(config)
    runner = LLMEnvRunner(config=config)
    runner.sample(num_episodes=2)
    module = runner.modules["default_policy"]
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "vision" in name:
                parameter.add_(torch.randn_like(parameter) * 0.5)
    runner.set_weights_version(1)
    if fault is None:
        runner.sample(num_episodes=2)
        return
    with pytest.raises(ModelError, match="differ from the Learner's"):
        runner.sample(num_episodes=2)
