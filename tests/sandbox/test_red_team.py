"""Hostile programs achieve nothing, and the server keeps serving."""

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hostile import BOMBS, NETWORK, READERS, WRITERS, C

from rllib_llm.sandbox import STATUSES
from rllib_llm.sandbox.jail import ALLOWED_CALLS

OTHERS = "the-other-program"  # what another program holds at the same time


def attack(sandbox, witness, programs):
    """Run programs from several threads, beside one that holds a secret."""

    def run(item):
        name, code = item
        return name, sandbox.run(code, stdin="x")

    holder = f"secret = {OTHERS!r}\nprint(secret)\nimport time; time.sleep(0.5)"
    with ThreadPoolExecutor(4) as pool:
        held = pool.submit(sandbox.run, holder, OTHERS, {"held": OTHERS})
        results = list(pool.map(run, programs.items()))
        assert held.result().stdout == f"{OTHERS}\n"
    for name, result in results:
        output = result.stdout + result.stderr.replace("print('ESCAPED", "")
        escaped = [line for line in output.splitlines() if line.startswith("ESCAPED")]
        assert not escaped, f"{name}: {result}"
        assert "sing-4f1c0b" not in output, name
        assert result.status in ("ok", "error", "killed", "memory"), f"{name}: {result}"
    witness.check()
    assert sandbox.run("print(input())", stdin="alive").stdout == "alive\n"
    return dict(results)


def test_sample_of_hostile_programs_fails(sandbox, witness):
    everything = witness.scene.programs()
    names = random.Random(0).sample(sorted(everything), 120)
    attack(sandbox, witness, {name: everything[name] for name in names})


@pytest.mark.slow
def test_all_hostile_programs_fail(sandbox, witness):
    everything = witness.scene.programs()
    assert len(everything) > 400
    results = attack(sandbox, witness, everything)
    # They failed because of the sandbox, not because of a typing error.
    wrong = {
        name: r.stderr
        for name, r in results.items()
        if any(e in r.stderr for e in ("SyntaxError", "NameError", "AttributeError"))
    }
    # By intention; the second is a ValueError before Python 3.11.4.
    assert set(wrong) - {"inside nul"} == {"inside deep"}


def test_unlisted_system_calls_are_refused(sandbox, witness):
    """Try every number of the kernel's table and beyond, with harmless arguments."""
    conditional = {9, 10, 72}  # mmap, mprotect, fcntl
    # Linux lets uretprobe and uprobe pass all filters; they do nothing by themselves.
    exempt = {335, 336}
    listed = set(ALLOWED_CALLS.values()) | conditional | exempt
    refused = sorted(set(range(520)) - listed)
    x32 = [number | 0x40000000 for number in range(0, 550, 7)]
    code = C + (
        "for n in numbers:\n"
        "    ctypes.set_errno(0)\n"
        "    if call(n, -1, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1:\n"
        "        print('ESCAPED', n, ctypes.get_errno())\n"
        "print('done')"
    )
    result = sandbox.run(code, inputs={"numbers": refused + x32})
    assert result.stdout == "done\n", result
    witness.check()


def test_sample_of_exhausting_programs_gets_a_status(sandbox, witness):
    fast = ["while", "stubborn", "bytes", "malloc", "print", "puts", "recursion"]
    check_bombs(sandbox, witness, fast)


@pytest.mark.slow
def test_all_exhausting_programs_get_a_status(sandbox, witness):
    check_bombs(sandbox, witness, BOMBS)


def check_bombs(sandbox, witness, names):
    for name in names:
        code, status = BOMBS[name]
        seconds = 0.3 if status == "timeout" else 10.0
        result = sandbox.run(code, timeout_s=seconds)
        assert result.status == status, f"{name}: {result.status} {result.stderr}"
        assert result.status in STATUSES
        assert "ESCAPED" not in result.stdout
        assert len(result.stdout) <= sandbox.max_output
        assert len(result.stderr) <= 2_000
    witness.check()


def outside(code):
    """Run a program without a sandbox; return whether it claims to have escaped."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    return any(line.startswith("ESCAPED") for line in done.stdout.splitlines())


@pytest.mark.slow
def test_hostile_programs_succeed_without_a_sandbox(witness, tmp_path):
    """Check the control: programs that must fail inside succeed outside."""
    (tmp_path / "canary").write_text("1")
    failed = []
    for name, code in READERS.items():
        if name != "dlopen" and not outside(
            f"PATH = {str(tmp_path / 'canary')!r}\n{code}"
        ):
            failed.append(name)
    if os.path.exists("/tmp/sandbox_link"):
        os.unlink("/tmp/sandbox_link")
    for i, (name, code) in enumerate(WRITERS.items()):
        folder = tmp_path / str(i)
        folder.mkdir()
        canary = folder.with_suffix(".canary")
        canary.write_text("1")
        head = f"PATH = {str(folder / 'trace')!r}\nCANARY = {str(canary)!r}\n"
        if not outside(head + code):
            failed.append(name)
    for name in ("tcp", "pair", "libc", "raw", "_socket"):
        if not outside(NETWORK[name]):
            failed.append(name)
    if os.path.exists("/dev/shm/sandbox"):
        os.unlink("/dev/shm/sandbox")
    # Some need rights or file systems that not every machine has.
    assert len(failed) <= 8, failed
    witness.check()
