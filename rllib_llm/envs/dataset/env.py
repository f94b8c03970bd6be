"""Environment whose tasks are the rows of a data file."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rllib_llm.data.types import TurnResult
from rllib_llm.envs.dataset.answers import Grader, make_grader
from rllib_llm.envs.dataset.dataset_rows import Columns, DatasetRow
from rllib_llm.envs.dataset.index import Dataset, DatasetSpec, open_dataset
from rllib_llm.envs.parsing import require_float, require_int
from rllib_llm.envs.registry import register_text_env
from rllib_llm.envs.tool_env import ToolEnv
from rllib_llm.errors import ConfigError
from rllib_llm.imports import import_object
from rllib_llm.pictures.contract import IMAGES, PRECEDING

SAMPLE = Path(__file__).parents[1] / "data" / "arithmetic.jsonl"


@register_text_env("dataset-v0")
class DatasetEnv(ToolEnv):
    """Answer the questions of a data file. Return the grader's reward, 1 if right.

    Training tasks follow a permutation of the training rows, a new one for every pass
    over the file, so that each row is used once per pass.
    """

    numbered_tasks = True
    format_hint = "Give an answer."
    _KEPT: ClassVar[frozenset[str]] = ToolEnv._KEPT | {"_opened"}

    def __init__(self, env_config: dict[str, Any] | None = None):
        # Opened once per instance: a run keeps its tasks if the file is written anew.
        self._opened: tuple[DatasetSpec, Dataset] | None = None
        super().__init__(env_config)

    def start(
        self,
        rng: np.random.Generator,
        path: str | list[str] | None = None,
        prompt: str = "prompt",
        answer: str | None = "answer",
        grader: str = "exact",
        tools: list[str] | None = None,
        instruction: str = "",
        attempts: int = 1,
        demonstration: str | None = None,
        hint: str = "",
        hint_prob: float = 1.0,
        test_path: str | list[str] | None = None,
        test_fraction: float = 0.1,
        shuffle_seed: int = 0,
        split: str | None = None,
        test_split: str | None = None,
        config_name: str | None = None,
        images: str | None = None,
    ) -> TurnResult:
        """Take the task's row and return its prompt.

        Args:
            rng: Generator of the row, for an episode without a task number.
            path: Files, patterns with ``*``, ``hf://datasets/OWNER/NAME/FILE``, or
                datasets: ``hf://datasets/OWNER/NAME`` or folders; None: a sample of
                sums and differences.
            prompt: Column of the question, or of messages in chat format.
            answer: Column of the right answer; None: the grader needs none.
            grader: Name of a grader, or ``"module:function"``.
            tools: Tools, as ``"module:name"``.
            instruction: Text appended to the prompt, e.g. the form of answers.
            attempts: Number of answers that the model may give, >= 1.
            demonstration: Column of the completion to imitate in SFT.
            hint: Text appended to the prompt, with ``{answer}`` in the right answer's
                place.
            hint_prob: Probability of the hint, in [0, 1].
            test_path: Files with the held-out tasks; None: a share of ``path``.
            test_fraction: That share, in (0, 1), chosen by the hash of the prompt.
            shuffle_seed: Determines the order of the rows.
            split: Split of the dataset for training, also with a slice, as in
                ``train[:80%]``; None: ``train``, or the only one.
            test_split: Split of the dataset with the held-out tasks.
            config_name: Configuration of the dataset; None: the default one.
            images: Column of the prompt's picture, or list of pictures.
        """
        self.attempts = require_int("attempts", attempts, 1, 100)
        require_float("test_fraction", test_fraction, 1e-6, 1 - 1e-6)
        require_int("shuffle_seed", shuffle_seed, 0, 2**31 - 1)
        self._grader_name = grader
        _grader(grader)  # fails here if it does not exist
        self.tools = list(_tools(tuple(tools or ())))
        self._spec = _spec(
            path=path,
            test_path=test_path,
            prompt=prompt,
            answer=answer,
            demonstration=demonstration,
            grader=grader,
            test_fraction=test_fraction,
            split=split,
            test_split=test_split,
            config_name=config_name,
            images=images,
        )
        self._row = self._draw(rng, shuffle_seed)
        self.shows_pictures = self._dataset().num_pictured > 0
        self._answers = 0
        texts = [self._row.prompt, instruction, self._hint(rng, hint, hint_prob)]
        text = "\n".join(text for text in texts if text)
        return TurnResult(text, images=self._dataset().pictures(self._row, -1))

    def _hint(self, rng: np.random.Generator, hint: str, prob: float) -> str:
        """Return the hint of this episode; "" without one."""
        require_float("hint_prob", prob, 0.0, 1.0)
        if not hint:
            if prob != 1.0:
                raise ConfigError(f"hint_prob={prob} has no effect without hint.")
            return ""
        if "{answer}" not in hint:
            raise ConfigError(
                f"hint={hint!r} does not have the right answer. Write {{answer}} in "
                "its place, e.g. '(The answer is {answer}.)'."
            )
        if self._row.answer is None:
            raise ConfigError(f"hint={hint!r} needs answer, the column of answers.")
        if rng.random() >= prob:
            return ""
        golds = self._row.answer
        first = golds[0] if isinstance(golds, list) else golds
        return hint.replace("{answer}", str(first))

    def spec(self) -> DatasetSpec:
        """Return where the tasks are, and how rows are read."""
        return _spec(**self.options())

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode; ``options["task_number"]`` selects the row."""
        prompt, info = super().reset(seed=seed, options=options)
        if self._row.preceding:
            info = {**info, PRECEDING: self._preceding_messages()}
        return prompt, info

    def _preceding_messages(self) -> list[dict[str, Any]]:
        """Return the messages before the prompt, with their pictures."""
        messages: list[dict[str, Any]] = []
        for number, message in enumerate(self._row.preceding):
            shown = self._dataset().pictures(self._row, number)
            messages.append({**message, IMAGES: shown} if shown else {**message})
        return messages

    def judge(self, answer: str) -> float | TurnResult:
        """Rate the answer; a wrong one may be followed by another attempt."""
        self._answers += 1
        reward = _grader(self._grader_name).rate(answer, self._row)
        if reward < 1 and self._answers < self.attempts:
            return TurnResult("That is not right. Try again.", success=False)
        return reward

    def more_info(self) -> dict[str, Any]:
        """Return the right answer, for rewards, beside the calls of tools."""
        gold = self._row.answer
        golds = gold if isinstance(gold, list) else [gold]
        if any(isinstance(each, dict | list | bool | None) for each in golds):
            return super().more_info()
        return {**super().more_info(), "gold_answers": [str(each) for each in golds]}

    def expert_action(self, rng: np.random.Generator) -> str:
        """Return the row's demonstration, or its answer."""
        return self._imitated(self._row)

    def random_action(self, rng: np.random.Generator) -> str:
        """Return the answer of another row."""
        data = self._dataset()
        number = int(rng.integers(data.size(self.split)))
        return self._imitated(data.row(self.split, number))

    def _imitated(self, row: DatasetRow) -> str:
        if row.demonstration is not None:
            return row.demonstration
        grader = _grader(self._grader_name)
        text = None if row.answer is None else grader.write(row.answer)
        if text is None:
            raise NotImplementedError(
                f"answers of grader={self._grader_name!r} cannot be imitated. Name a "
                "column of completions (env_config: demonstration)."
            )
        return f"<answer>{text}</answer>"

    def _dataset(self) -> Dataset:
        if self._opened is None or self._opened[0] != self._spec:
            self._opened = self._spec, open_dataset(self._spec)
        return self._opened[1]

    def _draw(self, rng: np.random.Generator, shuffle_seed: int) -> DatasetRow:
        data = self._dataset()
        size = data.size(self.split)
        if self.task_number is None:
            return data.row(self.split, int(rng.integers(size)))
        number_of_pass, place = divmod(self.task_number, size)
        order = _order(size, shuffle_seed, number_of_pass, self.split)
        return data.row(self.split, int(order[place]))


@lru_cache(maxsize=4)
def _order(size: int, seed: int, number_of_pass: int, split: str) -> np.ndarray:
    """Return a permutation of the rows of a split, int32 or int64 [size]."""
    rng = np.random.default_rng((seed, number_of_pass, split == "test"))
    return rng.permutation(np.arange(size, dtype=np.min_scalar_type(-size)))


@lru_cache(maxsize=8)
def _grader(name: str) -> Grader:
    return make_grader(name)


@lru_cache(maxsize=8)
def _tools(names: tuple[str, ...]) -> tuple[Any, ...]:
    for name in names:
        if ":" not in name:
            raise ConfigError(
                f"tools: {name!r} must be 'module:name' of a function, an object or a "
                "class whose public methods are tools."
            )
    return tuple(import_object(name, "tools") for name in names)


def _spec(
    *,
    path: Any,
    test_path: Any,
    prompt: str,
    answer: str | None,
    demonstration: str | None,
    grader: str,
    test_fraction: float,
    split: str | None,
    test_split: str | None,
    config_name: str | None,
    images: str | None,
    **_: Any,  # options that do not concern the file
) -> DatasetSpec:
    return DatasetSpec(
        _paths("path", path) or (str(SAMPLE),),
        _paths("test_path", test_path),
        Columns(prompt, answer, demonstration, images),
        grader,
        test_fraction,
        split,
        test_split,
        config_name,
    )


def _paths(option: str, given: str | list[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    paths = (given,) if isinstance(given, str) else tuple(given)
    if not paths or not all(paths):
        raise ConfigError(f"{option}={given!r} must name at least one file.")
    return paths
