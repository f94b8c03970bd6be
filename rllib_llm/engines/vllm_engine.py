"""Engine that samples with vLLM in this process.

vLLM supports one engine per process. The first request starts it. Several VLLMEngines
of one process (e.g. of the training and the evaluation runner) take turns with it, and
each loads its own weights.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from rllib_llm.engines import vllm_setup
from rllib_llm.engines.adapter_files import memory_folder, write_adapter
from rllib_llm.engines.base import Generation, SamplingParams, SessionError
from rllib_llm.engines.checkpoint_format import CheckpointFormat
from rllib_llm.engines.requests import Request
from rllib_llm.engines.vllm_pictures import PicturePrompts
from rllib_llm.engines.vllm_process import Live, repack, running, start_vllm
from rllib_llm.engines.vllm_sessions import HistoryEngine
from rllib_llm.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine

    from rllib_llm.pictures.spec import ImageSpec

_COUNTERS = (
    "prefill_tokens",
    "cached_tokens",
    "decoded_tokens",
    "reprefills",
    "forwards",
)
_ADAPTER = "policy"


class VLLMEngine(HistoryEngine):
    """Samples with vLLM, from a copy of the weights.

    The first request starts vLLM, which takes about ten seconds of CPU time and seeds
    the global generators of torch, numpy and Python with 0.

    Args:
        model: Folder or hub id; its weights are used until :meth:`update_weights`.
        max_slots: Maximum number of requests that run at once; more wait.
        max_context_tokens: Maximum tokens of a history, sampled ones included.
        dtype: Data type of vLLM's weights.
        tokenizer: Decodes tokens to find stop strings; only needed for those.
        lora: None, or ``{"rank": r, "alpha": a}``: :meth:`update_weights` then takes
            the adapter's tensors, and the base model does not change.
        sleeps: Whether :meth:`sleep` releases memory (not on a CPU).
        engine_kwargs: Further arguments of vLLM's ``EngineArgs``.
        vocabulary: Number of ids that may be sampled, from 0; None means all.
        transfer_backend: See :class:`TransferEngine`.
        pictures: Picture inputs of a vision-language model; None: it reads text alone.
            They need the tokenizer, and vLLM the files of the model's processor.

    Raises:
        ConfigError: If a setting is out of range, or vLLM cannot read the pictures.
        MissingExtraError: If vLLM is not installed.
    """

    def __init__(
        self,
        model: str,
        *,
        max_slots: int,
        max_context_tokens: int,
        dtype: str = "float32",
        tokenizer: PreTrainedTokenizerBase | None = None,
        lora: Mapping[str, Any] | None = None,
        sleeps: bool = False,
        engine_kwargs: Mapping[str, Any] | None = None,
        vocabulary: int | None = None,
        transfer_backend: str | None = None,
        pictures: ImageSpec | None = None,
    ) -> None:
        """Check the settings; the first request starts vLLM."""
        super().__init__(
            max_context_tokens=max_context_tokens,
            has_tokenizer=tokenizer is not None,
            pictures=pictures,
        )
        vllm_setup.check_engine_kwargs(
            engine_kwargs or {}, transfers=transfer_backend is not None
        )
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._lora = None if lora is None else dict(lora)
        self._settings: dict[str, Any] = {
            "model": model,
            "dtype": dtype,
            "max_slots": max_slots,
            "max_context_tokens": max_context_tokens,
            "lora_rank": lora["rank"] if lora else None,
            "sleeps": sleeps,
            "engine_kwargs": dict(engine_kwargs or {}),
            "transfer_backend": transfer_backend,
            "pictures": pictures,
        }
        self._prompts: PicturePrompts | None = None
        if pictures is not None:
            if tokenizer is None:
                raise ConfigError(
                    f"An engine with pictures of {model!r} needs a tokenizer. Pass "
                    "tokenizer=..."
                )
            self._prompts = PicturePrompts(pictures, tokenizer)
        self._source: list[tuple[str, torch.Tensor]] = []
        self._format: CheckpointFormat | None = None
        self._adapter: tuple[Any, Any] | None = None  # vLLM's request, its folder
        self._stats = dict.fromkeys(_COUNTERS, 0)

    def step(self) -> list[Generation]:
        """Run one iteration of vLLM's scheduler; see :meth:`GenerationEngine.step`."""
        if not self._requests:
            return []
        self._stats["forwards"] += 1
        finished, llm = [], self._acquire()
        for output in llm.step():
            # None: an aborted request may report once more.
            request = self._requests.get(int(output.request_id))
            if request is not None:
                finished += self._take(llm, request, output)
        return finished

    def update_weights(
        self, named_tensors: Iterable[tuple[str, torch.Tensor]], version: int
    ) -> None:
        """Load new values; see :meth:`GenerationEngine.update_weights`.

        Running requests continue with the new values and keep their sampled tokens. The
        tensors are kept by reference and loaded again if another engine of this process
        has used vLLM in between, so they must keep the values of this version until the
        next one.

        Raises:
            ModelError: If vLLM does not accept a name or a shape.
        """
        # References, not copies: a second copy of a large model may not fit.
        self._source = [(name, tensor.detach()) for name, tensor in named_tensors]
        self._version = version
        live = self._held()
        if live is not None:
            live.is_loaded = False
            self._make_ready(live)

    def start(self) -> None:
        """Start vLLM, unless it runs in this process already."""
        if running() is None:
            self._acquire()

    def sleep(self) -> None:
        """Release GPU memory; no effect on a CPU.

        Weights that can be loaded again are discarded (vLLM's level 2); those that
        only vLLM has, as the base model under LoRA, move to main memory (level 1).

        Raises:
            SessionError: If requests are unfinished.
        """
        if self._requests:
            raise SessionError(
                f"sleep() needs an idle engine; {len(self._requests)} requests are "
                "unfinished. Finish or abort them first."
            )
        live = self._held()
        if live is None or live.asleep:
            return
        level = 2 if self._gets_weights_again else 1
        live.llm.sleep(level=level)
        live.asleep = {"weights", "kv_cache"}
        if level == 2:
            live.is_loaded, live.is_changed = False, True

    def wake_up(self) -> None:
        """Allocate the released memory again; a request does so automatically."""
        live = self._held()
        if live is not None and live.asleep:
            self._make_ready(live)

    def stats(self) -> dict[str, int]:
        """Return the counters; see :meth:`GenerationEngine.stats`."""
        return dict(self._stats)

    def reset_stats(self) -> None:
        """Set all counters to zero."""
        self._stats = dict.fromkeys(_COUNTERS, 0)

    # vLLM ----------------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        llm, room = self._acquire(), self._max_context - request.prompt_length
        rows = llm.model_config.get_vocab_size()
        llm.add_request(
            str(request.request_id),
            self._prompt(llm, request),
            _vllm_params(request.params, room, range(self._vocabulary or rows, rows)),
            lora_request=self._adapter[0] if self._adapter else None,
        )

    def _prompt(self, llm: LLMEngine, request: Request) -> Any:
        """Return vLLM's prompt of a request: its history, with its pictures."""
        session = request.session
        if self._prompts is None:
            return {"prompt_token_ids": list(session.history)}
        return self._prompts(llm, session.history, session.pictures)

    def _cancel(self, request: Request) -> None:
        live = self._held()
        if live is not None:
            live.llm.abort_request([str(request.request_id)])

    def _held(self) -> Live | None:
        """Return the process's vLLM if it holds this engine's weights."""
        live = running()
        return live if live and live.holder and live.holder() is self else None

    def _acquire(self) -> LLMEngine:
        """Return vLLM's engine, awake and holding this engine's weights."""
        live = self._hold()
        self._make_ready(live)
        return live.llm

    def _hold(self) -> Live:
        """Return the process's vLLM, started or taken over, with any weights."""
        live = self._held()
        if live is None:
            live = start_vllm(self._settings)
            live.holder, live.requests = weakref.ref(self), self._requests
            live.is_loaded = False
            if self._prompts is not None:
                self._prompts.probe(live.llm)
        return live

    def _make_ready(self, live: Live) -> None:
        # In this order: while weights are loaded, the cache's memory is still free.
        self._wake(live, "weights")
        if not live.is_loaded:
            self._push(live)
        self._wake(live, "kv_cache")

    @staticmethod
    def _wake(live: Live, part: str) -> None:
        if part in live.asleep:
            live.llm.wake_up(tags=[part])
            live.asleep.remove(part)

    @property
    def _gets_weights_again(self) -> bool:
        return bool(self._source) and self._lora is None

    def _push(self, live: Live) -> None:
        """Load the weights into vLLM and drop everything computed with older ones."""
        live.is_loaded = False  # until all of them are loaded without an error
        if self._lora is not None and self._source:
            self._push_adapter(live.llm, self._lora)
        elif self._source:
            # Before the load: after a failure the weights are neither the old nor the
            # new ones.
            live.is_changed = True
            weights = self._checkpoint_format()(self._source)
            try:
                live.llm.collective_rpc(
                    "reload_weights", kwargs={"weights_iterator": weights}
                )
                live.llm.apply_model(repack)
            except (KeyError, ValueError, AssertionError, RuntimeError) as error:
                raise ModelError(
                    f"vLLM did not accept the weights of version {self._version}: "
                    f"{error}. Use engine='torch', or another version of vLLM."
                ) from error
        elif live.is_changed:
            raise ModelError(
                "vLLM holds the weights of another engine of this process; call "
                "update_weights() first."
            )
        self._drop_cached(live)
        live.is_loaded = True

    def _drop_cached(self, live: Live) -> None:
        # Cached prefixes have keys and values of the old weights, and cached features
        # of pictures come from the old tower.
        live.llm.reset_prefix_cache(reset_running_requests=True)
        if self._prompts is not None:
            live.llm.reset_encoder_cache()

    def _checkpoint_format(self) -> CheckpointFormat:
        if self._format is None:
            self._format = CheckpointFormat(self._settings["model"])
        return self._format

    def _push_adapter(self, llm: LLMEngine, lora: dict[str, Any]) -> None:
        from vllm.lora.request import LoRARequest
        from vllm.platforms import current_platform

        if current_platform.is_cpu() and self._checkpoint_format().has_experts:
            raise ModelError(
                f"vLLM cannot run LoRA adapters of the mixture of experts "
                f"{self._settings['model']!r} on a CPU: its kernels need Triton. Use "
                "engine='torch', or train without LoRA."
            )
        folder = memory_folder()
        write_adapter(folder.name, self._source, **lora)
        llm.add_lora(LoRARequest(_ADAPTER, 1, folder.name, load_inplace=True))
        # Keep the folder until the next adapter: vLLM may read it again.
        self._adapter = (LoRARequest(_ADAPTER, 1, folder.name), folder)

    def _take(
        self, llm: LLMEngine, request: Request, output: RequestOutput
    ) -> list[Generation]:
        """Append the tokens that a step sampled for one request."""
        completion = output.outputs[0]
        if request.num_sampled == 0:
            self._count_prompt(llm, request, output.num_cached_tokens or 0)
        for token, logps in zip(
            completion.token_ids, completion.logprobs or (), strict=True
        ):
            logp = logps[token].logprob
            if not math.isfinite(logp):
                raise ModelError(
                    f"The logits are not finite (weights version {self._version}). The "
                    "weights have probably diverged: lower the learning rate or the "
                    "gradient clip."
                )
            request.accept(token, logp, self._version)
            self._stats["decoded_tokens"] += 1
            reason = request.finish_reason(self._tokenizer)
            if reason is not None:
                # vLLM gets no stop strings (it would need a tokenizer), so it would
                # continue the turn.
                if not output.finished:
                    llm.abort_request([output.request_id])
                request.session.cached = len(request.session.history) - 1
                return [self._finish(request, reason)]
        if output.finished:
            raise ModelError(
                f"vLLM ended a request of {request.prompt_length} prompt tokens after "
                f"{request.num_sampled} sampled tokens ({completion.finish_reason}) "
                "before its stop condition. Check engine_kwargs, or use engine='torch'."
            )
        return []

    def _count_prompt(self, llm: LLMEngine, request: Request, num_cached: int) -> None:
        self._stats["prefill_tokens"] += request.prompt_length - num_cached
        self._stats["cached_tokens"] += num_cached
        # vLLM caches full blocks only and always computes the last prompt token.
        block = llm.vllm_config.cache_config.block_size
        expected = min(request.session.cached, request.prompt_length - 1)
        self._stats["reprefills"] += num_cached < expected // block * block


def _vllm_params(params: SamplingParams, room: int, unknown: range) -> Any:
    """Return vLLM's sampling parameters of a request.

    Args:
        params: The engine interface's parameters.
        room: Maximum tokens that fit in the context.
        unknown: Ids that must not be sampled.
    """
    from vllm import SamplingParams as VLLMParams
    from vllm.sampling_params import RequestOutputKind

    return VLLMParams(
        max_tokens=min(params.max_new_tokens, room),
        seed=params.seed,
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        stop_token_ids=list(params.stop_token_ids),
        logit_bias=dict.fromkeys(unknown, -math.inf) or None,
        ignore_eos=True,  # only stop_token_ids and stop strings end a turn
        logprobs=0,  # of the sampled token alone, without alternatives
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
