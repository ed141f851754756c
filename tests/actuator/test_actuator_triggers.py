"""Pressure triggers. Sockets with urgent data stand in for armed pressure files: the kernel's poll says POLLPRI of both."""

import errno
import os
import select
import socket
from pathlib import Path

import pytest

from vpa_ippr.actuator import triggers as triggers_module
from vpa_ippr.actuator.triggers import READY, Pressure, PressureTriggers


@pytest.fixture
def pair():
    """A descriptor that polls POLLPRI, once for each call, and how to make it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    with far:
        yield near.detach(), lambda: far.send(b"!", socket.MSG_OOB)


def test_what_fires_is_told_and_ends_the_wait(pair):
    fd, fire = pair
    armed = PressureTriggers({fd: Pressure.MEMORY_FULL})
    assert armed.wait(0.0) == set()
    fire()
    assert armed.wait(60.0) == {Pressure.MEMORY_FULL}
    armed.close()


def test_caller_that_polls_several_hands_in_what_it_got(pair):
    fd, fire = pair
    armed = PressureTriggers({fd: Pressure.IO_SOME})
    poll = select.poll()
    for fileno in armed.filenos():
        poll.register(fileno, READY)
    fire()
    events = poll.poll(60_000)
    assert armed.fired([*events, (fd + 1, select.POLLPRI), (fd, 0)]) == {Pressure.IO_SOME}
    armed.close()


def test_removed_cgroup_is_told_once_and_its_descriptor_closed():
    reader, writer = os.pipe()
    os.close(reader)
    armed = PressureTriggers({writer: Pressure.MEMORY_SOME})
    assert armed.wait(60.0) == {Pressure.GONE}
    assert armed.filenos() == ()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writer)
    assert armed.wait(0.0) == set()


def test_both_bits_mean_gone():
    """What kernfs says of a file whose cgroup was removed."""
    reader, writer = os.pipe()
    armed = PressureTriggers({reader: Pressure.MEMORY_SOME})
    assert armed.fired([(reader, select.POLLPRI | select.POLLERR)]) == {Pressure.GONE}
    os.close(writer)


class Kernel:
    """Answers the writes that arm a trigger."""

    def __init__(self, refuse=lambda _text: None) -> None:
        self.refuse = refuse
        self.armed: dict[int, str] = {}

    def write(self, fd: int, data: bytes) -> int:
        text = data.decode().rstrip("\0")
        code = self.refuse(text)
        if code is not None:
            raise OSError(code, os.strerror(code))
        self.armed[fd] = text
        return len(data)


def arm(tmp_path, monkeypatch, kernel: Kernel, names=("memory.pressure", "io.pressure")) -> PressureTriggers:
    for name in names:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(triggers_module.os, "write", kernel.write)
    directory = os.open(tmp_path, os.O_PATH)
    try:
        return PressureTriggers.open(directory)
    finally:
        os.close(directory)


def test_the_three_triggers_of_the_specification(tmp_path, monkeypatch):
    kernel = Kernel()
    armed = arm(tmp_path, monkeypatch, kernel)
    assert sorted(kernel.armed.values()) == ["full 100000 2000000", "some 200000 2000000", "some 500000 2000000"]
    assert set(armed.filenos()) == set(kernel.armed)
    armed.close()
    assert armed.filenos() == ()


@pytest.mark.parametrize(
    ("allowed", "texts"),
    [
        (4_000_000, ["full 200000 4000000", "some 1000000 4000000", "some 400000 4000000"]),
        (1_000_000, ["full 50000 1000000", "some 100000 1000000", "some 250000 1000000"]),
        (10_000_000, ["full 500000 10000000", "some 1000000 10000000", "some 2500000 10000000"]),
    ],
)
def test_other_windows_are_tried_at_the_same_share(tmp_path, monkeypatch, allowed, texts):
    kernel = Kernel(lambda text: None if text.endswith(f" {allowed}") else errno.EINVAL)
    armed = arm(tmp_path, monkeypatch, kernel)
    assert sorted(kernel.armed.values()) == texts
    armed.close()


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP])
def test_without_triggers_nothing_ever_fires(tmp_path, monkeypatch, code):
    before = len(list(Path("/proc/self/fd").iterdir()))
    armed = arm(tmp_path, monkeypatch, Kernel(lambda _text: code))
    assert armed.filenos() == ()
    assert armed.wait(0.0) == set()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_missing_file_leaves_the_others(tmp_path, monkeypatch):
    kernel = Kernel()
    armed = arm(tmp_path, monkeypatch, kernel, names=("memory.pressure",))
    assert len(armed.filenos()) == 2
    armed.close()
