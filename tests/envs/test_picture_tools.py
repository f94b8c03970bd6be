"""Tools that show pictures: zooms of geo_pictures-v0, crops of frames_pictures-v0."""

import itertools

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.colour_grid import COLOURS
from rllib_llm.envs.frames_pictures import THING_COLOURS
from rllib_llm.envs.geo import PARTS, places
from rllib_llm.envs.geo_pictures import colour_codes
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import ConfigError
from rllib_llm.pictures.contract import digest

THINGS = {colour: thing for thing, (_, colour) in THING_COLOURS.items()}
THINGS[(128, 128, 128)] = None
SMALL_GEO = {"count": 3, "worlds": 1000}


def read_cells(picture, palette, rows=2):
    """Return the nearest colour of a palette to the mean of each cell, row by row."""
    size = len(picture) // rows
    seen = []
    for i, j in itertools.product(range(rows), repeat=2):
        cell = picture[i * size : (i + 1) * size, j * size : (j + 1) * size]
        mean = cell.reshape(-1, 3).mean(axis=0)
        seen.append(min(palette, key=lambda c: float(np.abs(mean - c).sum())))
    return seen


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("geo_pictures-v0", {}),
        ("geo_pictures-v0", {**SMALL_GEO, "pixels": 16}),
        ("frames_pictures-v0", {}),
        ("frames_pictures-v0", {"frames": 6, "crop": 3, "thoughts": True}),
    ],
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_experts_win(name, config, split):
    env = make_env(name, config)
    plays = [play(env, s, expert_policy, options={"split": split}) for s in range(20)]
    assert all(p.success and sum(p.rewards) == 1.0 for p in plays)


@pytest.mark.parametrize("pixels", [16, 33])
def test_zooms_show_marks_that_the_search_knows(pixels):
    env = make_env("geo_pictures-v0", {**SMALL_GEO, "pixels": pixels, "max_turns": 9})
    names = {colour: name for name, colour in COLOURS.items()}
    for seed in range(10):
        env.reset(seed=seed)
        for level, (part, kind) in enumerate(PARTS.items()):
            text, *_, info = env.step(f"<look>{part}</look>")
            assert text == f"The {part} shows <image>." and not info["tool_error"]
            (picture,) = info["images"]
            assert picture.shape == (pixels, pixels, 3)
            cells = picture[: pixels // 2 * 2, : pixels // 2 * 2]
            mark = " ".join(names[c] for c in read_cells(cells, names))
            assert mark == env.place.codes[level]
            text, *_, info = env.step(f"<search>{mark.replace(' ', ', ')}</search>")
            place = env.place.names[level]
            assert text == f"{mark} is the mark of the {kind} {place}."
            assert "images" not in info


def test_a_scene_has_all_marks_and_a_second_look_the_same_picture():
    env = make_env("geo_pictures-v0", {"pixels": 64})
    names = {colour: name for name, colour in COLOURS.items()}
    (scene,) = env.reset(seed=5)[1]["images"]
    corners = ((9, 2), (12, 11), (3, 7))  # sign, plate, tower
    for (row, column), code in zip(corners, env.place.codes, strict=True):
        mark = scene[4 * row : 4 * row + 8, 4 * column : 4 * column + 8]
        assert " ".join(names[c] for c in read_cells(mark, names)) == code
    looks = [env.step("<look>Plate</look>")[4]["images"][0] for _ in range(2)]
    assert digest(looks[0]) == digest(looks[1]) != digest(scene)


def test_errors_show_no_picture():
    env = make_env("geo_pictures-v0")
    env.reset(seed=0)
    for action in ("<look>roof</look>", "<search>red red</search>"):
        text, *_, info = env.step(action)
        assert text == "Nothing found." and info["tool_error"]
        assert "images" not in info


def test_worlds_have_marks_of_their_own():
    for count in (2, 3, 4):
        world = places(7, count, colour_codes)
        codes = {code for place in world for code in place.codes}
        assert len(codes) == count + count**2 + count**3
        assert codes <= set(colour_codes())
    drawn = {"one": set(), "many": set()}
    for seed in range(40):
        for name, worlds in (("one", 1), ("many", 100)):
            env = make_env("geo_pictures-v0", {"count": 3, "worlds": worlds})
            env.reset(seed=seed)
            drawn[name].add(env.world)
    assert len(drawn["one"]) == 1 and len(drawn["many"]) > 20


def test_levels_are_rated_as_in_text():
    for level, reward in ((0, 0.0), (1, 0.25), (2, 0.5), (3, 1.0)):
        env = make_env("geo_pictures-v0", SMALL_GEO)
        env.reset(seed=0)
        named = ["Nowhere", *env.place.names][level]
        *_, info = step = env.step(f"<answer>{named}</answer>")
        assert (step[1], info["level"], info["success"]) == (reward, level, level == 3)


def test_a_world_without_a_held_out_city_is_refused():
    lacking = 0
    for world in range(20):
        env = make_env("geo_pictures-v0", {"count": 2, "world": world})
        try:
            env.reset(seed=0, options={"split": "test"})
        except ConfigError as error:
            lacking += 1
            assert f"world={world} with count=2 has no city of the split 'test'" in str(
                error
            )
    assert 0 < lacking < 10


def test_crops_show_the_frames_of_the_video_in_text():
    config = {"frames": 9, "crop": 4, "max_turns": 20}
    shown, text = (
        make_env(name, config) for name in ("frames_pictures-v0", "frames-v0")
    )
    for seed in range(10):
        for env in (shown, text):
            env.reset(seed=seed, options={"split": ("train", "test")[seed % 2]})
        assert (shown.things, shown.spans) == (text.things, text.spans)
        for crop in ("1-4", "5-8", "9-9", "3-9"):
            action = f"<crop>{crop}</crop>"
            captions = text.step(action)[0].splitlines()
            seen, *_, info = shown.step(action)
            numbers = [line.split(": ")[0] for line in captions]
            assert seen == "\n".join(f"{n}: <image>" for n in numbers)
            for caption, picture in zip(captions, info["images"], strict=True):
                found = [THINGS[c] for c in read_cells(picture, THINGS)]
                things = sorted(thing for thing in found if thing)
                assert caption.split(": ")[1] == (", ".join(things) or "nothing")


def test_a_crop_beyond_the_video_shows_no_picture():
    env = make_env("frames_pictures-v0", {"frames": 6})
    env.reset(seed=0)
    text, *_, info = env.step("<crop>5-7</crop>")
    assert text == "Crop from 1 to 6, as 1-4." and "images" not in info
    first = env.step("<crop>2-2</crop>")[4]["images"][0]
    assert digest(first) == digest(env.step("<crop>1-2</crop>")[4]["images"][1])


def test_the_expert_reads_the_frames_of_the_last_crop():
    env = make_env("frames_pictures-v0", {"frames": 6, "crop": 3, "thoughts": True})
    env.reset(seed=0)
    env.things, env.spans = ["cat", "dog", "cup"], [(2, 4), (3, 3), (6, 6)]
    assert env.expert_action(None) == "<crop>1-3</crop>"
    names = {colour: name for name, colour in THING_COLOURS.values()}
    names[128, 128, 128] = "grey"
    shown = ["no", "yes", "yes", "yes", "no", "no"]
    ends = ["<crop>4-6</crop>", "<answer>2-4</answer>"]
    for first, end in ((1, ends[0]), (4, ends[1])):
        info = env.step(f"<crop>{first}-{first + 2}</crop>")[4]
        expected = []
        for n, picture in enumerate(info["images"], first):
            colours = [names[c] for c in read_cells(picture, names)]
            colours = ["red!" if c == "red" else c for c in colours]
            expected.append(" ".join([str(n), *colours, shown[n - 1]]))
        assert env.expert_action(None) == " ".join(expected) + end


@pytest.mark.parametrize("name", ["geo-v0", "frames-v0"])
def test_experts_finish_after_mistakes(name):
    """The expert looks at what it has not seen, whatever was done before."""
    env = make_env(name, {"max_turns": 20})
    for seed in range(20):
        env.reset(seed=seed)
        mistakes = ["<look>sign</look>"] if name == "geo-v0" else ["<crop>4-6</crop>"]
        for action in mistakes:
            env.step(action)
        ended = False
        while not ended:
            *_, ended, truncated, info = env.step(env.expert_action(None))
            assert not truncated
        assert info["success"]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("geo_pictures-v0", "<look>tower</look>"),
        ("frames_pictures-v0", "<crop>1-4</crop>"),
    ],
)
def test_snapshots_continue_with_the_same_pictures(name, first):
    env, other = make_env(name), make_env(name)
    env.reset(seed=4)
    env.step(first)
    state = env.snapshot()
    ends = []
    for player in (env, other):
        player.restore(state)
        text, *_, info = player.step(first)
        ends.append((text, list(map(digest, info["images"]))))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("name", ["geo_pictures-v0", "frames_pictures-v0"])
def test_splits_are_disjoint(name):
    env, seen = make_env(name, SMALL_GEO if "geo" in name else {}), {}
    for split in ("train", "test"):
        seen[split] = set()
        for seed in range(200):
            env.reset(seed=seed, options={"split": split})
            is_geo = "geo" in name
            seen[split].add(env.place.names[2] if is_geo else (*env.things, *env.spans))
        assert len(seen[split]) > 10
    assert not seen["train"] & seen["test"]


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("geo_pictures-v0", {"count": 1}),
        ("geo_pictures-v0", {"count": 5}),
        ("geo_pictures-v0", {"world": -1}),
        ("geo_pictures-v0", {"worlds": 0}),
        ("geo_pictures-v0", {"pixels": 15}),
        ("frames_pictures-v0", {"frames": 3}),
        ("frames_pictures-v0", {"crop": 51}),
        ("frames_pictures-v0", {"pixels": 8}),
        ("frames_pictures-v0", {"thoughts": 1}),
    ],
)
def test_impossible_options_are_refused(name, config):
    with pytest.raises(ConfigError, match=list(config)[-1]):
        make_env(name, config).reset(seed=0)
