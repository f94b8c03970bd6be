"""dataset-v0 on rows with pictures: sources, places, splits, errors, training."""

import base64
import io
import json
import os

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from test_dataset import write

from rllib_llm import GRPOConfig
from rllib_llm.algorithms.config.preflight import preflight
from rllib_llm.connectors.tool_prompts import opening
from rllib_llm.envs import check_env, make_env
from rllib_llm.envs.dataset import picture_files
from rllib_llm.errors import ConfigError, EnvContractError
from rllib_llm.offline.prepare_model import prepare_language_model
from rllib_llm.pictures.contract import IMAGES, digest, stored


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("RLLIB_LLM_CACHE", str(tmp_path / "cache"))


def pixels(number):
    """Return a picture of one colour, whose PNG file gives the same pixels."""
    return np.full((8, 6, 3), (number, 255 - number, 7), np.uint8)


def png(number):
    file = io.BytesIO()
    Image.fromarray(pixels(number)).save(file, "PNG")
    return file.getvalue()


def encoded(number):
    return base64.b64encode(png(number)).decode()


def rows(count=40, **more):
    return [
        {"prompt": f"Colour {n}?", "answer": str(n), "image": f"p/{n}.png", **more}
        for n in range(count)
    ]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "p").mkdir()
    for n in range(40):
        (tmp_path / "p" / f"{n}.png").write_bytes(png(n))
    return tmp_path


def opened(path, **options):
    return make_env("dataset-v0", {"path": str(path), "images": "image", **options})


def shown(env, seed=0):
    """Return the text, the pictures and the number of the first prompt."""
    text, info = env.reset(seed=seed)
    return text, info[IMAGES], int(env._row.answer)


def check_shown(env):
    for seed in range(3):
        text, images, number = shown(env, seed)
        assert text == f"<image>\nColour {number}?"
        assert len(images) == 1
        np.testing.assert_array_equal(images[0], pixels(number))


# Sources -----------------------------------------------------------------------------


def test_paths_are_relative_to_the_file(folder, monkeypatch, tmp_path):
    file = write(folder / "a.jsonl", rows())
    monkeypatch.chdir(tmp_path.parent)
    check_shown(opened(file))
    report = check_env("dataset-v0", {"path": file, "images": "image"})
    assert report.ok, str(report)


def test_converted_files_keep_the_folder_of_their_pictures(folder):
    table = pyarrow.Table.from_pylist(rows())
    pyarrow.parquet.write_table(table, folder / "a.parquet")
    (folder / "a.json").write_text(json.dumps(rows()))
    for name in ("a.parquet", "a.json"):
        check_shown(opened(folder / name))


@pytest.mark.parametrize(
    "form",
    [
        lambda n: {"bytes": png(n), "path": None},  # as datasets writes Parquet
        lambda n: {"bytes": None, "path": f"p/{n}.png"},
        png,
    ],
    ids=["bytes", "path", "binary"],
)
def test_pictures_in_parquet(folder, form):
    made = [{**row, "image": form(n)} for n, row in enumerate(rows())]
    table = pyarrow.Table.from_pylist(made)
    pyarrow.parquet.write_table(table, folder / "a.parquet")
    check_shown(opened(folder / "a.parquet"))


def test_pictures_of_a_folder_that_datasets_reads(folder, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "arrow")
    made = folder / "set"
    (folder / "p").rename(made)
    named = [
        {"file_name": f"{n}.png", "prompt": f"Colour {n}?", "answer": str(n)}
        for n in range(40)
    ]
    write(made / "metadata.jsonl", named)
    check_shown(opened(made))


def test_data_urls_and_base64(folder):
    url = [
        {**row, "image": f"data:image/png;base64,{encoded(n)}"}
        for n, row in enumerate(rows())
    ]
    check_shown(opened(write(folder / "a.jsonl", url)))
    coded = [{**r, "image": {"bytes": encoded(n)}} for n, r in enumerate(rows())]
    check_shown(opened(write(folder / "b.jsonl", coded)))


def test_pictures_are_upright_rgb(folder):
    turned = Image.fromarray(np.zeros((4, 9, 3), np.uint8))
    exif = turned.getexif()
    exif[0x0112] = 6  # turned by 90 degrees
    turned.save(folder / "turned.jpg", exif=exif)
    Image.fromarray(np.zeros((4, 9, 4), np.uint8)).save(folder / "clear.webp")
    Image.fromarray(np.zeros((4, 9), np.uint8)).save(folder / "grey.png")
    for name, shape in (("turned.jpg", (9, 4, 3)), ("clear.webp", (4, 9, 3))):
        assert picture_files.read_picture(name, folder).shape == shape
    assert picture_files.read_picture("grey.png", folder).shape == (4, 9, 3)


# Places ------------------------------------------------------------------------------


def test_marks_in_the_text_take_the_pictures_in_order(folder):
    made = rows(prompt="From <image> to <image>?", image=["p/3.png", "p/5.png"])
    made = [
        {**row, "note": n, "prompt": f"{n}: {row['prompt']}"}
        for n, row in enumerate(made)
    ]
    text, images, _ = shown(opened(write(folder / "a.jsonl", made)))
    assert text.endswith("From <image> to <image>?")
    for image, number in zip(images, (3, 5), strict=True):
        np.testing.assert_array_equal(image, pixels(number))


def test_pictures_in_messages(folder):
    def messages(n):
        return [
            {"role": "system", "content": "Look."},
            {
                "role": "user",
                "content": [{"type": "image"}, {"type": "text", "text": "This is 1."}],
            },
            {"role": "assistant", "content": "Yes."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "No <image>: "},
                    {"type": "image", "image": f"p/{n}.png"},
                    {"type": "text", "text": "?"},
                ],
            },
        ]

    made = [
        {"prompt": messages(n), "answer": str(n), "image": "p/1.png"} for n in range(40)
    ]
    env = opened(write(folder / "a.jsonl", made), test_fraction=0.5)
    text, info = env.reset(seed=0)
    number = int(env._row.answer)
    assert text == "No <image >: <image>?"
    pictures = {}
    for known in (info, stored(pictures, info)):
        messages_shown, _ = opening(text, known, system="Configured.", renderer=None)
        assert [m.get(IMAGES) for m in messages_shown] == [
            None,
            digest(pixels(1)),
            None,
            digest(pixels(number)),
        ]
        assert messages_shown[1]["content"] == "<image>This is 1."
    assert set(pictures) == {digest(pixels(1)), digest(pixels(number))}
    assert info["preceding_messages"][1][IMAGES][0].dtype == np.uint8
    report = check_env("dataset-v0", env.options())
    assert report.ok, str(report)


def test_a_question_about_two_pictures_is_two_tasks(folder):
    same = [{**row, "prompt": "Which colour?"} for row in rows()]
    train = write(folder / "a.jsonl", same[:20])
    other = write(folder / "b.jsonl", same[20:])
    env = opened(train, test_path=other)
    env.reset(seed=0)
    # The same file under another name is the same picture.
    (folder / "copy.png").write_bytes(png(3))
    leak = write(folder / "c.jsonl", [{**same[0], "image": "copy.png"}])
    with pytest.raises(ConfigError, match="1 prompts are both .* line 4 and c.jsonl"):
        opened(train, test_path=leak).reset(seed=0)


def test_rows_without_pictures_are_tasks_of_text(folder):
    made = [{**row, "image": None} for row in rows()]
    env = opened(write(folder / "a.jsonl", made))
    text, info = env.reset(seed=0)
    assert IMAGES not in info and not env.shows_pictures
    assert "<image>" not in text
    # Without the option a placeholder is plain text.
    plain = [{**row, "prompt": f"<image> {row['prompt']}"} for row in made]
    file = write(folder / "b.jsonl", plain)
    assert "<image>" in make_env("dataset-v0", {"path": file}).reset(seed=0)[0]


# Errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": "p/none.png"}, r"line 2: picture .*none\.png' does not exist"),
        ({"image": "bad.png"}, "cannot be decoded"),
        ({"image": "cut.png"}, "cannot be decoded"),
        ({"image": "drawing.eps"}, "cannot be decoded"),
        ({"image": "other.ppm"}, "cannot be decoded .*Formats: PNG"),
        ({"image": "p"}, "does not exist"),
        ({"image": "https://example.com/a.png"}, "is an address"),
        ({"image": 7}, "must be the path of a file"),
        ({"image": {"bytes": "no base 64!"}}, "not valid base64"),
        ({"image": "large.png"}, "has 5 x 5 pixels"),
        ({"image": "heavy.png"}, "has more than"),
        ({"image": ["p/1.png"], "prompt": "<image> or <image>?"}, "2 places"),
        ({"image": [], "prompt": "<image>?"}, "has 0 pictures"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "audio"}]}]},
            "must have the type 'text'",
        ),
        (
            {
                "prompt": [
                    {"role": "system", "content": [{"type": "image", "path": "a"}]},
                    {"role": "user", "content": "a"},
                ]
            },
            "only those of the role 'user'",
        ),
    ],
)
def test_bad_pictures_are_refused_with_the_place(folder, row, message, monkeypatch):
    monkeypatch.setattr(picture_files, "MAX_PIXELS", 24 if "5 x 5" in message else 100)
    monkeypatch.setattr(picture_files, "MAX_BYTES", 5000)
    (folder / "bad.png").write_bytes(b"no picture")
    (folder / "cut.png").write_bytes(png(1)[:-30])
    (folder / "drawing.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%EOF\n")
    Image.new("RGB", (5, 5)).save(folder / "large.png")
    Image.new("RGB", (4, 4)).save(folder / "other.ppm")
    (folder / "heavy.png").write_bytes(png(1) + b"0" * 5000)
    file = write(
        folder / "a.jsonl", [{**rows()[0], "image": None}, {**rows()[1], **row}]
    )
    with pytest.raises(ConfigError, match=message):
        opened(file).reset(seed=0)


def test_a_part_without_picture_needs_the_column(folder):
    part = [{"role": "user", "content": [{"type": "image"}]}]
    file = write(folder / "a.jsonl", [{"prompt": part, "answer": "1"}])
    with pytest.raises(ConfigError, match="Name the column of pictures"):
        make_env("dataset-v0", {"path": file}).reset(seed=0)
    with pytest.raises(ConfigError, match="no column 'image'"):
        opened(file).reset(seed=0)


def test_a_file_that_vanishes_is_named(folder):
    env = opened(write(folder / "a.jsonl", rows()))
    env.reset(seed=0)
    for n in range(40):
        os.remove(folder / "p" / f"{n}.png")
    with pytest.raises(ConfigError, match="changed while it is in use.*not exist"):
        env.reset(seed=1)


# Models ------------------------------------------------------------------------------


def config_of(path, model):
    return (
        GRPOConfig()
        .environment("dataset-v0", env_config={"path": path, "images": "image"})
        .language_model(model=model, tiny={"hidden_size": 32})
        .rollouts(group_size=2, episodes_per_iteration=4)
        .generation(max_new_tokens=4)
    )


def test_a_model_of_text_is_refused_before_training(folder):
    config = config_of(write(folder / "a.jsonl", rows()), "tiny")
    config.validate()
    config.resolved_model = prepare_language_model(config)
    with pytest.raises(EnvContractError, match="reads text alone"):
        preflight(config)
    # Also if the first tasks have none.
    rare = [{**row, "image": None} for row in rows(200)] + rows(1)
    config.environment(env_config={"path": write(folder / "b.jsonl", rare)})
    config.environment(env_config={"images": "image"})
    with pytest.raises(ConfigError, match="Some tasks of DatasetEnv show pictures"):
        preflight(config)


@pytest.mark.slow
def test_a_model_of_pictures_trains_on_the_file(folder):
    algo = config_of(write(folder / "a.jsonl", rows()), "tiny-vlm").build_algo()
    try:
        results = algo.train()
    finally:
        algo.stop()
    assert results["env_runners"]["num_episodes"] >= 4
