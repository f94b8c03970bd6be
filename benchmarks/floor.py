"""Lower bound of the machine's time for the standing workload, without any overhead.

Run:  OMP_NUM_THREADS=1 python benchmarks/floor.py tiny small [--dtype bfloat16]

A hand-written forward pass of Qwen3 or Llama with fused projections, decoding
in lock step into a preallocated cache, prefilling new tokens only, and training on rows
of equal length without padding. No environment, no text, no configuration. Its logits
are compared with those of transformers before anything is timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from rllib_llm.torch_threads import torch_settings


@dataclasses.dataclass(frozen=True)
class Shape:
    """Token counts of one update; all rows are equal.

    Attributes:
        rows: Episodes.
        turns: Turns of each.
        first: Tokens of the first prompt.
        later: Tokens of every later observation.
        sampled: Tokens sampled per turn.
    """

    rows: int = 64
    turns: int = 5
    first: int = 20
    later: int = 10
    sampled: int = 26

    @property
    def length(self) -> int:
        """Tokens of a row."""
        observed = self.first + (self.turns - 1) * self.later
        return observed + self.turns * self.sampled

    @property
    def num_sampled(self) -> int:
        """Sampled tokens of an update."""
        return self.rows * self.turns * self.sampled

    def sampled_mask(self) -> Tensor:
        """Mask of the sampled tokens of a row. bool [T]"""
        turn = [True] * self.sampled
        mask = [False] * self.first + turn
        for _ in range(self.turns - 1):
            mask += [False] * self.later + turn
        return torch.tensor(mask)


class Floor:
    """A Qwen3 or Llama model with a minimum number of torch operations.

    Args:
        folder: A Hugging Face folder with tied embeddings.
        dtype: Dtype of all computation; parameters and AdamW's moments stay float32.
        lr: Learning rate of AdamW.
    """

    def __init__(self, folder: str, dtype: torch.dtype, lr: float = 1e-6) -> None:
        config = json.loads((Path(folder) / "config.json").read_text())
        weights = load_file(Path(folder) / "model.safetensors")
        self.dtype = dtype
        self.heads = config["num_attention_heads"]
        self.kv_heads = config["num_key_value_heads"]
        self.hidden = config["hidden_size"]
        self.head_dim = config.get("head_dim") or self.hidden // self.heads
        self.eps = config["rms_norm_eps"]
        self.layers = config["num_hidden_layers"]
        self.pad_id = config["pad_token_id"]  # transformers does not train it either
        rope = config.get("rope_parameters") or config
        self._make_rope(rope["rope_theta"], 2048)
        self.masters = _fuse(weights, self.layers)
        self.has_qk_norm = "0.q_norm" in self.masters  # Qwen3 has it, Llama has not
        self.optimizer = torch.optim.AdamW(
            self.masters.values(), lr=lr, weight_decay=0.0, fused=True
        )

    def _make_rope(self, theta: float, length: int) -> None:
        exponent = torch.arange(0, self.head_dim, 2).float() / self.head_dim
        angles = torch.outer(torch.arange(length).float(), theta**-exponent)
        cos, sin = angles.cos(), angles.sin()
        # Rotation as x * cos + flipped halves of x * signed sin. [length, 1, head_dim]
        self.cos = torch.cat([cos, cos], -1).to(self.dtype)[:, None]
        self.sin = torch.cat([-sin, sin], -1).to(self.dtype)[:, None]

    def parameters(self) -> dict[str, Tensor]:
        """Return the parameters of a forward pass in the dtype of the computation."""
        cast = {k: v.to(self.dtype) for k, v in self.masters.items()}
        scale = self.head_dim**-0.5  # attention's, on the queries
        ones = torch.ones(self.head_dim, dtype=self.dtype)
        for n in range(self.layers):
            q = cast.get(f"{n}.q_norm", ones).expand(self.heads, -1) * scale
            k = cast.get(f"{n}.k_norm", ones).expand(self.kv_heads, -1)
            cast[f"{n}.qk_norm"] = torch.cat([q, k])
        return cast

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        # In float32, as transformers does.
        variance = x.float().square().mean(-1, keepdim=True)
        return x * torch.rsqrt(variance + self.eps).to(x.dtype) * weight

    def forward(self, ids: Tensor, start: int, p: dict[str, Tensor], attend) -> Tensor:
        """Return the hidden states after the last norm.

        Args:
            ids: Tokens, at positions start, start + 1, ... [B, T]
            start: The first position.
            p: Parameters.
            attend: Maps layer, queries [B, T, heads, D], keys and values
                [B, T, kv_heads, D] to the attention's output [B, T, hidden].
        """
        rows, length = ids.shape
        cos, sin = (t[start : start + length] for t in (self.cos, self.sin))
        x = F.embedding(ids, p["embed"], self.pad_id)
        both = self.heads + self.kv_heads
        for n in range(self.layers):
            h = F.linear(self._norm(x, p[f"{n}.in"]), p[f"{n}.qkv"])
            h = h.view(rows, length, both + self.kv_heads, self.head_dim)
            qk, v = h[:, :, :both], h[:, :, both:]
            weight = p[f"{n}.qk_norm"]
            qk = self._norm(qk, weight) if self.has_qk_norm else qk * weight
            qk = qk * cos + qk.roll(self.head_dim // 2, -1) * sin
            out = attend(n, qk[:, :, : self.heads], qk[:, :, self.heads :], v)
            x = x + F.linear(out, p[f"{n}.o"])
            h = F.linear(self._norm(x, p[f"{n}.post"]), p[f"{n}.gate_up"])
            gate, up = h.chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, p[f"{n}.down"])
        return self._norm(x, p["norm"])

    # Rollout -------------------------------------------------------------------------

    @torch.no_grad()
    def rollout(self, shape: Shape, teacher: Tensor | None = None):
        """Sample one update's tokens.

        Args:
            shape: Token counts of the update.
            teacher: Tokens to feed instead of the sampled ones [rows, length]; the
                logits are returned then.

        Returns:
            Tokens [rows, length] and their log-probabilities (0 where not sampled).
        """
        p = self.parameters()
        cache = self._empty_cache(shape)
        ids = torch.randint(self.vocab, (shape.rows, shape.length))
        if teacher is not None:
            ids.copy_(teacher)
        logps = torch.zeros(shape.rows, shape.length)
        seen = []  # logits, for the comparison
        done, end = 0, shape.first
        for _ in range(shape.turns):
            for _ in range(shape.sampled):
                logits = self._step(ids[:, done:end], done, p, cache)
                done = end
                token, logp = _sample(logits)
                if teacher is None:
                    ids[:, end] = token
                else:
                    seen.append(logits)
                logps[:, end] = logp
                end += 1
            end += shape.later
        return (ids, logps) if teacher is None else torch.stack(seen, 1)

    def _empty_cache(self, shape: Shape) -> Tensor:
        size = (self.layers, 2, shape.rows, self.kv_heads, shape.length, self.head_dim)
        return torch.empty(size, dtype=self.dtype)

    def _step(self, ids: Tensor, start: int, p: dict[str, Tensor], cache: Tensor):
        """Feed tokens of all rows and return the logits after the last. [B, V]"""
        rows, length = ids.shape
        end = start + length
        group = self.heads // self.kv_heads
        mask = None
        if length > 1:
            queries = torch.arange(start, end)
            hidden = torch.arange(end) > queries[:, None]  # [T, end]
            mask = torch.zeros(hidden.shape, dtype=self.dtype)
            mask = mask.masked_fill_(hidden, -torch.inf).repeat(group, 1)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache[layer, 0, ..., :end, :], cache[layer, 1, ..., :end, :]
            keys[..., start:, :] = k.transpose(1, 2)
            values[..., start:, :] = v.transpose(1, 2)
            # The heads that share a key are further queries of it.
            q = q.reshape(rows, length, self.kv_heads, group, self.head_dim)
            if length == 1:  # plain products are faster for a single position
                out = (q[:, 0] @ keys.mT).softmax(-1) @ values
                return out.view(rows, 1, -1)
            q = q.permute(0, 2, 3, 1, 4).flatten(2, 3)
            out = F.scaled_dot_product_attention(q, keys, values, mask, scale=1.0)
            out = out.unflatten(2, (group, length))
            return out.permute(0, 3, 1, 2, 4).reshape(rows, length, -1)

        hidden = self.forward(ids, start, p, attend)[:, -1]
        return F.linear(hidden, p["embed"])

    # Update --------------------------------------------------------------------------

    def logits(self, ids: Tensor, p: dict[str, Tensor]) -> Tensor:
        """Return all logits of whole rows. [B, T, V]"""
        return F.linear(self.forward(ids, 0, p, self._causal), p["embed"])

    def _causal(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # On CPUs the backward pass of this attention is slower in bfloat16.
        q, k, v = (t.transpose(1, 2).float() for t in (q, k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=True, scale=1.0
        )
        return out.transpose(1, 2).flatten(2).to(self.dtype)

    def update(
        self, ids: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, part: int
    ) -> None:
        """Take one step of AdamW on the clipped policy loss.

        Args:
            ids: Rows without padding. [B, T]
            old: Log-probabilities under the sampling policy. [B, T]
            advantages: One per row. [B]
            mask: True for the trained columns. bool [T]
            part: Rows per forward pass.
        """
        self.optimizer.zero_grad()
        p = self.parameters()
        trained = mask.nonzero()[:, 0]
        total = len(ids) * len(trained)
        for rows in torch.arange(len(ids)).split(part):
            hidden = self.forward(ids[rows], 0, p, self._causal)[:, trained - 1]
            logits = F.linear(hidden, p["embed"]).float()
            targets = ids[rows][:, trained]
            nll = F.cross_entropy(logits.mT, targets, reduction="none")
            ratio = (-nll - old[rows][:, trained]).exp()
            gain = advantages[rows, None]
            loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).sum() / total
            loss.backward(retain_graph=True)  # the parts share parameters()
        torch.nn.utils.clip_grad_norm_(self.masters.values(), 1.0)
        self.optimizer.step()

    @property
    def vocab(self) -> int:
        """Entries of the vocabulary."""
        return len(self.masters["embed"])


def _fuse(weights: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Return transformers' parameters by short names, fused by common input."""

    def get(*names: str) -> Tensor:
        return torch.cat([weights[f"model.{n}.weight"].float() for n in names])

    fused = {"embed": get("embed_tokens"), "norm": get("norm")}
    for n in range(layers):
        at, mlp = f"layers.{n}.self_attn", f"layers.{n}.mlp"
        fused[f"{n}.in"] = get(f"layers.{n}.input_layernorm")
        fused[f"{n}.post"] = get(f"layers.{n}.post_attention_layernorm")
        fused[f"{n}.qkv"] = get(f"{at}.q_proj", f"{at}.k_proj", f"{at}.v_proj")
        fused[f"{n}.o"] = get(f"{at}.o_proj")
        fused[f"{n}.gate_up"] = get(f"{mlp}.gate_proj", f"{mlp}.up_proj")
        fused[f"{n}.down"] = get(f"{mlp}.down_proj")
        for name in ("q_norm", "k_norm"):
            if f"model.{at}.{name}.weight" in weights:
                fused[f"{n}.{name}"] = get(f"{at}.{name}")
    return {k: v.clone().requires_grad_() for k, v in fused.items()}


def _sample(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Sample a token per row; return tokens and log-probabilities. [B] each"""
    probs = logits.float().softmax(-1)
    sums = probs.cumsum(-1)
    tokens = torch.searchsorted(sums, torch.rand(len(sums), 1) * sums[:, -1:])
    return tokens[:, 0], probs.gather(1, tokens)[:, 0].log()


def check(folder: str, dtype: torch.dtype) -> float:
    """Compare cached and uncached logits with those of transformers.

    Returns:
        The largest difference.

    Raises:
        AssertionError: If it is more than rounding.
    """
    from transformers import AutoModelForCausalLM

    floor = Floor(folder, dtype)
    shape = Shape(rows=3, turns=3)
    ids = torch.randint(floor.vocab, (shape.rows, shape.length))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    with torch.no_grad():
        wanted = model(input_ids=ids).logits.float()
        found = floor.logits(ids, floor.parameters()).float()
    before = shape.sampled_mask().nonzero()[:, 0] - 1
    cached = floor.rollout(shape, teacher=ids).float()
    gap = max(
        float((found - wanted).abs().max()),
        float((cached - wanted[:, before]).abs().max()),
    )
    bound = (2e-4 if dtype == torch.float32 else 0.1) * float(wanted.abs().max())
    assert gap < bound, f"The floor's logits differ by {gap:.2g} (bound {bound:.2g})."
    return gap


@dataclasses.dataclass
class Measured:
    """CPU seconds of one update and its tokens."""

    rollout_s: float
    update_s: float
    total_s: float
    sampled: int
    trained: int


def measure(floor: Floor, shape: Shape, part: int) -> Measured:
    """Sample and train once."""
    advantages = torch.randn(shape.rows)
    with torch_settings(None):  # new memory is not filled, as in this package
        start = time.process_time()
        ids, logps = floor.rollout(shape)
        middle = time.process_time()
        floor.update(ids, logps, advantages, shape.sampled_mask(), part)
        end = time.process_time()
    tokens = shape.num_sampled
    return Measured(middle - start, end - middle, end - start, tokens, tokens)


# Rows per forward pass in training, by dtype: what was fastest.
PART = {"float32": 8, "bfloat16": 16}


def main() -> None:
    """Print one table row per size."""
    from standing_workload import standing_config

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="+")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--part", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dtype = getattr(torch, args.dtype)
    print(
        "| floor | rollout: sampled tok / CPU-s | update: trained tok / CPU-s "
        "| whole update, CPU-s | largest logit gap |\n|---|---|---|---|---|"
    )
    for size in args.sizes:
        folder = standing_config(size).lm_model
        gap = check(folder, dtype)
        floor, shape = Floor(folder, dtype), Shape()
        part = args.part or PART[args.dtype]
        measure(floor, shape, part)
        runs = [measure(floor, shape, part) for _ in range(args.repeats)]
        cells = [
            f"{size}, {args.dtype}",
            f"{statistics.median(r.sampled / r.rollout_s for r in runs):,.0f}",
            f"{statistics.median(r.trained / r.update_s for r in runs):,.0f}",
            f"{statistics.median(r.total_s for r in runs):.2f}",
            f"{gap:.1e}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
