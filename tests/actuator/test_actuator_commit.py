"""Setting memory.max: never above the guard's usage, never with processes left frozen, never half."""

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_actuator_cgroupfs import make_cgroup

from vpa_ippr.actuator import commit as commit_module
from vpa_ippr.actuator.cgroup_files import CgroupFiles
from vpa_ippr.actuator.commit import Change, LimitFiles, commit, withdraw
from vpa_ippr.actuator.policy import MIB
from vpa_ippr.api.errors import ActuatorError

CHANGE = Change(target_bytes=256 * MIB, guard_bytes=248 * MIB, original_bytes=512 * MIB, page_bytes=4096)


class FakeLimit:
    """A cgroup whose usage follows a list, one value a look, and that can fail at any call."""

    def __init__(self, usages=(200,), fails_at=(), freezes=True, reads_back=None):
        self.usages = itertools.chain(usages, itertools.repeat(usages[-1]))
        self.fails_at = list(fails_at)
        self.freezes = freezes
        self.reads_back = reads_back
        self.max = 512 * MIB
        self.frozen = False
        self.calls: list[str] = []
        self.used_at_write: int | None = None
        self.seen = 0

    def _call(self, name):
        self.calls.append(name)
        if name in self.fails_at:
            self.fails_at.remove(name)
            raise ActuatorError(f"{name}: Device or resource busy", reason="WriteFailed")

    def usage_bytes(self):
        self._call("usage")
        self.seen = int(next(self.usages) * MIB)
        return self.seen

    def max_bytes(self):
        self._call("max")
        return self.max if self.reads_back is None else self.reads_back

    def set_max(self, max_bytes):
        self._call("set")
        self.max = max_bytes
        if max_bytes == CHANGE.target_bytes:
            self.used_at_write = self.seen

    def freeze(self):
        self.frozen = True
        self._call("freeze")
        return self.freezes

    def thaw(self):
        self._call("thaw")
        self.frozen = False


def run(port, change=CHANGE):
    announced: list[bool] = []
    why = commit(port, change, announced.append)
    return why, announced


def test_strict_commit_freezes_looks_again_and_thaws_before_it_reads_back():
    port = FakeLimit()
    assert run(port) == (None, [True, False])
    assert port.calls == ["usage", "freeze", "usage", "set", "thaw", "max"]
    assert port.max == CHANGE.target_bytes


def test_commit_without_freezing():
    port = FakeLimit()
    loose = Change(**{field: getattr(CHANGE, field) for field in Change.__slots__} | {"is_strict": False})
    assert run(port, loose) == (None, [])
    assert port.calls == ["usage", "set", "max"]


@pytest.mark.parametrize(
    ("usages", "freezes", "why"),
    [((249,), True, "above the guard"), ((200, 249), True, "above the guard"), ((200,), False, "could not be frozen")],
    ids=["before", "grown-until-frozen", "does-not-freeze"],
)
def test_not_now(usages, freezes, why):
    port = FakeLimit(usages, freezes=freezes)
    answer, announced = run(port)
    assert why in answer
    assert (port.max, port.frozen) == (512 * MIB, False)
    assert announced in ([], [True, False])


@pytest.mark.parametrize("original", [512 * MIB, None], ids=["limit", "no-limit"])
@pytest.mark.parametrize("reads_back", [512 * MIB, 255 * MIB], ids=["undone", "other"])
def test_limit_that_is_not_read_back_is_put_back(original, reads_back):
    port = FakeLimit(reads_back=reads_back)
    with pytest.raises(ActuatorError, match="was put back") as caught:
        run(port, Change(**{field: getattr(CHANGE, field) for field in Change.__slots__} | {"original_bytes": original}))
    assert caught.value.reason == "CommitFailed"
    assert (port.max, port.frozen) == (original, False)


@given(
    usages=st.lists(st.floats(0, 512), min_size=1, max_size=4),
    fails_at=st.lists(st.sampled_from(["usage", "max", "set", "freeze", "thaw"]), max_size=2),
    freezes=st.booleans(),
    strict=st.booleans(),
)
def test_whatever_fails_nothing_is_left_frozen_and_no_limit_is_set_below_usage(usages, fails_at, freezes, strict):
    port = FakeLimit(usages, fails_at, freezes)
    change = Change(**{field: getattr(CHANGE, field) for field in Change.__slots__} | {"is_strict": strict})
    try:
        why, _ = run(port, change)
    except ActuatorError:
        why = "failed"
    assert not port.frozen
    assert port.used_at_write is None or port.used_at_write <= change.guard_bytes
    if why is None:
        assert port.max == change.target_bytes


def test_thaw_that_fails_for_good_is_told():
    port = FakeLimit(fails_at=["thaw"] * 3)
    with pytest.raises(ActuatorError, match="thaw"):
        run(port)


def test_freeze_that_cannot_be_announced_does_not_happen():
    def refuse(_frozen):
        raise ActuatorError("journal: No space left on device", reason="JournalUnwritable")

    port = FakeLimit()
    with pytest.raises(ActuatorError, match="No space"):
        commit(port, CHANGE, refuse)
    assert "freeze" not in port.calls
    assert port.max == 512 * MIB


@pytest.mark.parametrize(("found", "after"), [(256, 512), (300, 300)], ids=["ours", "by-another-hand-since"])
def test_withdraw(found, after):
    port = FakeLimit()
    port.max = found * MIB
    withdraw(port, CHANGE)
    assert port.max == after * MIB


@pytest.fixture
def files(tmp_path):
    path = make_cgroup(tmp_path / "c", cgroup__freeze="0\n")
    opened = CgroupFiles(os.open(path, os.O_PATH), str(path))
    yield path, opened
    opened.close()


def test_files_of_a_cgroup(files):
    path, opened = files
    limit = LimitFiles(opened, nonblocking=False)
    assert (limit.usage_bytes(), limit.max_bytes()) == (104857600, 268435456)
    limit.set_max(123 * 4096)
    assert limit.max_bytes() == 123 * 4096
    limit.set_max(None)
    assert limit.max_bytes() is None
    (path / "cgroup.events").write_text("populated 1\nfrozen 1\n")
    assert limit.freeze() is True
    assert (path / "cgroup.freeze").read_text() == "1\n"
    limit.thaw()
    assert (path / "cgroup.freeze").read_text() == "0\n"


def test_processes_that_do_not_stop_in_time(files, monkeypatch):
    monkeypatch.setattr(commit_module, "FREEZE_TIMEOUT_SECONDS", 0.0)
    assert LimitFiles(files[1], nonblocking=False).freeze() is False


def test_cgroup_that_has_gone_is_an_error_but_holds_nobody(files):
    path, opened = files
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    limit = LimitFiles(opened, nonblocking=True)
    for call in (limit.usage_bytes, limit.max_bytes, limit.freeze, lambda: limit.set_max(4096)):
        with pytest.raises(ActuatorError, match="is gone"):
            call()
    limit.thaw()
