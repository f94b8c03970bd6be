"""A model on paper of an iteration on 8, 64 and 512 GPUs. Nothing here is measured.

Run:  python benchmarks/scale_model.py
      python benchmarks/scale_model.py --gpu H200 --compute-share 0.3 --gpus 16

Constants go in, formulas compute seconds and bytes, tables come out. Every constant is
an argument and is printed with its source: our own measurements on CPUs, data sheets,
or assumptions (``scale_inputs.py``). Bytes of Learners and of keys and values are those
of the package's own plan (``rllib_llm.algorithms.driver.memory_plan``).

The run that is modelled: GRPO, full training in float32 with bfloat16 passes, one
optimiser step per iteration, no critic, no reference, ``sharding: fsdp2``, gradient
checkpointing, packed rows, one vLLM engine per EnvRunner and GPU, GPUs divided between
Learners and EnvRunners such that an iteration with ``sample_ahead: 1`` is shortest.
"""

from __future__ import annotations

import argparse
import dataclasses
import math

from scale_inputs import (
    ARCHITECTURES,
    BF16,
    FLOAT32,
    GB,
    GPUS,
    GPUS_PER_NODE,
    OPTIMIZER,
    Constants,
    Model,
    learner_bytes,
    model_of,
)


def slots(model: Model, c: Constants) -> int:
    """Return the episodes that fit into an engine beside its weights."""
    free = c.usable_bytes - BF16 * model.parameters
    return max(0, math.floor(free / (model.kv_bytes * c.context_tokens)))


def host_bytes(model: Model, learners: int, runners: int) -> float:
    """Return the host memory of the node that needs most.

    Each Learner loads the whole model; a checkpoint is gathered in host memory. Each
    EnvRunner copies the weights that the node's object store holds.
    """
    here = min(learners, GPUS_PER_NODE)
    beside = min(runners, GPUS_PER_NODE - here)
    whole = max(here * FLOAT32, FLOAT32 + OPTIMIZER)
    most = max(whole + BF16 * (beside + 1), BF16 * (min(runners, GPUS_PER_NODE) + 1))
    return model.parameters * most


# Seconds ------------------------------------------------------------------------------


def attention_flops(model: Model, tokens: float) -> float:
    """Return the operations per token of causal attention, forward, over a sequence."""
    # Two products of 2 * width * position; the mean position is half of the length.
    return 2 * model.attention_width * tokens


def sample_seconds(model: Model, episodes: float, c: Constants) -> float:
    """Return the seconds in which an engine samples its episodes.

    A step reads the weights and all keys and values, or is limited by its products. The
    longest episode ends last, so the batch is not full all the time.
    """
    at_once = min(episodes, slots(model, c))
    steps = c.sampled_tokens * (episodes / at_once - 1 + c.longest)
    batch = episodes * c.sampled_tokens / steps
    context = c.prompt_tokens + c.sampled_tokens / 2
    read = BF16 * model.parameters + batch * context * model.kv_bytes
    step = max(read / c.hbm_bytes, 2 * model.multiplied * batch / c.flops)
    prompt = 2 * model.multiplied + attention_flops(model, c.prompt_tokens)
    prefill = episodes * c.prompt_tokens * prompt / c.flops
    return steps * step + prefill + episodes * c.turns * c.turn_ms / 1e3


def link_bytes(gpus: int, c: Constants) -> float:
    """Return the bytes per second that a GPU receives from ``gpus`` that exchange."""
    return (c.nvlink_gb_s if gpus <= GPUS_PER_NODE else c.network_gb_s) * GB


def pass_seconds(model: Model, learners: int, c: Constants) -> tuple[float, float]:
    """Return the seconds of a full micro-batch's products, and of its exchange.

    6 operations per parameter and token, and 2 because layers are computed again;
    layers are gathered twice in bfloat16, gradients are summed once in float32.
    """
    token = 8 * model.multiplied + 4 * attention_flops(model, c.context_tokens)
    moved = model.parameters * (2 * BF16 + FLOAT32) * (learners - 1) / learners
    return c.micro_batch_tokens * token / c.flops, moved / link_bytes(learners, c)


def update_seconds(
    model: Model, episodes: float, learners: int, c: Constants
) -> tuple[float, float]:
    """Return the seconds of an update, and the part in which GPUs wait for layers."""
    tokens = episodes * c.context_tokens * (1 + c.padding) / learners
    compute, exchange = pass_seconds(model, learners, c)
    # The last micro-batch has fewer tokens, but exchanges as much.
    full, rest = divmod(tokens / c.micro_batch_tokens, 1)
    waits = full * max(0.0, exchange - compute)
    if rest:
        waits += max(0.0, exchange - rest * compute)
    return tokens / c.micro_batch_tokens * compute + waits, waits


def transfer_seconds(
    model: Model, learners: int, runners: int, c: Constants
) -> tuple[float, float]:
    """Return the seconds of weights on the Learners' side and on the EnvRunners'.

    The Learners gather; the first one copies to the object store. Every node with a
    copy sends to one other node at a time; every EnvRunner copies from its node.
    """
    size = BF16 * model.parameters
    gathered = size * (learners - 1) / learners / link_bytes(learners, c)
    nodes = math.ceil(runners / GPUS_PER_NODE)
    is_alone = learners + runners <= GPUS_PER_NODE
    rounds = 0 if is_alone else math.ceil(math.log2(nodes + 1))
    moved = rounds * size / (c.network_gb_s * GB)
    return gathered + size / (c.pack_gb_s * GB), moved + size / (c.load_gb_s * GB)


@dataclasses.dataclass(frozen=True)
class Iteration:
    """Parts of an iteration in seconds, and how the GPUs are divided."""

    learners: int
    runners: int
    sampling: float
    update: float
    waiting: float
    sent: float
    received: float
    driver: float

    @property
    def ahead(self) -> float:
        """Seconds with ``sample_ahead: 1``: the longer side."""
        return max(self.sampling + self.received, self.of_learners)

    @property
    def in_turns(self) -> float:
        """Seconds if both sides wait for each other."""
        return self.sampling + self.received + self.of_learners

    @property
    def of_learners(self) -> float:
        """Seconds from samples to weights."""
        return self.driver + self.update + self.sent

    @property
    def limit(self) -> str:
        """The largest part of the longer side."""
        if self.sampling + self.received >= self.of_learners:
            parts = {"sampling": self.sampling, "weight transfer": self.received}
        else:
            parts = {
                "update: products": self.update - self.waiting,
                "update: exchange of layers": self.waiting,
                "weight transfer": self.sent,
                "driver": self.driver,
            }
        return max(parts, key=lambda name: parts[name])


def iteration(model: Model, gpus: int, learners: int, c: Constants) -> Iteration:
    """Return the parts of an iteration; the model must fit."""
    episodes, runners = gpus * c.episodes_per_gpu, gpus - learners
    update, waiting = update_seconds(model, episodes, learners, c)
    sent, received = transfer_seconds(model, learners, runners, c)
    return Iteration(
        learners=learners,
        runners=runners,
        sampling=sample_seconds(model, episodes / runners, c),
        update=update,
        waiting=waiting,
        sent=sent,
        received=received,
        driver=episodes * c.context_tokens * c.driver_us / 1e6,
    )


def obstacles(name: str, gpus: int, learners: int, c: Constants) -> list[str]:
    """Return what does not fit, with its size in GB."""
    model, micro = model_of(name), int(c.micro_batch_tokens)
    needed, found = learner_bytes(name, learners, micro), []
    if needed > c.usable_bytes:
        found.append(f"Learner: {needed / GB:.0f} GB")
    if not slots(model, c):
        found.append(f"engine: {BF16 * model.parameters / GB:.0f} GB of weights")
    host = host_bytes(model, learners, gpus - learners)
    if host > c.host_memory_gb * GB:
        found.append(f"host: {host / GB:,.0f} GB")
    return found


def best(name: str, gpus: int, c: Constants) -> tuple[Iteration | None, list[str]]:
    """Return the shortest iteration over eighths of the GPUs; else what does not fit.

    Args:
        name: An architecture.
        gpus: A multiple of 8.
        c: Constants.
    """
    divisions = [gpus * eighths // 8 for eighths in range(1, 8)]
    if slots(model_of(name), c):
        found = [iteration(model_of(name), gpus, n, c) for n in divisions]
        for candidate in sorted(found, key=lambda i: i.ahead):
            if not obstacles(name, gpus, candidate.learners, c):
                return candidate, []
    # The division with the fewest obstacles, and of these the most Learners.
    missing = [obstacles(name, gpus, n, c) for n in reversed(divisions)]
    return None, min(missing, key=len)


# Tables -------------------------------------------------------------------------------


def constants_table(c: Constants) -> str:
    """Return all constants with their sources."""
    rows = [
        f"| `{f.name}` | {getattr(c, f.name):,g} | {f.metadata['source']} |"
        for f in dataclasses.fields(c)
    ]
    return "\n".join(["| constant | value | source |", "|---|---|---|", *rows])


COLUMNS = (
    *("GPUs", "model", "Learners + EnvRunners", "sampling, s", "update, s"),
    *("of which waiting, s", "weights, s", "driver, s", "iteration, s"),
    *("in turns, s", "sampled tok/s per GPU", "Learner, GB", "slots", "limit"),
)


def result_row(name: str, gpus: int, c: Constants) -> str:
    """Return the row of one model on so many GPUs."""
    found, missing = best(name, gpus, c)
    if found is None:
        cells = [f"{gpus}", name, *["-"] * (len(COLUMNS) - 3)]
        return "| " + " | ".join([*cells, "does not fit: " + ", ".join(missing)]) + " |"
    held = learner_bytes(name, found.learners, int(c.micro_batch_tokens))
    seconds = (
        *(found.sampling, found.update, found.waiting, found.sent + found.received),
        *(found.driver, found.ahead, found.in_turns),
    )
    rate = c.episodes_per_gpu * c.sampled_tokens / found.ahead
    cells = [
        *(f"{gpus}", name, f"{found.learners} + {found.runners}"),
        *(f"{value:.1f}" for value in seconds),
        *(f"{rate:,.0f}", f"{held / GB:.0f}", f"{slots(model_of(name), c):,}"),
    ]
    return "| " + " | ".join([*cells, found.limit]) + " |"


def arguments(given: list[str] | None) -> argparse.Namespace:
    """Return the arguments; those of constants that are not given are None."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", choices=GPUS, default="H100")
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 64, 512])
    parser.add_argument("--models", nargs="+", choices=ARCHITECTURES)
    for field in dataclasses.fields(Constants):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=float,
            help=field.metadata["source"],
        )
    args = parser.parse_args(given)
    if bad := [n for n in args.gpus if n < 8 or n % 8]:
        parser.error(
            f"--gpus {bad[0]}: the model divides GPUs by eighths. Give multiples of 8."
        )
    return args


def main(given: list[str] | None = None) -> None:
    """Print the constants and one row per number of GPUs and model."""
    args = arguments(given)
    memory, bandwidth, peak = GPUS[args.gpu]
    c = Constants(memory_gb=memory, hbm_tb_s=bandwidth, bf16_tflops=peak)
    names = [f.name for f in dataclasses.fields(Constants)]
    values = {name: getattr(args, name) for name in names}
    c = dataclasses.replace(c, **{k: v for k, v in values.items() if v is not None})
    print(f"A model on paper for {args.gpu}; nothing in it was run on a GPU.\n")
    print(constants_table(c) + "\n")
    print(f"| {' | '.join(COLUMNS)} |\n|" + len(COLUMNS) * "---|")
    for gpus in args.gpus:
        for name in args.models or ARCHITECTURES:
            print(result_row(name, gpus, c), flush=True)


if __name__ == "__main__":
    main()
