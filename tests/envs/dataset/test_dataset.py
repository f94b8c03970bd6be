"""dataset-v0: rows, splits, graders, chat prompts, tools, bad files."""

import csv
import gzip
import json
import os
import threading
import tracemalloc

import numpy as np
import pytest

from rllib_llm.env_runner.task_groups import TaskSource
from rllib_llm.envs import check_env, make_env
from rllib_llm.envs.dataset import row_files
from rllib_llm.envs.dataset.check_rows import check_rows
from rllib_llm.envs.dataset.env import DatasetEnv
from rllib_llm.envs.dataset.growing_array import GrowingArray
from rllib_llm.envs.dataset.index import DatasetSpec, open_dataset
from rllib_llm.envs.make import has_numbered_tasks
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError, EnvContractError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RLLIB_LLM_CACHE", str(tmp_path / "cache"))


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def sums(count, start=0):
    return [
        {"prompt": f"{n} + 1?", "answer": str(n + 1)}
        for n in range(start, start + count)
    ]


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "sums.jsonl", sums(200))


def answered(env, completion, **reset):
    env.reset(seed=0, **reset)
    return env.step(completion)


# Rows and splits ----------------------------------------------------------------


def test_the_file_is_a_working_environment(file):
    report = check_env("dataset-v0", {"path": file})
    assert report.ok, str(report)
    assert report.measurements["expert_success"] == 1.0
    assert report.measurements["random_success"] < 0.2


def numbered(env, split, numbers):
    return [
        env.reset(seed=0, options={"split": split, "task_number": n})[0]
        for n in numbers
    ]


def test_a_pass_uses_every_row_once_and_the_next_pass_another_order(file):
    env = make_env("dataset-v0", {"path": file})
    env.reset(seed=0)
    train = env._dataset().size("train")
    first = numbered(env, "train", range(train))
    second = numbered(env, "train", range(train, 2 * train))
    assert len(set(first)) == train
    assert set(first) == set(second)
    assert first != second
    held_out = numbered(env, "test", range(200 - train))
    assert not set(held_out) & set(first)
    assert len(set(held_out) | set(first)) == 200
    assert held_out == numbered(
        make_env("dataset-v0", {"path": file}), "test", range(200 - train)
    )
    other = make_env("dataset-v0", {"path": file, "shuffle_seed": 1})
    assert numbered(other, "train", range(train)) != first


def test_groups_of_a_run_share_a_row_and_evaluation_takes_the_same_rows(file):
    assert has_numbered_tasks("dataset-v0", {"path": file})
    assert not has_numbered_tasks("sokoban-v0", {})
    source = TaskSource(seed=3, group_size=4, first_number=0)
    env = make_env("dataset-v0", {"path": file})
    prompts = [
        env.reset(seed=t.seed, options=t.options)[0] for t in source.next_groups(5)
    ]
    groups = [set(prompts[i : i + 4]) for i in range(0, 20, 4)]
    assert all(len(group) == 1 for group in groups)
    assert len(set.union(*groups)) == 5
    config = algo_config(file)
    held_out = config.build_task_source(in_evaluation=True).fixed(15)
    assert len({env.reset(seed=t.seed, options=t.options)[0] for t in held_out}) == 15
    two = [config.build_task_source(offset=k).next_groups(1)[0].options for k in (0, 1)]
    assert two[0]["task_number"] != two[1]["task_number"]


def algo_config(file):
    from rllib_llm import GRPOConfig

    return GRPOConfig().environment("dataset-v0", env_config={"path": file})


def test_duplicates_stay_in_one_split(tmp_path):
    rows = [row for row in sums(100) for _ in range(2)]
    rows += [{**row, "prompt": "  " + row["prompt"].upper()} for row in sums(100)]
    env = make_env("dataset-v0", {"path": write(tmp_path / "a.jsonl", rows)})
    texts = {
        split: {t.strip().lower() for t in numbered(env, split, range(300))}
        for split in ("train", "test")
    }
    assert not texts["train"] & texts["test"]
    assert len(texts["train"] | texts["test"]) == 100


def test_a_file_of_its_own_is_held_out_and_leaks_are_refused(tmp_path):
    train = write(tmp_path / "train.jsonl", sums(50))
    test = write(tmp_path / "test.jsonl", sums(20, start=100))
    env = make_env("dataset-v0", {"path": train, "test_path": test})
    assert len(set(numbered(env, "train", range(50)))) == 50
    assert set(numbered(env, "test", range(20))) == {r["prompt"] for r in sums(20, 100)}
    leaky = write(tmp_path / "leaky.jsonl", sums(20, start=45))
    with pytest.raises(ConfigError, match=r"5 prompts are both .* line 46 and leaky"):
        make_env("dataset-v0", {"path": train, "test_path": leaky}).reset(seed=0)


def test_an_empty_split_is_refused(tmp_path):
    one = write(tmp_path / "one.jsonl", sums(1))
    with pytest.raises(ConfigError, match="is empty .1 rows"):
        make_env("dataset-v0", {"path": one}).reset(seed=0)


def test_patterns_and_lists_name_several_files(tmp_path):
    for i in range(3):
        write(tmp_path / f"part{i}.jsonl", sums(20, start=20 * i))
    env = make_env("dataset-v0", {"path": str(tmp_path / "part*.jsonl")})
    paths = [str(tmp_path / f"part{i}.jsonl") for i in range(3)]
    same = make_env("dataset-v0", {"path": paths})
    assert numbered(env, "train", range(40)) == numbered(same, "train", range(40))
    assert len(env._dataset()) == 60


def test_a_run_keeps_its_rows_and_a_new_environment_reads_the_new_file(tmp_path):
    file = write(tmp_path / "a.jsonl", sums(50))
    old = make_env("dataset-v0", {"path": file})
    before = numbered(old, "train", range(10))
    write(tmp_path / "b.jsonl", sums(50, start=500))
    os.replace(tmp_path / "b.jsonl", file)
    assert numbered(old, "train", range(10)) == before
    new = numbered(make_env("dataset-v0", {"path": file}), "train", range(10))
    assert not set(new) & set(before)


def test_threads_share_a_file(file):
    errors, found = [], []

    def run():
        try:
            env = make_env("dataset-v0", {"path": file})
            found.append(numbered(env, "train", range(100)))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert all(texts == found[0] for texts in found)


def test_a_snapshot_is_restored_in_another_instance(file):
    first, second = (make_env("dataset-v0", {"path": file}) for _ in range(2))
    first.reset(seed=4)
    second.restore(first.snapshot())
    right = first.expert_action(np.random.default_rng(0))
    assert second.expert_action(np.random.default_rng(0)) == right
    assert second.step(right)[1] == 1.0


# Formats of files ---------------------------------------------------------------


def test_all_formats_give_the_same_tasks(tmp_path, file):
    import pyarrow
    import pyarrow.parquet

    rows = sums(200)
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as packed:
        packed.write("".join(json.dumps(row) + "\n" for row in rows))
    with (tmp_path / "a.csv").open("w", newline="") as out:
        writer = csv.DictWriter(out, ["prompt", "answer"])
        writer.writeheader()
        writer.writerows(rows)
    wanted = numbered(make_env("dataset-v0", {"path": file}), "train", range(50))
    for name in ("a.parquet", "a.json", "a.jsonl.gz", "a.csv"):
        env = make_env("dataset-v0", {"path": str(tmp_path / name)})
        assert numbered(env, "train", range(50)) == wanted, name


def test_a_file_of_the_hub_is_found_in_its_cache(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "datasets--me--sums"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("a" * 40)
    snapshot = folder / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    write(snapshot / "train.jsonl", sums(50))
    env = make_env("dataset-v0", {"path": "hf://datasets/me/sums/train.jsonl"})
    assert env.reset(seed=0)[0].endswith("+ 1?")
    for path, message in (
        ("hf://datasets/me/sums/other.jsonl", "cannot be downloaded"),
        ("hf://me/sums", "must be 'hf://datasets/OWNER/NAME/FILE'"),
    ):
        with pytest.raises(ConfigError, match=message):
            make_env("dataset-v0", {"path": path}).reset(seed=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", b"PAR1 cut", "cannot be read as Parquet"),
        ("a.json", b"[{]", "cannot be read as JSON"),
        ("a.jsonl.gz", b"no gzip", "cannot be read as gzip"),
        ("a.csv", b"prompt,answer\na,b,c\n", "line 2: the number of values differs"),
        ("a.txt", b"x", "unknown format"),
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b'{"prompt": "a"}\n', "line 1: no column 'answer'"),
        ("a.jsonl", b'\n{"prompt": "", "answer": 1}\n', "line 2: prompt='' must be"),
        ("a.jsonl", b'{"prompt": "a", "answer": null}\n', "answer is null"),
        ("a.jsonl", b'{"prompt": "a", "answer": {}}\n', "must be a text"),
        ("a.jsonl", b"[1]\n", "must be a JSON object"),
        ("a.jsonl", b"{'prompt': 1}\n", "not JSON"),
        ("a.jsonl", b"\xff\xfe{\n", "not JSON"),
        ("a.jsonl", b'{"prompt": [], "answer": "1"}\n', "a list of messages"),
        (
            "a.jsonl",
            b'{"prompt": [{"role": "assistant", "content": "x"}], "answer": "1"}\n',
            "last message has the role 'assistant'",
        ),
        (
            "a.jsonl",
            b'{"prompt": [{"role": "user", "content": [{}]}], "answer": "1"}\n',
            "must have the type .text.",
        ),
    ],
)
def test_bad_files_are_refused_with_the_place(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        make_env("dataset-v0", {"path": str(tmp_path / name)}).reset(seed=0)
    assert not list(tmp_path.rglob("*.part"))


def test_a_line_without_end_is_not_read_into_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "MAX_LINE_BYTES", 1000)
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt": "' + b"x" * 5000)
    with pytest.raises(ConfigError, match="line 1: longer than 1,000 bytes"):
        make_env("dataset-v0", {"path": str(tmp_path / "a.jsonl")}).reset(seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "missing.jsonl"}, "does not exist"),
        ({"path": "/"}, "root of the file system"),
        ({"path": "none*.jsonl"}, "no file matches"),
        ({"path": []}, "at least one file"),
        ({"grader": "exakt"}, "unknown"),
        ({"grader": "no_module:f"}, "cannot be imported"),
        ({"tools": ["search"]}, "'module:name'"),
        ({"attempts": 0}, "attempts"),
        ({"test_fraction": 1.5}, "test_fraction"),
        ({"prompt": "question"}, "no column 'question'"),
    ],
)
def test_bad_options_are_refused(file, options, message):
    with pytest.raises(ConfigError, match=message):
        make_env("dataset-v0", {"path": file, **options}).reset(seed=0)


# Grading ------------------------------------------------------------------------


def reward(tmp_path, gold, completion, **options):
    rows = [{"prompt": f"q{i}", "answer": gold, "word": "yes"} for i in range(30)]
    path = write(tmp_path / "golds.jsonl", rows)
    env = make_env("dataset-v0", {"path": path, **options})
    env.reset(seed=0)
    return env.step(completion)[1]


def test_golds(tmp_path):
    schema = {"type": "object", "required": ["a"]}
    cases = [
        ("exact", "The Hague", "the hague.", 1.0),
        ("exact", ["Bonn", "Berlin"], "<answer>Berlin</answer>", 1.0),
        ("exact", "Berlin", "It is Berlin", 0.0),
        ("f1", "the red house", "a red door", 0.5),
        ("number", "1,200", "so it is $1200.", 1.0),
        ("number", "3 + 4 = 7 #### 7", "3 and 4, that is 7", 1.0),
        ("number", 7, "about 7.5", 0.0),
        ("number", 7, "no idea", 0.0),
        ("json", {"a": [1, 2]}, '```json\n{"a": [1, 2.0]}\n```', 1.0),
        ("json", '{"a": 1}', '{"a": 1, "b": 2}', 0.0),
        ("json", '{"a": 1}', "{broken", 0.0),
        ("json_schema", schema, '{"a": 0}', 1.0),
        ("json_schema", schema, "{}", 0.0),
    ]
    for grader, gold, completion, wanted in cases:
        found = reward(tmp_path, gold, completion, grader=grader)
        assert found == pytest.approx(wanted), (grader, gold, completion)


@pytest.mark.sandbox
def test_golds_that_are_tests(tmp_path):
    tests = {
        "function": "double",
        "cases": [{"arguments": [2], "result": 4}, {"arguments": [3], "result": 6}],
    }
    code = "def double(n):\n    return {}\n"
    cases = [
        ("```python\n" + code.format("2 * n") + "```", 1.0),
        (code.format("4"), 0.5),
        ("raise SystemExit", 0.0),
    ]
    for completion, wanted in cases:
        found = reward(tmp_path, tests, completion, grader="tests")
        assert found == pytest.approx(wanted), completion


def test_mathematical_answers(tmp_path):
    pytest.importorskip("math_verify")
    half = r"so \boxed{\frac{1}{2}}"
    assert reward(tmp_path, "0.5", half, grader="math") == 1.0
    assert (
        reward(tmp_path, r"\frac{x}{2}", "<answer>x/2</answer>", grader="math") == 1.0
    )
    assert reward(tmp_path, "0.5", "$0.25$", grader="math") == 0.0


def test_an_own_grader_reads_the_row(tmp_path, monkeypatch):
    (tmp_path / "own_grader.py").write_text(
        "def grade(answer, row):\n    return 0.5 * (answer == row['word'])\n"
        "def wrong(answer, row):\n    return 'good'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert reward(tmp_path, "x", "yes", grader="own_grader:grade") == 0.5
    assert reward(tmp_path, {}, "no", grader="own_grader:grade", answer=None) == 0.0
    with pytest.raises(EnvContractError, match="must return True, False or a finite"):
        reward(tmp_path, "x", "yes", grader="own_grader:wrong")


@pytest.mark.parametrize(
    ("grader", "gold", "message"),
    [
        ("number", "seven", "must be a number"),
        ("json", "{broken", "is not JSON"),
        ("json_schema", "[1]", "must be a JSON Schema"),
        ("tests", {"function": "f", "cases": []}, "'cases'"),
        ("exact", True, "must be a text"),
        ("exact", [" "], "must not be blank"),
    ],
)
def test_answers_that_a_grader_cannot_read_are_found_at_the_start(
    tmp_path, grader, gold, message
):
    with pytest.raises(ConfigError, match=f"(?s)30 of 30 rows cannot.*{message}"):
        reward(tmp_path, gold, "x", grader=grader)


# Conversations ------------------------------------------------------------------


def test_attempts(file):
    env = make_env("dataset-v0", {"path": file, "attempts": 2})
    env.reset(seed=0)
    text, reward_of_turn, terminated, _, info = env.step("wrong")
    assert (text, reward_of_turn, terminated) == (
        "That is not right. Try again.",
        0.0,
        False,
    )
    assert info["gold_answers"] == [env._row.answer]
    assert env.step(env._row.answer)[1:3] == (1.0, True)
    env.reset(seed=0)
    env.step("wrong")
    _, reward_of_turn, terminated, _, info = env.step("wrong")
    assert (reward_of_turn, terminated, info["success"]) == (0.0, True, False)


def test_demonstrations_are_imitated(tmp_path):
    rows = [{**row, "solution": f"I think {row['answer']}"} for row in sums(30)]
    options = {"path": write(tmp_path / "a.jsonl", rows), "grader": "number"}
    shown = play(
        make_env("dataset-v0", {**options, "demonstration": "solution"}),
        seed=0,
        policy=expert_policy,
    )
    assert shown.actions[0].startswith("I think ")
    assert shown.success
    with pytest.raises(NotImplementedError, match="demonstration"):
        env = make_env("dataset-v0", {**options, "answer": None, "grader": "math:sqrt"})
        play(env, seed=0, policy=expert_policy)


def test_chat_prompts_reach_the_model(tmp_path):
    from rllib_llm.connectors.tool_prompts import opening

    before = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": "2"},
    ]
    rows = [
        {
            "messages": [*before, {"role": "user", "content": f"{n} + 1?"}],
            "answer": n + 1,
        }
        for n in range(40)
    ]
    path = write(tmp_path / "chat.jsonl", rows)
    env = make_env(
        "dataset-v0", {"path": path, "prompt": "messages", "instruction": "In digits."}
    )
    text, info = env.reset(seed=0)
    messages, _ = opening(text, info, system="Configured.", renderer=None)
    assert messages[:3] == before
    assert messages[3]["content"].endswith("+ 1?\nIn digits.")
    assert len(messages) == 4


# Hints ---------------------------------------------------------------------------


def test_a_hint_names_the_right_answer_in_some_prompts(file):
    hint = "(The answer is {answer}.)"
    env = make_env("dataset-v0", {"path": file, "hint": hint, "hint_prob": 0.25})
    plain = make_env("dataset-v0", {"path": file})
    shown = []
    for seed in range(200):
        text, bare = (each.reset(seed=seed)[0] for each in (env, plain))
        gold = env._row.answer
        assert text in (bare, f"{bare}\n(The answer is {gold}.)")
        shown.append(text != bare)
    assert 0.15 < np.mean(shown) < 0.35
    first = env.reset(seed=0, options={"hint_prob": 1.0})[0]
    assert first.endswith(f"(The answer is {env._row.answer}.)")
    assert "answer is" not in env.reset(seed=0, options={"hint_prob": 0.0})[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hint": "Think."}, "does not have the right answer"),
        ({"hint_prob": 0.5}, "has no effect without hint"),
        ({"hint": "{answer}", "hint_prob": 2.0}, "hint_prob=2.0 must be"),
        ({"hint": "{answer}", "answer": None, "grader": "math:sqrt"}, "needs answer"),
    ],
)
def test_hints_without_sense_are_refused(file, options, message):
    with pytest.raises(ConfigError, match=message):
        make_env("dataset-v0", {"path": file, **options}).reset(seed=0)


class Abacus:
    """A tool."""

    def add(self, a: int, b: int) -> int:
        """Add.

        Args:
            a: One.
            b: Another.
        """
        return a + b


def test_tools_are_called(file, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "abacus", sys.modules[__name__])
    env = make_env(
        "dataset-v0",
        {"path": file, "tools": ["abacus:Abacus"], "tool_format": "tags"},
    )
    text, _ = env.reset(seed=0)
    assert text.startswith("Tools:\n<add>")
    result = env.step(env.write_call("add", a=2, b=3))
    assert result[0] == "5"
    assert env.step(env._row.answer)[1] == 1.0


def test_the_check_of_a_file_names_lines(tmp_path, capsys):
    from rllib_llm.cli.implementation.check import check

    rows = sums(60)
    rows[3] = {"prompt": "?"}
    rows[7] = {**rows[5], "answer": "other"}
    bad = write(tmp_path / "bad.jsonl", rows)
    assert not check(bad, [], None, None)
    printed = capsys.readouterr().out
    assert "59 of 60 rows can be tasks" in printed
    assert "error: bad.jsonl, line 4: no column 'answer'" in printed
    assert "note: bad.jsonl, line 8: the prompt of bad.jsonl, line 6 again" in printed
    assert "with another answer" in printed
    good = write(tmp_path / "good.jsonl", [{"q": r["prompt"], **r} for r in sums(60)])
    assert check(good, ["prompt=q", "grader=number"], None, None)
    assert "dataset-v0: ok" in capsys.readouterr().out
    assert not check(write(tmp_path / "no.jsonl", []), [], None, None)


def test_data_larger_than_the_index_are_read_by_offset(tmp_path):
    # Rows of 100 kB: what an environment holds must not grow with them.
    rows = ({**row, "note": "x" * 100_000} for row in sums(300))
    path = write(tmp_path / "long.jsonl", rows)
    env = make_env("dataset-v0", {"path": path})
    assert env.reset(seed=0)[0].endswith("+ 1?")
    data = env._dataset()
    assert sum(rows.nbytes for rows in data._rows.values()) == 16 * 300
    assert all(isinstance(rows, np.memmap) for rows in data._rows.values())
    assert DatasetEnv.numbered_tasks


def peak_bytes(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_index_and_the_check_hold_no_objects_per_row(tmp_path):
    def spec(count):
        train = write(tmp_path / f"train{count}.jsonl", sums(count))
        test = write(tmp_path / f"test{count}.jsonl", sums(count, start=10**6))
        return DatasetSpec((train,), (test,))

    specs = [spec(count) for count in (1_000, 9_000)]
    for work in (open_dataset, check_rows):
        few, many = (peak_bytes(lambda s=s, w=work: w(s)) for s in specs)
        # An entry of 16 bytes and digests of 28, while an array doubles, and sorted.
        assert (many - few) / (2 * 8_000) < 160, work


def test_bad_and_repeated_rows_are_all_counted_and_the_first_listed(tmp_path):
    rows = [{"prompt": "?"} for _ in range(70)] + sums(60) + sums(60)
    report = check_rows(DatasetSpec((write(tmp_path / "a.jsonl", rows),)))
    assert (len(report.problems), len(report.notes)) == (70, 60)
    text = str(report)
    assert "120 of 190 rows can be tasks" in text
    assert text.count("error: a.jsonl, line ") == 50
    assert "error: a.jsonl, line 50: no column" in text
    assert "... and 20 more" in text and "... and 10 more" in text
    assert "note: a.jsonl, line 131: the prompt of a.jsonl, line 71 again\n" in text
    with pytest.raises(ConfigError, match=r"(?s)70 of 190 rows.*line 5:.*and 65 more"):
        open_dataset(DatasetSpec((str(tmp_path / "a.jsonl"),)))


def test_a_growing_array_keeps_its_elements():
    grown = GrowingArray("<u8")
    for number in range(1000):
        assert len(grown) == number
        grown.append(number)
    assert grown.array().tolist() == list(range(1000))
