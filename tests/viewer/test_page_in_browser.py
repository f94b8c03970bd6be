"""The page in a real browser: filters, tints, keys, lanes, groups, size."""

from __future__ import annotations

import numpy as np
import pytest
from page_runs import HOSTILE, make_record, write_viewed_run

from rllib_llm.pictures.placement import PictureRef
from rllib_llm.pictures.png import picture_records
from rllib_llm.viewer import write_page

pytestmark = pytest.mark.slow

TEAM = ("asker", "helper")
MINUS = "\u2212"


def some_records():
    """Return twelve plain records in groups of four, a team's, and a hostile one."""
    records = [
        make_record(i, iteration=1 + i // 4, **{"return": i / 10}) for i in range(12)
    ]
    records[0]["stop_reason"] = "max_turns"
    records[1]["selected_as"] = "best"
    records[2]["turns"][1]["completion"] = "A Needle in the hay"
    records.append(
        make_record(50, iteration=3, agents=TEAM, turns=3, split="evaluation")
    )
    records.append(make_record(60, iteration=3, text=HOSTILE, **{"return": -9.0}))
    return records


class Page:
    """The page of a run in the browser."""

    def __init__(self, browser, file):
        self.browser = browser
        browser.get_log("browser")  # forget what earlier pages said
        browser.get(file.as_uri())
        ready = "return document.documentElement.dataset.ready"
        self.wait(ready, "yes")

    def js(self, code, *arguments):
        return self.browser.execute_script(code, *arguments)

    def wait(self, code, value):
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.browser, 60).until(lambda _: self.js(code) == value)

    def count(self, selector):
        return self.js(
            "return document.querySelectorAll(arguments[0]).length;", selector
        )

    def text(self, selector):
        return self.js(
            "return document.querySelector(arguments[0]).textContent", selector
        )

    def set(self, **fields):
        self.js(
            """
            const form = document.getElementById("filters");
            for (const [name, value] of Object.entries(arguments[0]))
              form.elements[name].value = value;
            form.dispatchEvent(new Event("input", { bubbles: true }));
            """,
            fields,
        )

    def shown(self):
        return int(self.text("#count").split()[0])

    def press(self, *keys):
        from selenium.webdriver.common.action_chains import ActionChains

        for key in keys:
            ActionChains(self.browser).send_keys(key).perform()

    def pick_tint(self, name):
        self.js(
            """
            const tint = document.getElementById("tint");
            tint.value = arguments[0];
            tint.dispatchEvent(new Event("change"));
            """,
            name,
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_viewed_run(tmp_path_factory.mktemp("runs"), some_records())


@pytest.fixture
def page(browser, run):
    page = Page(browser, write_page(run)[0])
    yield page
    messages = [m for m in browser.get_log("browser") if m["level"] != "INFO"]
    assert not messages, messages
    # No text became code, and nothing was asked for.
    assert browser.title == "run: transcripts"
    asked = page.js("return performance.getEntriesByType('resource').map(r => r.name)")
    assert asked == []


@pytest.mark.parametrize(
    "fields, episodes",
    [
        ({}, 14),
        ({"returnFrom": "0.35", "returnTo": "0.8"}, 5),
        ({"iterationFrom": "2", "iterationTo": "2"}, 4),
        ({"stop": "max_turns"}, 1),
        ({"split": "evaluation"}, 1),
        ({"selected_as": "best"}, 1),
        ({"agent": "helper"}, 1),
        ({"task": "1"}, 4),
        ({"task": "1002"}, 4),
        ({"text": "needle IN"}, 1),
        ({"text": "needle", "iterationFrom": "2"}, 0),
    ],
)
def test_filters(page, fields, episodes):
    page.set(**fields)
    assert page.shown() == episodes
    assert page.count("#list .row") == episodes
    assert page.count("article.turn") > 0 or not episodes
    assert ("No episode passes" in page.text("#turns")) == (not episodes)


def test_orders(page):
    page.set(order="lowest return")
    assert MINUS + "9" in page.text("#list .row b")
    page.set(order="highest return", task="1")
    assert page.text("#list .row b") == "0.7"


def test_tints_colour_trained_tokens_only(page):
    seen = {}
    for name in ("advantage", "ratio", "entropy", "value", "distance", "surprise"):
        page.pick_tint(name)
        assert "≤" in page.text(".legend") and "≥" in page.text(".legend")
        tinted = page.js(
            """
            const spans = [...document.querySelectorAll(".said span")];
            return spans.map(s => [s.className, s.style.background, s.dataset.value]);
            """
        )
        assert all(back for kind, back, _ in tinted if kind != "masked")
        assert all(not back for kind, back, _ in tinted if kind == "masked")
        assert {"masked", ""} == {kind for kind, *_ in tinted}
        seen[name] = tuple(back for _, back, _ in tinted)
    assert len(set(seen.values())) == len(seen)
    assert len(set(seen["advantage"])) > 5 and len(set(seen["value"])) == 2
    page.pick_tint("")
    assert page.count(".said span[data-value]") == 0


def test_orange_is_negative_and_blue_is_positive_in_both_themes(page):
    page.pick_tint("advantage")
    for _ in range(2):
        found = page.js(
            """
            const spans = [...document.querySelectorAll(".said span[data-value]")];
            return spans.map(s => [Number(s.dataset.value),
              ...s.style.background.match(/\\d+/g).slice(0, 3).map(Number)]);
            """
        )
        strong = [(v, r, b) for v, r, _, b in found if abs(v) > 0.7]
        assert len({v > 0 for v, *_ in strong}) == 2
        assert all((b > r) == (v > 0) for v, r, b in strong)
        page.press("d")


def test_text_on_tints_has_contrast(page):
    ratios = page.js(
        """
        const found = [];
        for (const name of ["light", "dark"]) {
          setTheme(name);
          for (const scale of Object.values(view.scales))
            for (let i = 0; i <= 20; i++) {
              const x = scale.low + (scale.high - scale.low) * i / 20;
              const [back, text] = colours(scale, scale.log ? Math.exp(x) : x);
              const a = luminance(back.match(/\\d+/g).map(Number)) + 0.05;
              const b = luminance(parts(text)) + 0.05;
              found.push(Math.max(a, b) / Math.min(a, b));
            }
        }
        return found;
        """
    )
    assert len(ratios) == 2 * 6 * 21 and min(ratios) >= 4.5  # WCAG AA


def test_keyboard(page):
    def chosen():
        return page.js("return document.querySelector('.row[aria-selected=true]').id")

    from selenium.webdriver.common.keys import Keys

    assert chosen() == "row-0"
    page.press("j", Keys.ARROW_DOWN, "k", "j")
    assert chosen() == "row-2"
    page.press("n")
    assert "turn 1" in page.text("article.current .head")
    assert "A Needle" not in page.text("article.current .head")
    page.press(Keys.ARROW_RIGHT, "l", "l", "h")
    assert page.text("article.current .at") == " me"
    text = page.text("#token")
    assert "token 2 of 10" in text
    for name in ("advantage", "ratio", "entropy", "value", "log-prob", "gap"):
        assert name in text
    page.press("p", "r")
    assert "<|im_start|>user" in page.text("article.current .read")
    before = page.js("return view.tint")
    page.press("t")
    assert page.js("return view.tint") != before
    page.press("/", "needle")
    assert page.shown() == 1
    page.press(Keys.ESCAPE, "?")
    assert page.js("return document.getElementById('help').open")
    page.press(Keys.ESCAPE, "c")
    assert page.js("return document.getElementById('run').open")


def test_lanes_of_agents(page):
    page.set(agent="helper")
    assert page.count(".lanes h3") == 2
    lanes = page.js(
        """
        const cards = [...document.querySelectorAll(".step article")];
        return cards.map(a => a.style.gridColumn);
        """
    )
    assert lanes[:4] == ["1", "2", "1", "2"]
    page.press("a")
    assert page.count(".lanes") == 0 and page.count("article.turn") == 7


def test_rollouts_of_a_group_side_by_side(page):
    page.set(task="1")
    page.press("g")
    assert page.count(".column") == 4
    headings = page.js(
        "return [...document.querySelectorAll('.column h3')].map(h => h.textContent)"
    )
    assert [h[:9] for h in headings] == [f"rollout {i}" for i in range(4)]
    boxes = page.js(
        "return [...document.querySelectorAll('.column')].map(c => c.offsetLeft)"
    )
    assert boxes == sorted(set(boxes))
    page.js("document.querySelectorAll('.column h3')[2].click()")
    assert page.count(".column") == 1 and "rollout 2" in page.text("#facts-of-episode")


def test_rewards_curves_and_configuration(page):
    assert f"environment +1, length_penalty {MINUS}0.1" in page.text(
        "article.turn .head"
    )
    page.press("c")
    assert page.count("figure svg polyline") == 2
    label = page.js("return document.querySelector('figure svg').ariaLabel")
    assert label == "return: 0 to 1 over iterations 1 to 3, last 1"
    assert "algo: GRPO" in page.text("#config pre")
    links = page.js(
        "return [...document.querySelectorAll('#links a')].map(a => a.href)"
    )
    assert links[0].endswith("/run/recipe.yaml") and links[0].startswith("file://")


def test_hostile_text_is_shown_verbatim(page):
    page.set(returnTo="-5")
    assert page.shown() == 1
    assert page.count("#episode img") == page.count("#episode script") == 0
    assert HOSTILE.replace("\u2028", "") in page.text("article .read").replace(
        "\u2028", ""
    )


def test_ten_thousand_turns_render_few_nodes(browser, tmp_path):
    records = [make_record(i, iteration=1 + i // 8, turns=4) for i in range(2_000)]
    records.append(make_record(9_999, iteration=250, turns=2_500, **{"return": 99.0}))
    run = write_viewed_run(tmp_path, records)
    page = Page(browser, write_page(run)[0])
    assert "10500 turns" in page.text("#count")
    most = page.js(
        """
        const box = document.getElementById("list");
        let most = 0;
        for (let top = 0; top < box.scrollHeight; top += 997) {
          box.scrollTop = top;
          box.dispatchEvent(new Event("scroll"));
          most = Math.max(most, document.querySelectorAll("*").length);
        }
        return [most, document.querySelector(".row:last-child").id];
        """
    )
    assert most[0] < 1_500 and most[1] == "row-2000"
    page.set(returnFrom="50")
    seen = page.js(
        """
        const box = document.querySelector(".scroll"), seen = new Set();
        let most = 0, guard = 0;
        while (guard++ < 20000) {
          for (const b of box.querySelectorAll(".turn .head > b:first-child"))
            seen.add(b.textContent);
          most = Math.max(most, document.querySelectorAll("*").length);
          if (box.scrollTop + box.clientHeight >= box.scrollHeight - 1) break;
          box.scrollTop += 600;
          box.dispatchEvent(new Event("scroll"));
        }
        return [most, seen.size];
        """
    )
    assert seen[0] < 2_000
    assert seen[1] == 2_501  # every turn came by, and the final observation
    assert not [m for m in browser.get_log("browser") if m["level"] != "INFO"]


def test_pictures_are_shown_as_they_were_drawn(browser, tmp_path):
    rng = np.random.default_rng(0)
    small = rng.integers(256, size=(3, 5, 3), dtype=np.uint8)
    noise = rng.integers(256, size=(200, 200, 3), dtype=np.uint8)  # above 48 KiB
    refs = tuple(PictureRef(name, 0, 1) for name in ("ab12", "cd34"))
    record = make_record(0, turns=2)
    record["turns"][0]["images"] = picture_records(refs, {"ab12": small, "cd34": noise})
    run = write_viewed_run(tmp_path, [record])
    page = Page(browser, write_page(run)[0])
    code = """
        const shown = [...document.querySelectorAll(".pictures img")];
        return shown.map(img => {
          const canvas = document.createElement("canvas");
          [canvas.width, canvas.height] = [img.naturalWidth, img.naturalHeight];
          const drawn = canvas.getContext("2d");
          drawn.drawImage(img, 0, 0);
          const all = drawn.getImageData(0, 0, canvas.width, canvas.height).data;
          return [img.alt, canvas.width, canvas.height, Array.from(all)];
        });
    """
    loaded = "return [...document.images].every(img => img.complete)"
    page.wait(loaded, True)
    ((alt, width, height, pixels),) = page.js(code)
    assert (alt, width, height) == ("Picture ab12", 5, 3)
    assert np.array_equal(np.reshape(pixels, (3, 5, 4))[..., :3], small)
    assert page.text(".pictures span") == "picture cd34 is too large to be kept"
    assert page.count(".pictures") == 1  # the other turn has none
    assert not [m for m in browser.get_log("browser") if m["level"] != "INFO"]
