"""Whose journal entry it is: by pid, start time and pid namespace."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vpa_ippr.actuator.owner import Owner, is_alive, this_process


def test_this_process_lives():
    owner = this_process()
    assert owner is not None
    assert (owner.pid, is_alive(owner)) == (os.getpid(), True)


def test_pid_that_is_used_again_is_another_process():
    assert is_alive(dataclasses.replace(this_process(), started_ticks=this_process().started_ticks - 1)) is False


def test_other_pid_namespace_says_nothing():
    assert is_alive(dataclasses.replace(this_process(), pid_namespace=1)) is None


@pytest.mark.parametrize("is_waited_for", [False, True], ids=["zombie", "gone"])
def test_dead_process(is_waited_for):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
    owner = Owner(child.pid, int(fields[19]), this_process().pid_namespace)
    assert is_alive(owner) is True
    child.kill()
    child.stdout.read()  # its end is the process' end
    if is_waited_for:
        child.wait()
    else:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_alive(owner) is False
    child.communicate()


def test_name_that_looks_like_fields_is_no_trap(tmp_path):
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/pid").write_text("")
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text("7 (a) Z 1 2) " + " ".join(["S", *map(str, range(4, 53))]))
    namespace = (tmp_path / "self/ns/pid").stat().st_ino
    assert is_alive(Owner(7, 22, namespace), tmp_path) is True
    assert is_alive(Owner(7, 23, namespace), tmp_path) is False


def test_without_a_procfs_nobody_is_known(tmp_path):
    assert this_process(tmp_path) is None
    assert is_alive(Owner(1, 1, 1), tmp_path) is None
