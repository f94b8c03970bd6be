"""The shop as web pages: HTML, server, the same tasks as in text, a real browser."""

from __future__ import annotations

import html
import re
import threading
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest

from rllib_llm.envs import make_env
from rllib_llm.envs.browser import client
from rllib_llm.envs.browser.chromium import find_program
from rllib_llm.envs.transcript import expert_policy, play
from rllib_llm.envs.webshop.__main__ import main
from rllib_llm.envs.webshop.html_pages import page_html
from rllib_llm.envs.webshop.server import ShopServer

RNG = np.random.default_rng(0)
SMALL = {"products": 100, "families": 2}


@pytest.fixture
def task():
    """Return an episode of the environment in text, and its shop."""
    env = make_env("webshop_text-v0", SMALL)
    env.reset(seed=3)
    return env


@pytest.fixture
def server(task):
    made = ShopServer()
    made.serve(task.visit, task.instruction, lambda: task.outcome().observation)
    yield made
    made.close()


def words_of(document):
    """Return the words of a document's body without the instruction."""
    body = re.sub(r"(?s).*?</p>", "", document.partition("<body")[2], count=1)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def ask(server, path="", **posted):
    data = urllib.parse.urlencode(posted).encode() if posted else None
    with urllib.request.urlopen(server.address + path, data) as reply:
        return reply.read().decode()


def do(server, action):
    """Request an action of the environment in text."""
    kind, text = re.fullmatch(r"(\w+)\[(.*)\]", action).groups()
    if kind == "search":
        return ask(server, "search?" + urllib.parse.urlencode({"words": text}))
    return ask(server, "click", button=text)


def test_pages_have_the_words_and_buttons_of_the_text(task):
    while not task.visit.is_over:
        if task.visit.page != "search":
            document = page_html(task.visit, task.instruction, 5)
            shown = task.visit.show()
            assert words_of(document) == " ".join(re.sub(r"[\[\]]", " ", shown).split())
            buttons = re.findall(r'<button name="button" value="([^"]*)"', document)
            assert list(map(html.unescape, buttons)) == re.findall(r"\[(.*?)\]", shown)
            assert 'data-step="5"' in document
        task.step(task.expert_action(RNG))


def test_texts_are_escaped(task):
    document = page_html(task.visit, 'a <b> & "c"', 0)
    assert "a &lt;b&gt; &amp; &quot;c&quot;" in document


def test_requests_earn_the_reward_of_the_text(task, server):
    assert '<input name="words"' in ask(server)
    step = server.shopping.step
    while not task.visit.is_over:
        page = do(server, task.expert_action(RNG))
        step += 1
        assert server.shopping.step == step and f'data-step="{step}"' in page
    assert "Score: 1.00" in page and task.outcome().reward == 1.0
    assert "Score: 1.00" in do(server, "click[buy now]")  # bought once
    assert server.shopping.last[1].lower() == "buy now"


def test_buttons_that_the_page_lacks_change_nothing(task, server):
    page = do(server, "click[Buy Now]")
    assert "Search</button>" in page and not task.visit.is_over
    assert server.shopping.last == ("click", "Buy Now", False)


def test_other_addresses_do_not_exist(server):
    for path, posted in (("other", {}), ("search", {"words": "x"})):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(server, path, **posted)
    assert server.address.startswith("http://127.0.0.1:")


def test_steps_go_on_with_the_next_visit(task, server):
    do(server, "click[nothing]")
    first = server.shopping.step
    server.serve(task.visit, task.instruction, str)
    assert server.shopping.step == first + 1
    assert not server.shopping.wait_beyond(first + 1, timeout_s=0.01)
    assert server.shopping.wait_beyond(first, timeout_s=0.01)


def test_a_person_shops_from_the_command_line(capsys):
    port = free_port()
    thread = threading.Thread(target=main, args=(["--seed", "3", "--port", str(port)],))
    thread.start()
    env = make_env("webshop_text-v0")
    env.reset(seed=3)

    class Address:
        address = f"http://127.0.0.1:{port}/"

    page = ""
    while "Thank you" not in page:
        action = env.expert_action(RNG)
        page = wait_for(lambda action=action: do(Address, action))
        env.step(action)
    thread.join(60.0)
    assert not thread.is_alive()
    printed = capsys.readouterr().out
    assert env.instruction in printed and Address.address in printed
    assert "Score: 1.00" in printed


def free_port():
    server = ShopServer()
    port = int(server.address.rstrip("/").rpartition(":")[2])
    server.close()
    return port


def wait_for(request):
    """Repeat a request until the server listens."""
    for _ in range(200):
        try:
            return request()
        except urllib.error.URLError:
            threading.Event().wait(0.05)
    raise AssertionError("no server")


# In a browser -----------------------------------------------------------------


@pytest.fixture(scope="module")
def pages():
    pytest.importorskip("selenium")
    if not find_program(client.BINARIES) or not find_program(client.DRIVERS):
        pytest.skip("no Chromium with its chromedriver")
    made = make_env("webshop_pages-v0", SMALL)
    yield made
    made.close()


@pytest.mark.slow
def test_tasks_and_rewards_are_those_of_the_text(pages):
    text = make_env("webshop_text-v0", SMALL)
    for seed in range(6):
        options = {"split": ("train", "test")[seed % 2]}
        shown = play(pages, seed, expert_policy, options=options)
        read = play(text, seed, expert_policy, options=options)
        first = read.observations[0].splitlines()[0]
        assert shown.observations[0].splitlines()[0] == first
        assert shown.success and shown.rewards[-1] == read.rewards[-1] == 1.0
        assert shown.infos[-1]["metrics"] == read.infos[-1]["metrics"]
        assert [i["tool"] for i in shown.infos if i["tool"]] == [
            i["tool"] for i in read.infos
        ]


@pytest.mark.slow
def test_enter_submits_the_search_and_wrong_actions_are_explained(pages):
    pages.reset(seed=0)
    pages.step('type 1 "plant"')
    observation, *_, info = pages.step("press enter")
    assert info["tool"] == "search" and info["query"] == "plant"
    assert "Total results" in observation and "Instruction:" in observation
    observation, *_, info = pages.step("click 99")
    assert info["invalid_action"] and info["tool"] is None
    assert observation.startswith("There is no element 99.")


@pytest.mark.slow
def test_a_killed_browser_is_replaced(pages):
    prompt = pages.reset(seed=1)[0]
    pages.interrupt()
    assert pages.reset(seed=1)[0] == prompt
    assert play(pages, 1, expert_policy).success
