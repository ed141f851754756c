"""cgroup v2 files and the way to a container, on a tree of plain files, and the helper process on a pipe."""

import errno
import os
from pathlib import Path

import pytest

from vpa_ippr.actuator import cgroupfs, reclaim_helper
from vpa_ippr.actuator.cgroupfs import CgroupFs, CgroupFsFinder, reclaim_in_process
from vpa_ippr.actuator.features import probe
from vpa_ippr.actuator.locate import find_bases, open_below, open_root
from vpa_ippr.api.errors import ActuatorError

UID = "0a1b2c3d-1111-2222-3333-444455556666"
UID_ = UID.replace("-", "_")
ID = "ab" * 32
FILES = {
    "cgroup.events": "populated 1\nfrozen 0\n",
    "memory.current": "104857600\n",
    "memory.high": "max\n",
    "memory.max": "268435456\n",
    "memory.stat": "anon 1000\nfile 2000\nactive_file 1500\nworkingset_refault_file 7\n",
    "memory.events": "low 0\nhigh 3\nmax 0\noom 0\noom_kill 0\n",
    "memory.reclaim": "",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=567\n",
    "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=89\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n",
}
LAYOUTS = [
    ("Burstable", f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope", "containerd"),
    ("BestEffort", f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice/crio-{ID}.scope", "cri-o"),
    ("Guaranteed", f"kubepods.slice/kubepods-pod{UID_}.slice/docker-{ID}.scope", "docker"),
    ("Burstable", f"kubepods/burstable/pod{UID}/{ID}", "containerd"),
    ("Guaranteed", f"kubepods/pod{UID}/crio-{ID}", "cri-o"),
    ("Burstable", f"kubelet/kubepods/burstable/pod{UID}/{ID}", "containerd"),
    (
        "Burstable",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope",
        "containerd",
    ),
    ("Burstable", f"docker/{'c' * 64}/kubelet/kubepods/burstable/pod{UID}/{ID}", "containerd"),
    (
        "Guaranteed",
        f"system.slice/docker-{'c' * 64}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID_}.slice/{ID}",
        "containerd",
    ),
    ("", f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope", "containerd"),
]


def make_cgroup(path: Path, **changes: str | None) -> Path:
    path.mkdir(parents=True)
    for name, text in (FILES | {key.replace("__", "."): value for key, value in changes.items()}).items():
        if text is not None:
            (path / name).write_text(text)
    return path


@pytest.fixture
def node(tmp_path):
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    (root / "init.scope").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (root / "memory.reclaim").write_text("")
    (proc / "pressure").mkdir(parents=True)
    for name in ("memory", "io"):
        (proc / "pressure" / name).write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    return root, proc


def handle(path: Path, code: int = 0) -> tuple[CgroupFs, list[int]]:
    asked: list[int] = []

    def reclaimer(_fd: int, amount: int) -> int:
        asked.append(amount)
        return code

    return CgroupFs(os.open(path, os.O_PATH), str(path), reclaimer), asked


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


@pytest.mark.parametrize(("value", "text"), [(None, "max"), (104857600, "104857600")])
def test_write_high_is_exact(tmp_path, value, text):
    path = make_cgroup(tmp_path / "c", memory__high="1073741824\n")
    cgroup, _ = handle(path)
    cgroup.write_high(value)
    assert (path / "memory.high").read_text() == text
    assert cgroup.read().high_bytes == value


@pytest.mark.parametrize(
    ("code", "complete"), [(0, True), (errno.EAGAIN, False), (errno.EINTR, False), (errno.ENODEV, False), (errno.ENOENT, False)]
)
def test_reclaim_results(tmp_path, code, complete):
    cgroup, asked = handle(make_cgroup(tmp_path / "c"), code)
    assert cgroup.reclaim(1 << 20) is complete
    assert asked == [1 << 20]


def test_reclaim_that_is_refused_is_an_error(tmp_path):
    cgroup, _ = handle(make_cgroup(tmp_path / "c"), errno.EBUSY)
    with pytest.raises(ActuatorError, match=r"memory\.reclaim") as caught:
        cgroup.reclaim(4096)
    assert caught.value.reason == "WriteFailed"


def test_removed_cgroup_is_gone_and_its_successor_of_the_same_name_untouched(tmp_path):
    path = make_cgroup(tmp_path / "c")
    cgroup, asked = handle(path)
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    make_cgroup(path)
    assert cgroup.read() is None
    cgroup.write_high(4096)
    assert cgroup.reclaim(4096) is False
    assert asked == []
    assert (path / "memory.high").read_text() == "max\n"


@pytest.mark.parametrize("name", ["memory.pressure", "io.pressure"])
def test_pressure_switched_off_is_named(tmp_path, name):
    cgroup, _ = handle(make_cgroup(tmp_path / "c", **{name.replace(".", "__"): None}))
    with pytest.raises(ActuatorError, match="psi=1") as caught:
        cgroup.read()
    assert caught.value.reason == "PressureUnavailable"


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


@pytest.mark.parametrize(("qos", "layout", "scheme"), LAYOUTS)
def test_container_is_found_in_every_layout(node, qos, layout, scheme):
    root, proc = node
    path = make_cgroup(root / layout)
    make_cgroup(path.parent / ("d" * 64))
    found = CgroupFsFinder(root, proc).find(UID, f"{scheme}://{ID}", qos)
    assert found is not None
    assert found.path == str(path)
    assert found.identity() == path.stat().st_ino


def test_crun_child_is_not_taken_for_the_container(node):
    root, proc = node
    pod = root / f"kubepods.slice/kubepods-pod{UID_}.slice"
    scope = make_cgroup(pod / f"crio-{ID}.scope")
    make_cgroup(scope / "container")
    make_cgroup(pod / f"crio-conmon-{ID}.scope")
    found = CgroupFsFinder(root, proc).find(UID, f"cri-o://{ID}", "Guaranteed")
    assert found is not None
    assert found.path == str(scope)


def test_kubepods_that_come_later_are_found(node):
    root, proc = node
    finder = CgroupFsFinder(root, proc)
    with pytest.raises(ActuatorError, match="no kubepods"):
        finder.find(UID, f"containerd://{ID}", "Burstable")
    (root / "kubepods").mkdir()
    assert finder.find(UID, f"containerd://{ID}", "Burstable") is None
    make_cgroup(root / f"kubepods/burstable/pod{UID}/{ID}")
    assert finder.find(UID, f"containerd://{ID}", "Burstable") is not None
    finder.close()


@pytest.mark.parametrize(
    ("uid", "container"),
    [
        ("../../etc", f"containerd://{ID}"),
        (UID, "containerd://../x"),
        (UID, "containerd://" + "A" * 64),
        ("", f"docker://{ID}"),
        (UID, ""),
        (UID + "/x", ID),
    ],
)
def test_names_that_are_no_names_are_refused(node, uid, container):
    root, proc = node
    make_cgroup(root / f"kubepods/burstable/pod{UID}/{ID}")
    with pytest.raises(ActuatorError) as caught:
        CgroupFsFinder(root, proc).find(uid, container, "Burstable")
    assert caught.value.reason == "InvalidName"


def test_no_symlink_leads_out_of_the_root(node, tmp_path):
    root, proc = node
    outside = make_cgroup(tmp_path / "outside" / ID)
    (root / "kubepods/burstable").mkdir(parents=True)
    (root / f"kubepods/burstable/pod{UID}").symlink_to(outside.parent)
    assert CgroupFsFinder(root, proc).find(UID, f"containerd://{ID}", "Burstable") is None
    (root / "kubelet").symlink_to(tmp_path / "outside")
    assert find_bases(open_root(str(root))) == (("kubepods",),)


@pytest.mark.parametrize("component", ["..", ".", "", "a/b", "-x", "x\0"])
def test_components_that_leave_are_refused(node, component):
    with pytest.raises(ActuatorError, match="cannot name a cgroup"):
        open_below(open_root(str(node[0])), ("init.scope", component))


@pytest.mark.parametrize(
    ("remove", "reason"),
    [
        ("cgroup/cgroup.controllers", "CgroupV1"),
        ("cgroup/memory.reclaim", "KernelTooOld"),
        ("proc/pressure/io", "PressureUnavailable"),
        (None, "NoMemoryController"),
    ],
)
def test_missing_feature_is_told_to_every_request(node, tmp_path, remove, reason):
    root, proc = node
    if remove is None:
        (root / "cgroup.controllers").write_text("cpu io\n")
    else:
        (tmp_path / remove).unlink()
    with pytest.raises(ActuatorError) as caught:
        CgroupFsFinder(root, proc).find(UID, f"containerd://{ID}", "Burstable")
    assert caught.value.reason == reason


def test_probe_of_a_good_node(node):
    probe(*node).require()


def test_missing_root_is_one_clear_error(tmp_path):
    with pytest.raises(ActuatorError, match="cannot open the cgroup root"):
        CgroupFsFinder(tmp_path / "nowhere", tmp_path)


def test_helper_process_writes_in_chunks(tmp_path):
    target = tmp_path / "memory.reclaim"
    target.write_text("")
    fd = os.open(target, os.O_WRONLY)
    try:
        assert reclaim_in_process(fd, reclaim_helper.CHUNK_BYTES + 4096) == 0
    finally:
        os.close(fd)
    assert target.read_text() == f"{reclaim_helper.CHUNK_BYTES} swappiness=04096 swappiness=0"


def test_helper_reports_the_errno():
    reader, writer = os.pipe()
    try:
        assert reclaim_in_process(reader, 4096) == errno.EBADF
    finally:
        os.close(reader)
        os.close(writer)


def test_helper_leaves_the_option_out_where_the_kernel_does_not_know_it(monkeypatch):
    written = []

    def write(_fd, data):
        if b"swappiness" in data:
            raise OSError(errno.EINVAL, "Invalid argument")
        written.append(data)

    monkeypatch.setattr(reclaim_helper.os, "write", write)
    assert reclaim_helper.reclaim(9, 8192) == 0
    assert written == [b"8192"]


def test_helper_that_hangs_is_killed(tmp_path, monkeypatch):
    stuck = tmp_path / "stuck.py"
    stuck.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(reclaim_helper, "__file__", str(stuck))
    monkeypatch.setattr(cgroupfs, "RECLAIM_TIMEOUT_SECONDS", 0.05)
    assert reclaim_in_process(2, 4096) == errno.EAGAIN
