"""Time limits, processes and coroutines of tools."""

from __future__ import annotations

import os
import time

import pytest
import tool_toys as toys

from rllib_llm.tools import ToolSet, ToolUnavailable
from rllib_llm.tools.tool_set import tally


def run(sources, text: str):
    """Run the calls in a text of tags."""
    tools = ToolSet(sources, tool_format="tags")
    return tools.run(tools.parse(text))


def test_a_late_thread_is_abandoned_and_the_model_reads_a_timeout():
    began = time.perf_counter()
    late, early = run(toys.sleepy, "<sleepy>60</sleepy><sleepy>0</sleepy>")
    assert time.perf_counter() - began < 30
    assert late.status == "timeout"
    assert late.text == "Error: sleepy took longer than 0.2 s."
    assert early.text == "awake"
    assert tally([late, early])["tool_timeouts"] == 1


def test_the_model_reads_the_exception_of_a_tool_with_a_time_limit():
    (result,) = run(toys.impatient, "<impatient>x</impatient>")
    assert (result.status, result.text) == ("error", "Error: no 'x' here")


def test_coroutines_of_a_turn_run_at_once_and_results_keep_their_order():
    toys.calls.clear()
    results = run(
        [toys.nap, toys.add], "<nap>0.15</nap><nap>0.1</nap><add>1, 2</add><nap>0</nap>"
    )
    assert [r.text for r in results] == ["awake", "awake", "3", "awake"]
    # The second started before the first ended; the last waited for the tool between.
    assert toys.calls == ["nap", "nap", "woke", "woke", "nap", "woke"]


def test_a_coroutine_that_is_late_is_cancelled():
    toys.calls.clear()
    (result,) = run(toys.nap, "<nap>0.6</nap>")
    assert result.status == "timeout"
    time.sleep(0.5)
    assert toys.calls == ["nap"]


def test_a_coroutine_that_blocks_the_loop_does_not_block_others():
    began = time.perf_counter()
    assert run(toys.block, "<block>20</block>")[0].status == "timeout"
    assert run(toys.nap, "<nap>0</nap>")[0].text == "awake"
    assert time.perf_counter() - began < 15


def test_coroutines_inside_a_running_loop():
    import asyncio

    async def notebook():
        return run(toys.nap, "<nap>0</nap>")

    assert asyncio.run(notebook())[0].text == "awake"


def test_a_process_is_reused_and_its_output_is_separated():
    first, second, message = run(
        toys.in_process,
        "<in_process>pid</in_process>" * 2 + "<in_process>a</in_process>",
    )
    assert first.text == second.text != str(os.getpid())
    assert message.text == "A"


def test_a_process_that_is_late_is_killed_and_replaced():
    pid, late, after = run(
        toys.in_process,
        "<in_process>pid</in_process><in_process>hang</in_process>"
        "<in_process>pid</in_process>",
    )
    assert late.status == "timeout"
    assert after.text != pid.text
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.text), 0)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise", "Error: ValueError: no such thing"),
        ("exit", "Error: SystemExit: 1"),
        ("die", "Error: its process died with status 7"),
    ],
)
def test_errors_in_a_process_become_results(what, message):
    (result,) = run(toys.in_process, f"<in_process>{what}</in_process>")
    assert (result.text, result.status) == (message, "error")


def test_a_process_can_raise_tool_unavailable():
    with pytest.raises(ToolUnavailable, match="no route"):
        run(toys.in_process, "<in_process>unavailable</in_process>")


def test_importing_tools_is_light():
    import subprocess
    import sys

    code = (
        "import sys, rllib_llm.tools, rllib_llm.envs.tool_env\n"
        "assert not {'torch', 'ray', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
