"""The helper process that makes writes which may block, and its watchdog; on plain files, pipes and a stand-in that hangs."""

import errno
import os
import resource
import sys

import pytest

from vpa_ippr.actuator import helper as helper_module
from vpa_ippr.actuator import reclaim_helper
from vpa_ippr.actuator.helper import HelperProcess, ReclaimKind
from vpa_ippr.api.errors import ActuatorError

CHUNK = reclaim_helper.CHUNK_BYTES


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "memory.reclaim"
    path.write_text("")
    fd = os.open(path, os.O_WRONLY)
    yield path, fd
    os.close(fd)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Runs that text instead of the helper."""

    def install(text: str) -> None:
        script = tmp_path / "stand_in.py"
        script.write_text(text)
        monkeypatch.setattr(reclaim_helper, "__file__", str(script))

    return install


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (ReclaimKind.FILES, f"{CHUNK} swappiness=04096 swappiness=0"),
        (ReclaimKind.FILES_IF_KNOWN, f"{CHUNK} swappiness=04096 swappiness=0"),
        (ReclaimKind.ANY, f"{CHUNK}4096"),
    ],
)
def test_reclaim_is_written_in_chunks(target, kind, written):
    path, fd = target
    assert HelperProcess().reclaim(fd, CHUNK + 4096, kind) == 0
    assert path.read_text() == written


def test_limit_is_written(target):
    path, fd = target
    assert HelperProcess().set_limit(fd, "max") == 0
    assert path.read_text() == "max\n"


def test_page_cache_is_left_by_a_process_that_joined_first(target, tmp_path):
    path, fd = target
    procs = os.open(tmp_path / "cgroup.procs", os.O_WRONLY | os.O_CREAT)
    assert HelperProcess().fill(procs, fd, 2 << 20) == 0
    os.close(procs)
    assert (tmp_path / "cgroup.procs").read_text() == "0"
    assert path.stat().st_size == 2 << 20


def test_errno_comes_back():
    reader, writer = os.pipe()
    try:
        assert HelperProcess().reclaim(reader, 4096, ReclaimKind.ANY) == errno.EBADF
        assert HelperProcess().set_limit(reader, "max") == errno.EBADF
        assert HelperProcess().fill(reader, writer, 4096) == errno.EBADF
    finally:
        os.close(reader)
        os.close(writer)


def test_unknown_arguments_are_an_error(monkeypatch):
    monkeypatch.setattr(reclaim_helper.signal, "alarm", lambda _seconds: 0)
    assert reclaim_helper.main(["reclaim", "1"]) == errno.EINVAL


@pytest.mark.parametrize(
    ("kind", "code", "written"),
    [("files-if-known", 0, [b"8192"]), ("files", errno.ENOTSUP, []), ("any", 0, [b"8192"])],
)
def test_kernel_that_does_not_know_the_option(monkeypatch, kind, code, written):
    seen = []

    def write(_fd, data):
        if b"swappiness" in data:
            raise OSError(errno.EINVAL, "Invalid argument")
        seen.append(data)

    monkeypatch.setattr(reclaim_helper.os, "write", write)
    assert reclaim_helper.reclaim(9, 8192, kind) == code
    assert seen == written


def test_first_failing_chunk_ends_it(monkeypatch):
    seen = []

    def write(_fd, data):
        seen.append(data)
        if len(seen) == 2:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(reclaim_helper.os, "write", write)
    assert reclaim_helper.reclaim(9, 3 * CHUNK, "any") == errno.EAGAIN
    assert len(seen) == 2


def test_helper_inherits_its_descriptor_and_nothing_else(target, stand_in, monkeypatch):
    path, fd = target
    monkeypatch.setenv("SECRET", "s3cret")
    stand_in(
        "import os, sys\n"
        "fds = [f for f in range(64) if os.path.exists(f'/proc/self/fd/{f}')]\n"
        "others = [os.readlink(f'/proc/self/fd/{f}') for f in fds if f != int(sys.argv[2])]\n"
        "os.write(int(sys.argv[2]), repr((sorted(set(others)), 'SECRET' in os.environ, os.getcwd())).encode())\n"
    )
    leaked, _ = os.pipe()
    os.set_inheritable(leaked, True)
    assert HelperProcess().set_limit(fd, "max") == 0
    os.close(leaked)
    os.close(_)
    assert path.read_text() == repr((["/dev/null"], False, "/"))


def test_helper_that_hangs_is_killed(target, stand_in):
    stand_in("import time\ntime.sleep(60)\n")
    assert HelperProcess(timeout_seconds=0.05).set_limit(target[1], "max") == errno.EAGAIN


def test_helper_that_another_hand_kills_did_a_part(target, stand_in):
    stand_in("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    assert HelperProcess().set_limit(target[1], "max") == errno.EAGAIN


def test_helper_ends_by_itself_when_nobody_is_left_to_kill_it(target, monkeypatch):
    armed = []
    monkeypatch.setattr(reclaim_helper.signal, "alarm", armed.append)
    assert reclaim_helper.main(["set", str(target[1]), "max"]) == 0
    assert armed == [reclaim_helper.LIFETIME_SECONDS]
    assert reclaim_helper.LIFETIME_SECONDS > helper_module.TIMEOUT_SECONDS


class Unkillable:
    """A process in uninterruptible I/O, as far as its parent can see."""

    pid = 4711

    def __init__(self, *_args, **_kwargs):
        self.kills = 0
        self.code = None

    def wait(self, timeout):
        raise helper_module.subprocess.TimeoutExpired("helper", timeout)

    def kill(self):
        self.kills += 1

    def poll(self):
        return self.code


def test_helper_that_cannot_be_killed_keeps_others_off_its_file_until_it_has_gone(target, monkeypatch, tmp_path):
    started = []

    def start(*args, **kwargs):
        started.append(Unkillable())
        return started[-1]

    monkeypatch.setattr(helper_module.subprocess, "Popen", start)
    helper, (_, fd) = HelperProcess(), target
    assert helper.reclaim(fd, 4096, ReclaimKind.ANY) == errno.EAGAIN
    assert helper.reclaim(fd, 4096, ReclaimKind.ANY) == errno.EAGAIN
    assert (len(started), started[0].kills) == (1, 1)
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    helper.reclaim(other, 4096, ReclaimKind.ANY)
    os.close(other)
    assert len(started) == 2
    started[0].code = -9
    helper.reclaim(fd, 4096, ReclaimKind.ANY)
    assert len(started) == 3


def test_machine_that_cannot_start_a_process_is_one_clear_error(target, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ActuatorError, match="cannot start the helper process") as caught:
        HelperProcess().set_limit(target[1], "max")
    assert caught.value.reason == "WriteFailed"


def test_start_costs_little(target):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(5):
        HelperProcess().set_limit(target[1], "max")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 5 < 0.2
