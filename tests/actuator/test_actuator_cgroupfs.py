"""A container's cgroup, on a tree of plain files."""

import errno
import os
from pathlib import Path

import pytest
from cgroup_tree import FakeHelper, make_cgroup

from vpa_ippr.actuator.cgroup_files import Gone
from vpa_ippr.actuator.cgroupfs import CgroupFs
from vpa_ippr.actuator.helper import ReclaimKind
from vpa_ippr.api.errors import ActuatorError


def handle(path: Path, code: int = 0, proc: Path = Path("/nowhere")) -> tuple[CgroupFs, FakeHelper]:
    helper = FakeHelper(code)
    return CgroupFs(os.open(path, os.O_PATH), str(path), helper, proc=proc), helper


def test_snapshot_of_all_files(tmp_path):
    cgroup, _ = handle(make_cgroup(tmp_path / "c"))
    seen = cgroup.read()
    assert seen is not None
    assert (seen.usage_bytes, seen.high_bytes, seen.max_bytes) == (104857600, None, 268435456)
    assert seen.stat["workingset_refault_file"] == 7
    assert seen.events["high"] == 3
    assert (seen.memory_some_us, seen.memory_full_us, seen.io_some_us, seen.io_full_us) == (1234, 567, 89, 12)
    assert (seen.populated, seen.frozen) == (True, False)
    assert seen.peak_bytes is None
    assert cgroup.identity() == (tmp_path / "c").stat().st_ino


@pytest.mark.parametrize(("value", "text"), [(None, "max"), (209715200, "209715200")])
def test_write_high_is_one_exact_write_that_truncates_nothing(tmp_path, value, text):
    path = make_cgroup(tmp_path / "c", memory__high="1073741824\nwhat no kernel file has")
    cgroup, helper = handle(path)
    cgroup.write_high(value)
    written, rest = (path / "memory.high").read_text().split("\n", 1)
    assert written == text
    assert rest.endswith("what no kernel file has")
    assert cgroup.read().high_bytes == value
    assert helper.limits == []


@pytest.mark.parametrize("high", [104857600, 52428800], ids=["at usage", "below usage"])
def test_a_limit_that_would_reclaim_is_written_by_the_helper(tmp_path, high):
    cgroup, helper = handle(make_cgroup(tmp_path / "c"))
    cgroup.write_high(high)
    assert helper.limits == [str(high)]
    assert cgroup.read().high_bytes == high


@pytest.mark.parametrize(("code", "is_error"), [(0, False), (errno.EAGAIN, False), (errno.EPERM, True)])
def test_a_limit_stands_even_when_its_writer_was_cut_short(tmp_path, code, is_error):
    cgroup, _ = handle(make_cgroup(tmp_path / "c"), code)
    if is_error:
        with pytest.raises(ActuatorError, match=r"memory\.high: Operation not permitted"):
            cgroup.write_high(4096)
    else:
        cgroup.write_high(4096)


@pytest.mark.parametrize(
    ("code", "complete"), [(0, True), (errno.EAGAIN, False), (errno.EINTR, False), (errno.ENODEV, False), (errno.ENOENT, False)]
)
def test_reclaim_results(tmp_path, code, complete):
    cgroup, helper = handle(make_cgroup(tmp_path / "c"), code)
    assert cgroup.reclaim(1 << 20) is complete
    assert helper.reclaims == [(1 << 20, ReclaimKind.FILES_IF_KNOWN)]


SWAP = "Filename Type Size Used Priority\n/dev/zram0 partition 1024 256 100\n"


@pytest.mark.parametrize(
    ("swap_max", "swaps", "may_swap", "kind"),
    [
        pytest.param("max\n", SWAP, True, ReclaimKind.ANY, id="asked for"),
        pytest.param("max\n", SWAP, False, ReclaimKind.FILES, id="could, must not"),
        pytest.param("max\n", None, False, ReclaimKind.FILES, id="the node's swap is not known"),
        pytest.param("max\n", SWAP.split("/dev")[0], False, ReclaimKind.FILES_IF_KNOWN, id="no swap on the node"),
        pytest.param("0\n", SWAP, False, ReclaimKind.FILES_IF_KNOWN, id="none for the container"),
        pytest.param(None, SWAP, False, ReclaimKind.FILES_IF_KNOWN, id="no swap accounting"),
    ],
)
def test_only_what_can_swap_must_be_reclaimed_by_page_cache_alone(tmp_path, swap_max, swaps, may_swap, kind):
    if swaps is not None:
        (tmp_path / "swaps").write_text(swaps)
    cgroup, helper = handle(make_cgroup(tmp_path / "c", memory__swap__max=swap_max, memory__swap__current="0\n"), proc=tmp_path)
    cgroup.reclaim(4096, may_swap=may_swap)
    assert helper.reclaims == [(4096, kind)]


def test_a_kernel_that_might_swap_is_refused_with_its_reason(tmp_path):
    cgroup, _ = handle(make_cgroup(tmp_path / "c"), errno.ENOTSUP)
    with pytest.raises(ActuatorError, match="swappiness") as caught:
        cgroup.reclaim(4096)
    assert caught.value.reason == "WouldSwap"


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [("max\n", "4096\n", 768 * 1024), ("8192\n", "4096\n", 4096), ("0\n", "0\n", 0), ("4096\n", "8192\n", 0), (None, None, 0)],
)
def test_swap_that_is_left(tmp_path, limit, used, free):
    (tmp_path / "swaps").write_text(SWAP)
    files = {"memory__swap__max": limit, "memory__swap__current": used, "memory__swap__events": "high 0\nmax 1\nfail 3\n"}
    cgroup, _ = handle(make_cgroup(tmp_path / "c", **files), proc=tmp_path)
    seen = cgroup.read()
    assert seen.swap_free_bytes == free
    assert seen.swap_bytes == int(used or 0)
    assert seen.swap_failures == (0 if limit is None else 3)


def test_what_children_protect_counts_as_far_as_it_is_used(tmp_path):
    path = make_cgroup(tmp_path / "c")
    cgroup, _ = handle(path)
    assert cgroup.read().protected_bytes == 0
    make_cgroup(path / "a", memory__min="1048576\n")
    make_cgroup(path / "b", memory__min="max\n")
    make_cgroup(path / "c", memory__min="0\n")
    assert cgroup.read().protected_bytes == 1048576 + 104857600


def test_reclaim_that_is_refused_is_an_error(tmp_path):
    cgroup, _ = handle(make_cgroup(tmp_path / "c"), errno.EBUSY)
    with pytest.raises(ActuatorError, match=r"memory\.reclaim") as caught:
        cgroup.reclaim(4096)
    assert caught.value.reason == "WriteFailed"


def test_removed_cgroup_is_gone_and_its_successor_of_the_same_name_untouched(tmp_path):
    path = make_cgroup(tmp_path / "c")
    cgroup, helper = handle(path)
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    make_cgroup(path)
    assert cgroup.read() is None
    cgroup.write_high(4096)
    assert cgroup.reclaim(4096) is False
    assert (helper.reclaims, helper.limits) == ([], [])
    assert (path / "memory.high").read_text() == "max\n"


@pytest.mark.parametrize("name", ["memory.pressure", "io.pressure"])
def test_pressure_switched_off_is_named(tmp_path, name):
    cgroup, _ = handle(make_cgroup(tmp_path / "c", **{name.replace(".", "__"): None}))
    with pytest.raises(ActuatorError, match="boot with psi=1") as caught:
        cgroup.read()
    assert caught.value.reason == "PressureUnavailable"


def test_pressure_switched_off_for_the_container_says_where_to_switch_it_on(tmp_path):
    path = make_cgroup(tmp_path / "c", memory__pressure=None, cgroup__pressure="0\n")
    cgroup, _ = handle(path)
    with pytest.raises(ActuatorError, match=rf"write 1 to {path}/cgroup\.pressure") as caught:
        cgroup.read()
    assert caught.value.reason == "PressureUnavailable"


def test_pressure_of_an_ancestor_does_not_matter(tmp_path):
    """cgroup-v2.rst on cgroup.pressure: "This control attribute is not hierarchical"."""
    make_cgroup(tmp_path / "pod", memory__pressure=None, cgroup__pressure="0\n")
    cgroup, _ = handle(make_cgroup(tmp_path / "pod/c", cgroup__pressure="1\n"))
    assert cgroup.read() is not None


@pytest.mark.parametrize(
    ("code", "name", "is_write", "reason"),
    [
        (errno.EACCES, "memory.high", True, "WriteFailed"),
        (errno.EINVAL, "memory.high", True, "WriteFailed"),
        (errno.EIO, "memory.stat", False, "CgroupUnreadable"),
        (errno.ENOENT, "memory.stat", False, "CgroupUnreadable"),
        (errno.ENODEV, "memory.pressure", False, "PressureUnavailable"),
        (errno.EOPNOTSUPP, "io.pressure", False, "PressureUnavailable"),
    ],
)
def test_what_an_errno_means_while_the_cgroup_is_there(tmp_path, code, name, is_write, reason):
    cgroup, _ = handle(make_cgroup(tmp_path / "c"))
    error = cgroup.files.failed(name, OSError(code, os.strerror(code)), is_write=is_write)
    assert isinstance(error, ActuatorError)
    assert error.reason == reason
    assert name in str(error)


@pytest.mark.parametrize("code", [errno.ENOENT, errno.ENODEV])
def test_what_an_errno_means_once_the_cgroup_is_gone(tmp_path, code):
    path = make_cgroup(tmp_path / "c")
    cgroup, _ = handle(path)
    for file in path.iterdir():
        file.unlink()
    assert isinstance(cgroup.files.failed("memory.current", OSError(code, "")), Gone)


def test_peak_is_of_the_time_since_the_last_look(tmp_path):
    """A plain file keeps what was written into it: the kernel would show the peak of the window that the write began."""
    path = make_cgroup(tmp_path / "c", memory__peak="1\n")
    cgroup, _ = handle(path)
    assert (path / "memory.peak").read_text() == "reset\n"
    (path / "memory.peak").write_text("134217728\n")
    assert cgroup.read().peak_bytes == 134217728
    assert (path / "memory.peak").read_text().startswith("reset\n")


def test_peak_that_cannot_be_reset_is_left_out(tmp_path):
    path = make_cgroup(tmp_path / "c")
    (path / "memory.peak").mkdir()
    cgroup, _ = handle(path)
    assert cgroup.read().peak_bytes is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.current", "much\n"),
        ("memory.current", None),
        ("memory.high", "-\n"),
        ("memory.pressure", "nothing\n"),
        ("memory.stat", "anon x\n"),
    ],
)
def test_unreadable_file_is_one_clear_error(tmp_path, name, text):
    cgroup, _ = handle(make_cgroup(tmp_path / "c", **{name.replace(".", "__"): text}))
    with pytest.raises(ActuatorError) as caught:
        cgroup.read()
    assert caught.value.reason == "CgroupUnreadable"


def test_symlinked_file_is_refused(tmp_path):
    path = make_cgroup(tmp_path / "c", memory__high=None)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (path / "memory.high").symlink_to(victim)
    cgroup, _ = handle(path)
    with pytest.raises(ActuatorError):
        cgroup.write_high(None)
    assert victim.read_text() == "precious"
