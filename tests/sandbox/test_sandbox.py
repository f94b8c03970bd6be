"""The sandbox: results, limits, threads, and recovery from a dead server."""

import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rllib_llm.errors import ConfigError, MissingExtraError
from rllib_llm.sandbox import Sandbox, SandboxError, fork_server, probe, support
from rllib_llm.sandbox.sandbox import _runner


@pytest.mark.parametrize(
    ("code", "stdout", "status"),
    [
        ("print(6 * 7)", "42\n", "ok"),
        ("", "", "ok"),
        ("print(a + b[0])", "3\n", "ok"),
        ("print(input() + input())", "xy\n", "ok"),
        ("import sys; print(sys.stdin.read())", "x\ny\n\n", "ok"),
        ("print(open(0).read(), end='')", "x\ny\n", "ok"),
        ("print('\\u00e9\\U0001f600')", "\u00e9\U0001f600\n", "ok"),
        ("print('\\ud800')", "\\ud800\n", "ok"),
        ("print(1)\nraise SystemExit", "1\n", "ok"),
        ("import sys; print(1); sys.exit(2)", "1\n", "error"),
        ("print(1)\n1 / 0", "1\n", "error"),
        ("print(1", "", "error"),
        ("\ud800", "", "error"),
        ("print(1)\0", "", "error"),
        ("import os; os._exit(0)", "", "ok"),
        ("if __name__ == '__main__': print(1)", "1\n", "ok"),
        ("print(__import__('sys').argv)", "['<program>']\n", "ok"),
        ("class A: pass\nprint(A())", None, "ok"),
        (
            "from dataclasses import dataclass\n@dataclass\nclass A:\n  a: int\nA(1)",
            "",
            "ok",
        ),
    ],
)
def test_programs_print_and_end(sandbox, code, stdout, status):
    result = sandbox.run(code, "x\ny\n", {"a": 1, "b": [2]})
    assert result.status == status, result
    assert result.ok == (status == "ok")
    assert stdout is None or result.stdout == stdout
    assert 0 < result.seconds < 5


def test_tracebacks_show_the_program_and_no_paths(sandbox):
    code = "import json\ndef load(text):\n    return json.loads(text)\nload('{')"
    stderr = sandbox.run(code).stderr
    assert stderr.splitlines()[:3] == [
        "Traceback (most recent call last):",
        '  File "<program>", line 4, in <module>',
        "    load('{')",
    ]
    assert "JSONDecodeError: Expecting property name" in stderr.splitlines()[-1]
    assert "/" not in stderr
    chained = "try:\n    1 / 0\nexcept Exception as e:\n    raise KeyError(1) from e"
    stderr = sandbox.run(chained).stderr
    assert "ZeroDivisionError" in stderr
    assert stderr.endswith("KeyError: 1\n")


def test_a_program_prints_the_same_every_time(sandbox):
    code = "import random; print(set('abcdefgh'), random.random(), hash('a'))"
    first = sandbox.run(code).stdout
    assert [sandbox.run(code).stdout for _ in range(3)] == [first] * 3
    _runner("fork_server").close()
    assert sandbox.run(code).stdout == first  # from a new server, too


def test_programs_do_not_see_the_state_of_earlier_ones(sandbox):
    sandbox.run("import builtins, math, sys; builtins.x = math.pi = sys.x = 3")
    after = "import math, sys; print(math.pi > 3.1, hasattr(sys, 'x')); x"
    result = sandbox.run(after)
    assert result.stdout == "True False\n"
    assert "NameError" in result.stderr


def test_limits_of_a_sandbox(sandbox):
    with Sandbox(memory_mb=16, max_output=100) as small:
        assert small.run("x = bytes(10 ** 7)").ok
        assert small.run("x = bytes(2 * 10 ** 7)").status == "memory"
        assert small.run("print('x' * 99)").ok
        result = small.run("print('x' * 100)")
        assert (result.status, result.stdout) == ("output", "x" * 100)
    began = time.monotonic()
    assert sandbox.run("while True: pass", timeout_s=0.2).status == "timeout"
    assert time.monotonic() - began < 5
    # Output from before the limit is kept.
    result = sandbox.run("print(1, flush=True)\nwhile True: pass", timeout_s=0.2)
    assert result.stdout == "1\n"


def test_threads_share_a_server(sandbox):
    sandbox.run("1")
    starts = _runner("fork_server").starts
    with ThreadPoolExecutor(8) as pool:
        squares = pool.map(lambda n: sandbox.run(f"print({n} ** 2)").stdout, range(60))
        assert list(squares) == [f"{n * n}\n" for n in range(60)]
    assert _runner("fork_server").starts == starts


def test_a_dead_server_is_replaced_and_the_call_repeated(sandbox):
    sandbox.run("1")
    server = _runner("fork_server")
    first, starts = server.pid, server.starts
    os.kill(first, signal.SIGKILL)
    assert sandbox.run("print(2)").stdout == "2\n"
    assert (server.pid != first, server.starts) == (True, starts + 1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sandbox.run, "import time; time.sleep(0.5); print(3)")
        time.sleep(0.2)
        os.kill(server.pid, signal.SIGKILL)
        assert running.result().stdout == "3\n"


def test_killing_a_program_from_outside_raises(sandbox, monkeypatch):
    report = {"exit": -signal.SIGKILL, "timed_out": False, "seconds": 0.1, "cpu_s": 0.0}
    monkeypatch.setattr(fork_server, "_report", lambda channel: report)
    with pytest.raises(SandboxError, match="killed the program from outside"):
        sandbox.run("1")


def test_failed_isolation_raises(sandbox, monkeypatch):
    header = b'{"timeout_s": 1, "cpu_s": "no number", "memory_bytes": 1}'
    monkeypatch.setattr(fork_server, "_header", lambda request: header)
    with pytest.raises(SandboxError, match="could not be isolated.*ValueError"):
        sandbox.run("print('never')")
    monkeypatch.undo()
    assert sandbox.run("print(1)").ok


def test_closing_and_pickling(sandbox):
    settings = Sandbox(timeout_s=0.5, memory_mb=64, max_output=10)
    copy = pickle.loads(pickle.dumps(settings))
    assert vars(copy) == vars(settings)
    assert copy.run("print('x' * 10)").status == "output"
    copy.close()
    with pytest.raises(ConfigError, match="closed"):
        copy.run("1")
    assert settings.run("1").ok


@pytest.mark.sandbox
def test_the_server_ends_with_its_last_user_and_with_its_process():
    code = (
        "import os\nfrom rllib_llm.sandbox import Sandbox\n"
        "from rllib_llm.sandbox.sandbox import _runner\n"
        "a, b = Sandbox(), Sandbox()\na.run('1'), b.run('1')\n"
        "server = _runner('fork_server')\npid = server.pid\na.close()\n"
        "assert server.pid == pid\nb.close()\nassert server.pid is None\n"
        "child = os.fork()\n"
        "if child == 0:\n    os._exit(0 if Sandbox().run('1').ok else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "Sandbox().run('1')\nprint(server.pid, flush=True)\nos._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{done.stdout.strip()}"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_isolation_without_root():
    """Run as a user other than root, as in a container: all other steps apply."""
    code = (
        "import os, socket, sys\nfrom rllib_llm.sandbox import jail\n"
        # After the imports: the interpreter may be readable by root only.
        "os.setgroups([]); os.setresgid(12345, 12345, 12345)\n"
        "os.setresuid(12345, 12345, 12345)\n"
        "wall, me = jail.Jail(), os.getpid()\n"
        "acts = [lambda: open('/dev/null'), socket.socket, os.fork, os.getlogin,\n"
        "        lambda: os.kill(me, 9), lambda: os.stat('/')]\n"
        "if (child := os.fork()) == 0:\n"
        "    wall.enter(jail.Limits(5, 10 ** 9), me, kept=3)\n"
        "    got = 0\n"
        "    for act in acts:\n"
        "        try:\n            act()\n            got += 1\n"
        "        except OSError:\n            pass\n"
        "    os._exit(got)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.sandbox
def test_each_isolation_step_suffices_alone(tmp_path):
    """Apply Landlock without seccomp, and limits without either, in a child each."""
    code = (
        "import os, socket, sys\nfrom rllib_llm.sandbox import jail\n"
        "def nothing(*args): pass\n"
        "if sys.argv[1] == 'landlock': jail._set_limits = nothing\n"
        "jail.Jail._install_filter = nothing\n"
        "jail.Jail().enter(jail.Limits(5, 10 ** 8), os.getppid(), kept=3)\n"
        "for act in (lambda: open('/etc/passwd'), lambda: os.listdir('/'),\n"
        "            lambda: os.open(sys.argv[2], os.O_CREAT)):\n"
        "    try:\n        act()\n        sys.exit('got it')\n"
        "    except OSError as error:\n        print(error.errno)\n"
    )
    for wall, numbers in (("landlock", "13 13 13"), ("limits", "24 24 24")):
        done = subprocess.run(
            [sys.executable, "-c", code, wall, str(tmp_path / "new")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stdout.split() == numbers.split(), (wall, done.stderr)


@pytest.mark.sandbox
def test_the_filter_of_system_calls_holds_alone():
    """Neither files nor executable memory, without Landlock and without limits."""
    code = (
        "import mmap, os\nfrom rllib_llm.sandbox import jail\n"
        "filtered = jail.Jail()\n"
        "jail._libc.prctl(jail._PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)\n"
        "filtered._install_filter()\n"
        "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE).close()\n"
        "executable = mmap.PROT_READ | mmap.PROT_EXEC\n"
        "for act in (lambda: open('/etc/passwd'), lambda: os.listdir('/'),\n"
        "            lambda: mmap.mmap(-1, 4096, prot=executable)):\n"
        "    try:\n        act()\n        print('got it')\n"
        "    except OSError as error:\n        print(error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["1", "1", "1"], done.stderr


@pytest.mark.sandbox
def test_platforms_that_cannot_isolate_are_refused(monkeypatch):
    for found, lacking in (
        ({"landlock": 0}, "lacks Landlock"),
        ({"seccomp": False}, "lacks seccomp filters"),
        ({"machine": "aarch64"}, "x86_64 Linux .this is aarch64 linux."),
    ):
        everything = {**probe(), **found}
        missing = support._missing(everything)
        monkeypatch.setattr(support, "probe", lambda m=missing: {"missing": m})
        with pytest.raises(ConfigError, match=f"{lacking}.*monty.*rllib-llm.sandbox"):
            Sandbox()
        monkeypatch.undo()
    with pytest.raises(ConfigError, match="Did you mean 'fork_server'"):
        Sandbox("fork_serve")


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "settings",
    [{"timeout_s": 0}, {"memory_mb": 1}, {"max_output": 0}, {"timeout_s": True}],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Sandbox(**settings)


def test_probe_lists_the_backends_that_work():
    found = probe()
    assert found["platform"] == sys.platform
    assert ("fork_server" in found["backends"]) == (not found["missing"])
    assert ("monty" in found["backends"]) == found["monty"]


def test_monty_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    monkeypatch.delitem(sys.modules, "rllib_llm.sandbox.monty", raising=False)
    monkeypatch.setattr("rllib_llm.sandbox.sandbox._runners", {})
    with pytest.raises(MissingExtraError, match="rllib-llm.sandbox"):
        Sandbox("monty")


MONTY = [
    ("print(6 * 7)", "42\n", "ok"),
    ("print(a + b[0])", "3\n", "ok"),
    ("print(1)\n1 / 0", "1\n", "error"),
    ("((", "", "error"),
    ("open('/etc/passwd').read()", "", "error"),
    ("import socket", "", "error"),
    ("while True: pass", "", "timeout"),
    ("import time\ntime.sleep(100)", "", "timeout"),
    ("x = 'a' * 10 ** 10", "", "memory"),
    ("while True: print('x' * 99)", None, "output"),
]


@pytest.mark.parametrize(("code", "stdout", "status"), MONTY)
def test_monty_runs_programs_within_limits(code, stdout, status):
    pytest.importorskip("pydantic_monty")
    with Sandbox("monty", timeout_s=0.5) as sandbox:
        result = sandbox.run(code, inputs={"a": 1, "b": [2]})
        assert result.status == status, result
        assert stdout is None or result.stdout == stdout
        assert status == "ok" or result.stderr
        with pytest.raises(ConfigError, match="stdin"):
            sandbox.run("1", stdin="x")
