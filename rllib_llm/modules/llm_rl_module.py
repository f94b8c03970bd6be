"""Hugging Face causal language model as an RLlib RLModule."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis import InferenceOnlyAPI, ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from ray.rllib.utils.annotations import override
from torch import nn
from torch.utils.checkpoint import checkpoint

from rllib_llm import compat
from rllib_llm import weights as state
from rllib_llm.data import columns
from rllib_llm.data.micro_batches import places, read
from rllib_llm.env_runner.stock_generation import TurnSampler
from rllib_llm.errors import ModelError
from rllib_llm.losses.logprobs import token_logps_and_entropy
from rllib_llm.modules import loading
from rllib_llm.modules.action_head import ChoiceTokens, attention_inputs, entropy_of
from rllib_llm.modules.architectures import uses_flash_attention
from rllib_llm.modules.checkpointed_module import CheckpointedModule
from rllib_llm.modules.last_mlp import only_read_at
from rllib_llm.modules.lora import (
    SharedBase,
    adapters_off,
    add_lora,
    lora_settings,
    share_base,
)
from rllib_llm.modules.nucleus_mask import forbid, mask_policy
from rllib_llm.modules.picture_inputs import packed_inputs, row_inputs
from rllib_llm.modules.reference import check_present, frozen_reference
from rllib_llm.modules.sharding import is_sharded
from rllib_llm.modules.token_distribution import TokenLogps
from rllib_llm.modules.value_head import ValueHead
from rllib_llm.pictures.features import freeze, has_vision, text_trunk
from rllib_llm.pictures.spec import image_spec

Batch = Mapping[str, Any]  # columns by name; tensors [B, T]


class LLMRLModule(CheckpointedModule, ValueFunctionAPI, InferenceOnlyAPI):
    """Policy with optional critic and frozen reference, around one language model.

    ``model_config`` keys (set by :meth:`LLMConfigMixin.language_model`):

    - ``model``: checkpoint folder or hub id.
    - ``dtype``: data type of the parameters.
    - ``autocast``: None, or the data type in which rows are scored (torch.autocast).
    - ``head_chunk_tokens``: None, or the number of positions whose logits are computed
      at a time.
    - ``lora``: None, or the settings of :func:`rllib_llm.modules.lora.add_lora`.
    - ``value_head``: None, or ``{"kind": ..., "detach": ...}``.
    - ``value_model``: "shared" (default), or "own": the critic has a separate trunk,
      initialised as a copy of the policy's.
    - ``reference``: whether to keep a frozen copy for KL penalties. Under LoRA the base
      model without its adapter is the reference, which needs no copy.
    - ``ref_model``: None, or the folder of the reference, if it is another model.
    - ``mask_policy``: whether to keep an earlier copy of the policy, whose nucleus
      restricts the tokens.
    - ``temperature``: the sampling temperature. The Learner's log-probabilities are
      those of the tempered distribution, as in sampling.
    - ``vocabulary``: None, or the number of the tokenizer's ids. Models often have more
      output rows; they are excluded from the distribution, as in sampling.
    - ``freeze``: parts of a vision-language model that are not trained: "vision",
      "projector".
    - ``init_seed``: seed of new parameters, so that all processes start with the same.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Build the module.

        Raises:
            ModelError: If ``setup()`` raises AttributeError. RLlib would treat it as a
                module of an older API and show a deprecation notice instead.
        """
        try:
            super().__init__(*args, **kwargs)
        except AttributeError as error:
            raise ModelError(
                f"{type(self).__name__}.setup() raised AttributeError: {error}. See "
                "the traceback above for the failing line."
            ) from error

    @override(RLModule)
    def setup(self) -> None:
        self.action_dist_cls = TokenLogps
        self._turn_sampler: TurnSampler | None = None
        self._score_reference = self._score
        lora = lora_settings(self.model_config["lora"])
        model = loading.find_model(
            self.model_config["model"],
            weights_follow=lora is None,
            module_id=self.model_config.get("module_id"),
        )
        # Written back, so that this module's checkpoints refer to an existing folder.
        config = {**self.model_config, "model": model, "lora": lora}
        self.model_config = config
        with torch.random.fork_rng():
            torch.manual_seed(config["init_seed"])
            self.lm = loading.load_causal_lm(
                model,
                config["dtype"],
                needs_weights=lora is not None,
                **config.get("model_kwargs", {}),
            )
            freeze(self.lm, config.get("freeze") or ())
            if lora is None:
                # Not under LoRA, whose base is compared and shared by CPU first.
                self.lm.to(loading.placement())
            self._reference = ()
            if not self.inference_only:
                self._reference = frozen_reference(self.lm, config)
            self._mask_policy = mask_policy(self.lm, config)
            self._base = np.zeros(0, np.float32)
            if lora is not None:
                # Before the adapters are added: checkpoints identify the base by it.
                self._base = state.fingerprint(self.lm.parameters())
                self.lora_config = add_lora(self.lm, lora)
                self._share_base()
            if config.get("gradient_checkpointing") and not self.inference_only:
                self.lm.gradient_checkpointing_enable({"use_reentrant": False})
            if config["value_head"] is not None and not self.inference_only:
                has_trunk = config.get("value_model", "shared") == "own"
                self.value_head = ValueHead(
                    self.lm.config.get_text_config().hidden_size,
                    **config["value_head"],
                    trunk=copy.deepcopy(self.lm.base_model) if has_trunk else None,
                )
        self._pictures = image_spec(model) if has_vision(self.lm) else None
        # Another model's colours may have another mean and deviation.
        ref_model = config.get("ref_model") if self._reference else None
        self._ref_pictures = image_spec(ref_model) if ref_model else self._pictures
        models = (self.lm, *self._reference)
        self._trunk_and_head_suffice = all(self._head_is_plain(lm) for lm in models)
        rows = max(lm.config.get_text_config().vocab_size for lm in models)
        num_ids = config.get("vocabulary") or rows
        self.vocabulary: int | None = num_ids if num_ids < rows else None
        if config.get("compile") and not self.inference_only:
            # In place: torch.compile(module) would rename the parameters. dynamic:
            # every batch has another length.
            self.lm.base_model.compile(backend=config["compile"], dynamic=True)
        if self._pictures is not None and not self._trunk_and_head_suffice:
            raise ModelError(
                f"{type(self.lm).__name__} scales its logits outside of its output "
                "layer, so that its text part cannot be run on picture features. Use a "
                "model of another family."
            )
        if config.get("head_chunk_tokens") and not self._trunk_and_head_suffice:
            raise ModelError(
                f"head_chunk_tokens={config['head_chunk_tokens']} computes the output "
                f"layer separately, but {type(self.lm).__name__} scales its logits "
                "outside of it. Set head_chunk_tokens to None and lower "
                "micro_batch_tokens."
            )

    def _share_base(self) -> None:
        """Share the base model's tensors within the process and device."""
        config = self.model_config
        self._base_tensors: SharedBase | None = share_base(
            self.lm, config["model"], config["dtype"]
        )

    # Forward passes --------------------------------------------------------------

    @override(TorchRLModule)
    def _forward_train(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        """Score the trained tokens of a batch of rows.

        Args:
            batch: ``input_ids`` padded on the right, and ``loss_mask``, each [B, T].

        Returns:
            ``action_dist_inputs`` [B, T, 2] (log-probability and entropy, zero where
            masked) and ``embeddings``, the trunk's hidden states: [B, T, D], or
            [1, N, D] of packed rows; on a CPU without a critic on them they are
            complete only where a trained token follows. Of rows with choices also
            ``choice_logps``, the log-probabilities of all admissible actions of the
            trained turns [M, K].
        """
        return self._score(self.lm, batch)

    @override(TorchRLModule)
    def _forward(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        return self._score(self.lm, batch)

    @override(TorchRLModule)
    def _forward_exploration(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        return self._sample_turns(batch, explore=True)

    @override(TorchRLModule)
    def _forward_inference(self, batch: Batch, **kwargs: Any) -> dict[str, Any]:
        return self._sample_turns(batch, explore=False)

    def _sample_turns(self, batch: Batch, *, explore: bool) -> dict[str, Any]:
        """Sample one turn per conversation, for RLlib's stock env runners."""
        if self._turn_sampler is None:
            self._turn_sampler = TurnSampler(
                self.lm,
                self.model_config["turns"],
                self.model_config["temperature"],
                self.vocabulary,
            )
        return self._turn_sampler(batch, explore=explore)

    @override(ValueFunctionAPI)
    def compute_values(
        self, batch: Batch, embeddings: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the value before each token; column t depends on tokens < t. [B, T]"""
        if columns.PREDICTED_VALUES in batch:
            return batch[columns.PREDICTED_VALUES]
        return self._values(batch, embeddings)

    def _values(self, batch: Batch, embeddings: torch.Tensor | None) -> torch.Tensor:
        trunk = self.value_head.trunk
        if trunk is not None or embeddings is None:
            with self._autocast(batch[columns.INPUT_IDS].device):
                embeddings = self._row_hidden(trunk or self.lm, batch)
        values = self.value_head(embeddings)
        packed = batch.get(columns.PACKED_ROWS)
        if packed is not None:
            return packed.at_next_column(values, batch[columns.INPUT_IDS].shape[1])
        # The state before token t is the hidden state at t-1; column 0 has none, and
        # its value is 0. Do not shift the other way: values would depend on the action.
        return torch.nn.functional.pad(values[:, :-1], (1, 0))

    def check_ids(self, ids: np.ndarray) -> None:
        """Refuse ids that the model has no embedding of.

        Args:
            ids: Token ids in host memory, padding included. [B, T]

        Raises:
            ModelError: If an id is outside of the vocabulary.
        """
        size = self.lm.get_input_embeddings().num_embeddings
        if ids.size and not (ids.min() >= 0 and ids.max() < size):
            raise ModelError(
                f"input_ids span [{ids.min()}, {ids.max()}]. Ids must lie in "
                f"[0, {size}), the rows of the model's embedding. Check that the "
                "tokenizer belongs to the model."
            )

    def reference_logps(self, batch: Batch) -> torch.Tensor:
        """Return the frozen reference's log-probabilities of trained tokens. [B, T]"""
        return self._reference_scores(batch)[Columns.ACTION_DIST_INPUTS][..., 0]

    def reference_choice_logps(self, batch: Batch) -> torch.Tensor:
        """Return the reference's log-probabilities of all actions of trained turns.

        Args:
            batch: Rows with choices, or rows without a trained token.

        Returns:
            Those of each action at its first token, else 0. [B, T]
        """
        scores = self._reference_scores(batch)
        like = scores[Columns.ACTION_DIST_INPUTS][..., 0]
        if columns.CANDIDATES not in batch:
            return torch.zeros_like(like)
        tokens = ChoiceTokens.find(batch)
        return tokens.at_first_tokens(scores[columns.CHOICE_LOGPS].float(), like)

    def _reference_scores(self, batch: Batch) -> dict[str, Any]:
        with torch.no_grad():
            if self._reference:
                return self._score_reference(self._reference[0], batch)
            check_present(self.model_config)
            with adapters_off(self.lm):
                return self._score(self.lm, batch)

    def action_logps(self, batch: Batch) -> torch.Tensor:
        """Return the log-probabilities of all actions of every trained turn. [M, K]

        Args:
            batch: Rows with choices. Turns are in order of row and column, actions in
                the order of the rows (see :mod:`rllib_llm.modules.action_head`).
        """
        return self._choose(self.lm, batch, ChoiceTokens.find(batch))[1]

    def _score(self, lm: nn.Module, batch: Batch) -> dict[str, Any]:
        ids, of_choices = batch[columns.INPUT_IDS], {}
        if columns.CANDIDATES in batch:
            tokens = ChoiceTokens.find(batch)
            hidden, logps = self._choose(lm, batch, tokens)
            of_choices = {columns.CHOICE_LOGPS: logps}
            where, logp, entropy = tokens.taken(), logps[:, 0], entropy_of(logps)
        else:
            # Token t is predicted at t-1, so column 0 cannot be trained.
            mask = read(batch, Columns.LOSS_MASK)[:, 1:]
            rows, cols = places(mask, ids.device)  # 2 x [N]
            where, temperature = (rows, cols + 1), self.model_config["temperature"]
            allowed = batch.get(columns.ALLOWED_TOKENS)
            bits = None if allowed is None else allowed[where]
            hidden, logp, entropy = self._token_scores(
                lm, batch, (rows, cols), ids[where], temperature, bits
            )
        scores = hidden.new_zeros((*ids.shape, 2), dtype=torch.float32)
        pairs = torch.stack([logp.float(), entropy.float()], dim=-1)
        scores = scores.index_put(where, pairs)
        named = {Columns.ACTION_DIST_INPUTS: scores, Columns.EMBEDDINGS: hidden}
        return named | of_choices

    def _choose(
        self, lm: nn.Module, batch: Batch, tokens: ChoiceTokens
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return hidden states and log-probabilities of actions [M, K]."""
        where = tokens.rows, tokens.columns
        taken, weights = (
            batch[c][where] for c in (columns.INPUT_IDS, columns.SCORE_WEIGHTS)
        )
        before = tokens.rows, tokens.before
        # The temperature applies to the scores of actions, not to single tokens.
        hidden, logps, _ = self._token_scores(lm, batch, before, taken, 1.0)
        temperature = self.model_config["temperature"]
        return hidden, tokens.action_logps(logps, weights, temperature)

    def _token_scores(
        self,
        lm: nn.Module,
        batch: Batch,
        before: tuple[torch.Tensor, torch.Tensor],
        taken: torch.Tensor,
        temperature: float,
        allowed: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies of tokens.

        Args:
            lm: The language model.
            batch: Rows.
            before: Row and column of the token before each one. 2 x [N]
            taken: Their ids. [N]
            temperature: Divisor of the logits.
            allowed: Bits of the tokens that each could be; None: all.
                uint8 [N, ceil(V / 8)]

        Returns:
            Hidden states of the rows, or of the packed row, log-probabilities [N] and
            entropies [N].
        """
        packed = batch.get(columns.PACKED_ROWS)
        if packed is not None:
            before = packed.places(*before)
        with self._autocast(taken.device):
            if self._trunk_and_head_suffice:
                with only_read_at(before):
                    hidden = self._row_hidden(lm, batch)
                # Logits of the scored positions alone, not of whole rows.
                scores = self._head_scores(
                    lm, hidden[before], taken, temperature, allowed
                )
            else:
                out = lm(
                    output_hidden_states=True,
                    use_cache=False,
                    **self._inputs(lm, batch),
                )
                hidden, logits = out.hidden_states[-1], out.logits[before]
                scores = self._logit_scores(logits, taken, temperature, allowed)
        return hidden, *scores

    def _row_hidden(self, lm: nn.Module, batch: Batch) -> torch.Tensor:
        """Return the hidden states of rows, whose pictures are in their places.

        Args:
            lm: A language model, or the trunk of one.
            batch: Rows.
        """
        if self._pictures is None:
            return self._hidden(lm.base_model, batch)
        spec = self._ref_pictures if lm in self._reference else self._pictures
        inputs = row_inputs(lm, batch, spec, always=is_sharded(self))
        trunk, packed = text_trunk(lm), batch.get(columns.PACKED_ROWS)
        if packed is not None and spec is not None:
            inputs = packed_inputs(
                inputs or {"input_ids": batch[columns.INPUT_IDS]},
                packed,
                spec,
                varlen=uses_flash_attention(trunk.config),
            )
        return self._hidden(trunk, batch, inputs)

    def _head_scores(
        self,
        lm: nn.Module,
        hidden: torch.Tensor,
        taken: torch.Tensor,
        temperature: float,
        allowed: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies. hidden [N, D], taken [N] -> 2 x [N]

        With ``head_chunk_tokens`` the logits are computed in chunks, and the backward
        pass computes them again.
        """
        chunk = self.model_config.get("head_chunk_tokens") or len(taken)
        if len(taken) <= chunk:
            logits = self._head(lm, hidden)
            return self._logit_scores(logits, taken, temperature, allowed)

        def score(
            part: torch.Tensor, ids: torch.Tensor, bits: torch.Tensor | None = None
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return self._logit_scores(self._head(lm, part), ids, temperature, bits)

        inputs = (hidden, taken) if allowed is None else (hidden, taken, allowed)
        parts = [
            checkpoint(score, *chunks, use_reentrant=False)
            for chunks in zip(*(each.split(chunk) for each in inputs), strict=True)
        ]
        logps, entropies = zip(*parts, strict=True)
        return torch.cat(logps), torch.cat(entropies)

    def _logit_scores(
        self,
        logits: torch.Tensor,
        taken: torch.Tensor,
        temperature: float,
        allowed: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # Without output rows that have no token: the engines exclude them as well.
        logits = logits[:, : self.vocabulary]
        if allowed is not None:
            logits = forbid(logits, allowed)
        return token_logps_and_entropy(logits, taken, temperature=temperature)

    def _autocast(self, device: torch.device) -> torch.autocast:
        """Return a context that computes in the data type of ``autocast``."""
        name = self.model_config.get("autocast")
        dtype = loading.DTYPES[name] if name else None
        return torch.autocast(device.type, dtype=dtype, enabled=name is not None)

    @staticmethod
    def _hidden(
        trunk: nn.Module, batch: Batch, inputs: dict[str, Any] | None = None
    ) -> torch.Tensor:
        # Rows are padded on the right, and causal attention does not reach the padding:
        # without a mask the results are the same and faster kernels are used.
        if inputs is None:
            inputs = LLMRLModule._inputs(trunk, batch)
        return trunk(use_cache=False, **inputs).last_hidden_state

    @staticmethod
    def _inputs(lm: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return ids, and masks and positions of rows that need them."""
        ids, packed = batch[columns.INPUT_IDS], batch.get(columns.PACKED_ROWS)
        if packed is not None:
            ids = packed.pack(ids)
        inputs, config = {"input_ids": ids}, lm.config.get_text_config()
        if columns.CANDIDATES in batch:
            dtype = next(lm.parameters()).dtype
            return inputs | attention_inputs(config, batch, dtype)
        if packed is not None:
            return inputs | packed.attention_inputs(varlen=uses_flash_attention(config))
        return inputs

    @staticmethod
    def _head(lm: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        logits = lm.get_output_embeddings()(hidden)
        cap = getattr(lm.config.get_text_config(), "final_logit_softcapping", None)
        return torch.tanh(logits / cap) * cap if cap else logits

    def _head_is_plain(self, lm: nn.Module) -> bool:
        """Return whether trunk and output layer reproduce the model's own logits.

        Some architectures scale their logits in forward(). Those run the whole model,
        which computes logits for every position.
        """
        vocab = lm.config.get_text_config().vocab_size
        device = next(lm.parameters()).device
        ids = torch.arange(4, device=device)[None] % vocab
        probe = {columns.INPUT_IDS: ids, columns.ATTENTION_MASK: torch.ones_like(ids)}
        training = lm.training
        lm.eval()
        with torch.no_grad(), compat.attention_on_cpu(lm):
            composed = self._head(lm, self._hidden(text_trunk(lm), probe))
            expected = lm(input_ids=ids, use_cache=False).logits
        lm.train(training)
        return torch.allclose(composed.float(), expected.float(), atol=1e-4, rtol=1e-3)

    @override(InferenceOnlyAPI)
    def get_non_inference_attributes(self) -> list[str]:
        """Return the attributes that inference does not need: the critic."""
        return ["value_head"]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> LLMRLModule:
        """Apply ``fn`` (e.g. ``.to(device)``) to the unregistered models as well."""
        super()._apply(fn, recurse)
        for lm in (*self._reference, *self._mask_policy):
            lm._apply(fn, recurse)
        if self.model_config["lora"]:
            self._share_base()  # fn has replaced the tensors, e.g. on another device
        return self

    def save_model(self, folder: str | Path, *, merged: bool = True) -> None:
        """Write the policy as a Hugging Face folder, without the critic.

        Args:
            folder: Target folder.
            merged: Under LoRA, merge the adapters into the weights; if False, write an
                adapter folder that peft loads on top of the base model.
        """
        from rllib_llm.modules.export import save_policy

        save_policy(self, Path(folder), merged=merged)
