"""Contents of a run's page, without a browser."""

from __future__ import annotations

import base64
import gzip
import html.parser
import inspect
import json
import re
import subprocess
import sys

import jsonschema
import pytest
from page_runs import HOSTILE, add_transcripts, make_record, write_viewed_run

from rllib_llm.cli import main
from rllib_llm.errors import ConfigError
from rllib_llm.transcripts.reader import schema
from rllib_llm.viewer import MOST_EPISODES, build_page, read_contents, write_page


def packed(page):
    """Return the data that the page's script unpacks."""
    (data,) = re.findall(r'<script id="data"[^>]*>([^<]*)</script>', page)
    return json.loads(gzip.decompress(base64.b64decode(data)))


class Elements(html.parser.HTMLParser):
    """Parser that collects elements like a browser."""

    def __init__(self, page):
        super().__init__()
        self.elements = {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.setdefault(tag, []).append(dict(attrs))


def test_synthetic_records_follow_the_schema():
    jsonschema.validate(make_record(3), schema())


def test_numbers_that_are_not_finite_are_shown_as_unknown(tmp_path):
    record = make_record(0)
    record |= {"return": float("nan"), "success": float("inf")}
    record["turns"][0]["reward_parts"] = {"length": float("-inf")}
    run = write_viewed_run(tmp_path, [record])
    file, _ = write_page(run)
    (shown,) = packed(file.read_text(encoding="utf-8"))["episodes"]
    assert shown["return"] is None and shown["success"] is None
    assert shown["turns"][0]["reward_parts"] == {"length": None}


def test_page_holds_the_run(tmp_path):
    records = [make_record(i, iteration=1 + i // 4) for i in range(12)]
    run = write_viewed_run(tmp_path, records)
    file, contents = write_page(run)
    assert file == run / "transcripts.html"
    assert packed(file.read_text(encoding="utf-8")) == json.loads(json.dumps(contents))
    assert [e["episode"] for e in contents["episodes"]] == [
        r["episode"] for r in records
    ]
    assert contents["facts"] == ["3 iterations", "12 episodes kept", "48 turns"]
    assert "algo: GRPO" in contents["config"]
    assert contents["links"] == [
        ("recipe.yaml", "recipe.yaml"),
        ("trial_00000/transcripts.jsonl", "trial_00000/transcripts.jsonl"),
        ("trial_00000/result.json", "trial_00000/result.json"),
    ]
    curves = {c["title"]: c["lines"][0]["points"] for c in contents["curves"]}
    assert curves == {
        "return": [(1, 0.0), (2, 0.5), (3, 1.0)],
        "entropy": [(1, 1.0), (2, 0.75), (3, 0.5)],  # of policies alone
    }
    assert not list(run.glob("*.tmp"))


def test_links_are_relative_to_the_page(tmp_path):
    run = write_viewed_run(tmp_path, [make_record(0)])
    contents = read_contents(run, tmp_path / "elsewhere")
    assert contents["links"][0] == ("recipe.yaml", "../run/recipe.yaml")


def test_the_page_does_not_load_resources(tmp_path):
    run = write_viewed_run(tmp_path, [make_record(0)])
    page = build_page(read_contents(run, run))
    for attribute in ("src=", "@import", "url(", 'http-equiv="refresh'):
        assert attribute not in page
    assert "default-src 'none'" in page
    addresses = set(re.findall(r"https?://[^\"' ]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_hostile_text_adds_no_element(tmp_path):
    plain = build_page(
        read_contents(write_viewed_run(tmp_path, [make_record(0)]), tmp_path)
    )
    record = make_record(0, text=HOSTILE, stop_reason=HOSTILE, agents=(HOSTILE,))
    run = write_viewed_run(tmp_path, [record], name="<b>run & co")
    page = build_page(read_contents(run, tmp_path))
    before, after = Elements(plain).elements, Elements(page).elements
    assert {tag: len(elements) for tag, elements in after.items()} == {
        tag: len(elements) for tag, elements in before.items()
    }
    assert "<title>&lt;b&gt;run &amp; co: transcripts</title>" in page
    assert HOSTILE not in page
    assert packed(page)["episodes"][0]["final_observation"] == HOSTILE


def test_too_many_episodes_drop_iterations_with_a_note(tmp_path):
    records = [make_record(i, iteration=1 + i // 2, turns=1) for i in range(40)]
    run = write_viewed_run(tmp_path, records)
    contents = read_contents(run, run, most_episodes=10)
    kept = [e["iteration"] for e in contents["episodes"]]
    assert sorted(set(kept)) == [4, 8, 12, 16, 20] and len(kept) == 10
    assert contents["facts"][-1] == "only 5 iterations of 20 are on this page"


def test_sweeps_and_resumed_runs(tmp_path):
    run = write_viewed_run(tmp_path, [make_record(0)])
    again = [make_record(i, iteration=it) for i, it in enumerate((1, 2, 3, 2, 3))]
    (run / "trial_00001").mkdir()
    add_transcripts(run / "trial_00001", again)
    contents = read_contents(run, run)
    assert [t["name"] for t in contents["trials"]] == ["trial_00000", "trial_00001"]
    shown = [(e["trial"], e["episode"]) for e in contents["episodes"]]
    assert shown == [
        (0, "episode_0"),
        (1, "episode_0"),
        (1, "episode_3"),
        (1, "episode_4"),
    ]


def test_a_run_without_transcripts_is_an_error(tmp_path):
    run = write_viewed_run(tmp_path, [])
    (run / "trial_00000" / "transcripts.jsonl").unlink()
    with pytest.raises(ConfigError, match="There is no transcripts.jsonl below"):
        write_page(run)


def test_the_command_writes_the_page_without_torch_and_ray(tmp_path):
    run = write_viewed_run(tmp_path, [make_record(0)])
    out = tmp_path / "out" / "page.html"
    code = (
        "import sys\n"
        "from rllib_llm.cli.main import app\n"
        f"app(['view', {str(run)!r}, '--out', {str(out)!r}], standalone_mode=False)\n"
        "heavy = {'torch', 'ray', 'transformers', 'gymnasium'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(out)) and "1 episodes kept" in done.stdout
    assert packed(out.read_text(encoding="utf-8"))["name"] == "run"
    default = inspect.signature(main.view).parameters["most_episodes"].default
    assert default == MOST_EPISODES
