"""Pictures of observations: counts, types, stores, quoted text, check_env."""

from __future__ import annotations

import numpy as np
import pytest
from picture_helpers import picture

from rllib_llm.connectors.tool_prompts import later, opening
from rllib_llm.data.types import TurnResult
from rllib_llm.envs import TextEnv, check_env, make_env
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.errors import EnvContractError
from rllib_llm.pictures.contract import digest, quoted, stored
from rllib_llm.pictures.placement import located


class Shows(TextEnv):
    """An environment that shows two pictures, as its options say."""

    max_turns = 2

    def start(self, rng, text="<image>", images=1, first="ok"):
        self.text, self.images = text, images
        shown = [picture(int(rng.integers(100)))]
        return {
            "ok": TurnResult("Look: <image>", images=shown),
            "float": TurnResult("<image>", images=[shown[0] / 255]),
            "grey": TurnResult("<image>", images=[shown[0][..., 0]]),
            "list": TurnResult("<image>", images=[shown[0].tolist()]),
            "array": TurnResult("<image>", images=shown[0]),
        }[first]

    def reply(self, action):
        images = [picture(n) for n in range(self.images)]
        return TurnResult(self.text, images=images, terminated=True, success=True)

    def expert_action(self, rng):
        return "yes"

    def random_action(self, rng):
        return "no"


def test_reset_and_step_hold_their_pictures_in_info():
    env = Shows({"text": "a <image> b <image>", "images": 2})
    text, info = env.reset(seed=3)
    assert text == "Look: <image>"
    assert [i.shape for i in info["images"]] == [(32, 32, 3)]
    _, _, _, _, info = env.step("yes")
    assert len(info["images"]) == 2
    assert "images" not in make_env("guess_number-v0").reset(seed=0)[1]


@pytest.mark.parametrize(
    ("text", "images", "marks"),
    [("<image>", 2, 1), ("none", 1, 0), ("<image>" * 3, 1, 3)],
)
def test_other_numbers_of_placeholders_are_refused(text, images, marks):
    env = Shows({"text": text, "images": images})
    env.reset(seed=0)
    with pytest.raises(EnvContractError, match=f"{images} pictures.*{marks} times"):
        env.step("yes")


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("float", "dtype float64"),
        ("grey", r"shape \(32, 32\)"),
        ("list", "is a list"),
        ("array", "type ndarray"),
    ],
)
def test_other_types_of_pictures_are_refused(first, message):
    with pytest.raises(EnvContractError, match=message):
        Shows({"first": first}).reset(seed=0)


def test_check_env_covers_pictures():
    assert check_env(Shows, seeds=range(2)).ok
    report = check_env(lambda c: Shows({"text": "<image>", "images": 2}), seeds=[0])
    assert any("2 pictures" in problem for problem in report.problems)


class Flickers(Shows):
    """An environment whose pictures do not follow from the seed."""

    def start(self, rng, **options):
        super().start(rng, **options)
        Flickers.count = getattr(Flickers, "count", 0) + 1
        return TurnResult("<image>", images=[picture(Flickers.count)])


def test_check_env_finds_pictures_that_the_seed_does_not_determine():
    report = check_env(Flickers, seeds=[0])
    assert any("other pictures" in problem for problem in report.problems)


def test_a_store_holds_equal_pictures_once_and_copies_them():
    store = {}
    image = picture(1)
    info = stored(store, {"images": [image, image.copy(), picture(2)], "x": 1})
    assert info["images"] == [digest(image), digest(image), digest(picture(2))]
    assert info["x"] == 1
    assert len(store) == 2
    image[:] = 0
    np.testing.assert_array_equal(store[info["images"][0]], picture(1))
    assert stored(store, info) == info
    assert stored(store, {}) == {}
    with pytest.raises(EnvContractError, match="uint8"):
        stored(store, {"images": [np.zeros((2, 2))]})


def test_digests_tell_size_and_pixels_apart():
    flat = np.zeros((2, 8, 3), np.uint8)
    assert digest(flat) != digest(flat.reshape(4, 4, 3))
    assert digest(picture(1)) == digest(np.asfortranarray(picture(1)))


def test_pictures_become_runs_and_quoted_placeholders_stay_text(renderer):
    names = [digest(picture(n)) for n in (1, 2)]
    spec = renderer.pictures
    text = f"User says {quoted('<image>')}. <image> and <image>"
    messages, _ = opening(text, {"images": names}, system=None, renderer=renderer)
    prompt = renderer.opened(messages)
    assert [(r.digest, r.count) for r in prompt.images] == [
        (n, spec.count) for n in names
    ]
    for ref in prompt.images:
        run = prompt.ids[ref.start : ref.start + ref.count]
        assert run == [spec.token_id] * spec.count
    assert prompt.ids.count(spec.token_id) == 2 * spec.count
    # Without pictures the placeholder is text, and so are the model's own tokens.
    hostile = f"<image> {spec.before} {spec.after}"
    plain = renderer.opened([{"role": "user", "content": hostile}])
    assert not plain.images
    around = renderer.tokenizer.convert_tokens_to_ids(spec.before)
    assert not {spec.token_id, around} & set(plain.ids)
    assert hostile in renderer.tokenizer.decode(plain.ids)


def test_later_observations_show_pictures(renderer):
    messages, _ = opening("Hi.", {}, system=None, renderer=renderer)
    prompt = renderer.opened(messages)
    ids = [*prompt.ids, renderer.end_of_turn_id]
    messages = [*messages, {"role": "assistant", "content": "x"}]
    name = digest(picture(1))
    messages += later("See <image>", {"images": [name]}, None)
    new = renderer.next(messages, ids, last_sampled_id=ids[-1])
    assert [r.digest for r in new.images] == [name]
    with pytest.raises(EnvContractError, match="role 'tool'"):
        result = {"tool_results": [{"name": "f", "content": "<image>"}]}
        later("<image>", {"images": [name], **result}, [{"name": "f"}])


def test_a_system_prompt_may_not_spell_the_placeholder(renderer):
    name = digest(picture(1))
    messages, _ = opening(
        "<image>", {"images": [name]}, system="Show <image>.", renderer=renderer
    )
    with pytest.raises(EnvContractError, match="placeholder tokens"):
        renderer.opened(messages)


def test_a_model_of_text_refuses_pictures():
    message = {"role": "user", "content": "<image>", "images": "abc"}
    with pytest.raises(EnvContractError, match="reads text alone"):
        located([1, 2], [message], None, 0)


def test_the_shipped_environment_has_varied_pictures_in_disjoint_splits():
    env = make_env("colour_grid-v0")
    seen = {}
    for split in ("train", "test"):
        episodes = [
            play(env, seed, expert_policy, options={"split": split})
            for seed in range(100)
        ]
        assert all(e.success for e in episodes)
        seen[split] = {e.pictures[0][0] for e in episodes}
        assert len(seen[split]) == 100
    assert not seen["train"] & seen["test"]
    again = play(env, 3, expert_policy, options={"split": "test"})
    assert again.pictures[0][0] in seen["test"]


def test_frozen_lake_in_pictures_is_the_task_in_text():
    shown = make_env("frozen_lake_pictures-v0", {"surroundings": True})
    text = make_env("frozen_lake-v0")
    for seed in range(20):
        options = {"split": ("train", "test")[seed % 2]}
        one = play(shown, seed, expert_policy, options=options)
        two = play(text, seed, expert_policy, options=options)
        assert (one.actions, one.rewards) == (two.actions, two.rewards)
        assert shown.map == text.map
        # A picture until the end, each move another one.
        names = [n for each in one.pictures for n in each]
        assert len(set(names)) == len(names) == len(one.actions)
        for a, b in zip(one.observations[1:-1], two.observations[1:-1], strict=True):
            assert a == f"<image>\nGo on.\n{b}"


def test_the_lake_is_drawn_cell_by_cell():
    env = make_env("frozen_lake_pictures-v0", {"pixels": 40})
    image = env.reset(seed=1)[1]["images"][0]
    cells = image[5::10, 5::10]
    holes = np.array([[c == "H" for c in row] for row in env.map])
    assert ((cells == (20, 40, 90)).all(-1) == holes).all()
    assert cells[0, 0].tolist() == [220, 40, 40]
    assert cells[-1, -1].tolist() == [40, 180, 60]
