"""The actuator's processes on cgroups of plain files: signals, what they leave behind, and what they weigh."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_cli_components import HEAVY, clean_environment

from support.cgroup_tree import MIB, Node

pytestmark = pytest.mark.integration

SECONDS = 60.0
RESIDENT_MIB = 45
AGENT = f"""
import atexit, sys
import vpa_ippr.cluster.rest as rest
rest.in_cluster_connection = lambda: rest.Connection(base_url="http://127.0.0.1:1")
heavy = {(*HEAVY, "sklearn", "scipy", "statsmodels", "apscheduler", "dask")!r}
atexit.register(lambda: print("loaded", sorted({{name.partition(".")[0] for name in sys.modules}} & set(heavy)), file=sys.stderr))
from vpa_ippr.cli.main import run
sys.argv[0] = "vpa-ippr"
run()
"""


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def start(node: Node, folder: Path, command: str, *arguments: object, program: str | None = None) -> subprocess.Popen[str]:
    begin = ["-c", program] if program else ["-m", "vpa_ippr.cli"]
    place = ["--cgroup-root", node.root, "--proc", node.proc, "--state-dir", node.journal]
    words = [sys.executable, *begin, "actuator", *([command] if command else []), *place, *arguments]
    return subprocess.Popen([str(word) for word in words], env=clean_environment(folder), stdout=-1, stderr=-1, text=True)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, f"never came: {what}"
        time.sleep(0.02)


def begin_shrink(node: Node, folder: Path) -> subprocess.Popen[str]:
    """Until its guard stands; what is reclaimed from plain files is never freed, so it gives up after a few seconds by itself."""
    quick = ["--observe", "1s", "--settle", "1s", "--stability", "1s"]
    process = start(node, folder, "shrink", "--cgroup", node.db, "--target", "300Mi", "--commit", "direct", *quick)
    wait_for(lambda: node.high() != "max" or process.poll() is not None, "a guard")
    assert process.poll() is None, process.communicate()
    assert int(node.high()) > 400 * MIB
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_shrink_that_is_interrupted_puts_everything_back(node, tmp_path, number):
    process = begin_shrink(node, tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (1, "system.slice/db.scope: Aborted (AbortRequested): stopped by a signal\n")
    assert "Traceback" not in err
    assert (node.high(), node.entries()) == ("max", [])


def test_shrink_that_is_killed_is_put_back_by_restore(node, tmp_path):
    process = begin_shrink(node, tmp_path)
    assert node.run("restore").out == "system.slice/db.scope: left alone: its owner lives\n"
    process.kill()
    process.communicate()
    assert node.high() != "max"
    assert node.run("restore").out == "system.slice/db.scope: memory.high is back at max\n"
    assert (node.high(), node.entries()) == ("max", [])


def test_shrink_that_is_killed_is_put_back_by_the_dead_man(node, tmp_path):
    guard = start(node, tmp_path, "guard")
    process = begin_shrink(node, tmp_path)
    process.kill()
    process.communicate()
    wait_for(lambda: not node.entries(), "an empty journal")
    assert node.high() == "max"
    resident = resident_mib(guard.pid)
    guard.terminate()
    _, err = guard.communicate(timeout=SECONDS)
    assert guard.returncode == 0
    assert "journal entry without its owner" in err
    assert resident < RESIDENT_MIB


def test_agent_puts_back_what_its_predecessor_left_and_stays_small(node, tmp_path):
    """Without the API: what is on the node comes first, and needs nobody."""
    container_id = "ab" * 32
    path = f"kubepods/burstable/pod0a/{container_id}"
    directory = node.add(path)
    node.leave("s1", path, cgroup_path=None, pod_uid="0a", container_id=f"containerd://{container_id}", qos_class="Burstable").close()
    node.leave("s2").close()
    agent = start(node, tmp_path, "", "--node-name", "node-a", program=AGENT)
    wait_for(lambda: not node.entries() or agent.poll() is not None, "an empty journal")
    assert agent.poll() is None, agent.communicate()
    assert ((directory / "memory.high").read_text().splitlines()[0], node.high()) == ("max", "max")
    resident = resident_mib(agent.pid)
    agent.terminate()
    _, err = agent.communicate(timeout=SECONDS)
    assert agent.returncode == 0
    assert err.splitlines()[-1] == "loaded []"
    assert resident < RESIDENT_MIB


def resident_mib(pid: int) -> float:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024


def test_progress_on_a_terminal_is_one_line_that_is_rewritten(node, tmp_path):
    ours, theirs = os.openpty()
    place = ["--cgroup-root", node.root, "--proc", node.proc, "--state-dir", node.journal]
    words = ["shrink", *place, "--cgroup", node.db, "--target", "300Mi", "--dry-run", "--observe", "2s"]
    command = [sys.executable, "-m", "vpa_ippr.cli", "actuator", *map(str, words)]
    done = subprocess.run(command, env=clean_environment(tmp_path), stdout=-1, stderr=theirs, text=True, timeout=SECONDS, check=True)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.stdout.startswith("system.slice/db.scope: would be shrunk: ")
    assert shown.count("\n") == 1
    looks = shown.split("\r")[1:]
    assert len(looks) >= 3
    assert all("400.0 MiB used, 300.0 MiB wanted" in look for look in looks if look.strip())
