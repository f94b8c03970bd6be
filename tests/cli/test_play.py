"""``rllib-llm play`` with the input of a pipe."""

import io

import pytest

from rllib_llm.cli.env_argument import parse_env
from rllib_llm.data.types import TurnResult
from rllib_llm.envs.text_env import TextEnv
from rllib_llm.errors import ConfigError
from rllib_llm.inference.match import assign_agents


class Painter(TextEnv):
    """Environment whose texts contain terminal control sequences."""

    def start(self, rng):
        return "\x1b[2JPaint!\r\u202e"

    def parse(self, completion):
        return completion

    def reply(self, action):
        return TurnResult(f"You said {action}", terminated=True, success=True)

    def expert_action(self, rng):
        return "\x1b]0;red\x07"


@pytest.fixture
def play(call, monkeypatch):
    """Run the command with input lines; return the status and the output."""

    def run(*arguments, typed=()):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{t}\n" for t in typed)))
        status, out, err = call("play", *arguments)
        return status, out + err

    return run


@pytest.mark.parametrize(
    "text, name, options",
    [
        ("guess_number-v0", "guess_number-v0", {}),
        ("guess_number-v0:upper=7", "guess_number-v0", {"upper": 7}),
        ("a.b:Env", "a.b:Env", {}),
        ("a.b:Env:x=1,y=[1, 2],z=a,b", "a.b:Env", {"x": 1, "y": [1, 2], "z": "a,b"}),
    ],
)
def test_environments_with_options(text, name, options):
    assert parse_env(text) == (name, options)


@pytest.mark.parametrize("text", ["", ":upper=3", "upper=3"])
def test_options_without_an_environment_are_rejected(text):
    with pytest.raises(ConfigError, match="does not name an environment"):
        parse_env(text)


def test_a_person_plays_to_the_end(play):
    status, out = play("guess_number-v0:upper=3", typed=["guess 2"] + ["/expert"] * 4)
    assert status == 0
    assert "Find a number from 1 to 3." in out and "reward +1" in out
    assert "terminated after" in out and ", solved" in out
    again = play("guess_number-v0:upper=3", typed=["guess 2"] + ["/expert"] * 4)[1]
    assert out == again  # the task is the same every time
    other = play("guess_number-v0:upper=3", "--task", "5", typed=["/quit"])[1]
    assert "task 5" in other and "stopped after 0 turns" in other


def test_control_characters_do_not_reach_the_terminal(play):
    status, out = play("test_play:Painter", typed=["/expert"])
    assert status == 0 and not set("\x1b\x07\r\u202e") & set(out)
    assert r"\x1b[2JPaint!\r\u202e" in out and r"\x1b]0;red\x07" in out
    assert r"You said \x1b]0;red\x07" in out


def test_end_of_input_quits(play):
    status, out = play("guess_number-v0", typed=["what?"])
    assert status == 0 and "stopped after" in out


def test_undo(play):
    env = "guess_number-v0:upper=31,max_turns=3"
    status, out = play(env, typed=["/undo", "nonsense", "guess 1", "/undo", "/quit"])
    assert status == 0 and "There is nothing to undo." in out
    assert "stopped after 1 turns" in out  # two answers, one undone
    # An undone answer does not count: bisection still finds the number in time.
    typed = ["x", "x", "/undo", "/undo"] + ["/expert"] * 3
    out = play("guess_number-v0:upper=7,max_turns=3", typed=typed)[1]
    assert ", solved" in out


def test_help_and_unknown_commands(play):
    typed = ["/help", "/what", "/actions", "/random", "//x", "two\\", "lines", "/quit"]
    out = play("guess_number-v0:upper=9", typed=typed)[1]
    assert out.count("/undo     undo") == 2 and "Unknown command '/what'" in out
    assert "actions: guess 1, guess 2" in out and "[random] guess" in out
    assert "stopped after 3 turns" in out


def test_several_agents(play):
    agents = ["--player", "alice=expert", "--player", "bob=person"]
    status, out = play("secret_sum-v0", *agents, typed=["/expert"] * 9)
    assert status == 0 and "alice_0 expert, bob_0 person" in out
    assert "return" in out and "(alice_0" in out
    everyone = play("secret_sum-v0", "--player", "*=expert", "--episodes", "2")[1]
    assert everyone.count("--- task") == 2 and everyone.count(", solved") == 2


def test_undo_among_scripts(play):
    agents = ["--player", "alice=random", "--player", "bob=person"]
    typed = ["nonsense", "/undo"] + ["/expert"] * 9
    status, out = play("secret_sum-v0", *agents, typed=typed)
    assert status == 0 and ("solved" in out)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["frozen_lak-v0"], "Did you mean 'frozen_lake-v0'"),
        (["frozen_lake-v0:sise=4"], "Did you mean 'size'"),
        (["secret_sum-v0", "--player", "alise=person"], "Did you mean 'alice'"),
        (["secret_sum-v0", "--player", "alice=persn"], "Did you mean 'person'"),
        (["secret_sum-v0", "--player", "alice=policy"], "Name a RUN"),
        (["secret_sum-v0", "--player", "alice"], "AGENT=PLAYER"),
        (["secret_sum-v0", "/no/such/run"], "does not exist"),
    ],
)
def test_errors_exit_with_status_1_and_a_remedy(play, arguments, message):
    status, out = play(*arguments)
    assert status == 1 and message in out and "Traceback" not in out


def test_default_players():
    assert assign_agents(["x", "y", "z"], {}, None) == {
        "x": "person",
        "y": "random",
        "z": "random",
    }
