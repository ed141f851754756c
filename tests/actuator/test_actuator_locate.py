"""From a pod's UID and a container's id to its cgroup, on a tree of plain files: every layout that kubelets and runtimes make."""

import itertools

import pytest
from cgroup_tree import ID, UID, UID_, FakeHelper, make_cgroup, make_node

from vpa_ippr.actuator.cgroupfs import CgroupFsFinder
from vpa_ippr.actuator.features import probe
from vpa_ippr.actuator.locate import find_bases, open_below, open_root
from vpa_ippr.api.errors import ActuatorError

STATIC_UID = "0123456789abcdef" * 2
"""Of a static pod: the hash of its file."""
OTHER = "c" * 64

SYSTEMD_PODS = {
    "Guaranteed": "{stem}.slice/{stem}-pod{uid_}.slice",
    "Burstable": "{stem}.slice/{stem}-burstable.slice/{stem}-burstable-pod{uid_}.slice",
    "BestEffort": "{stem}.slice/{stem}-besteffort.slice/{stem}-besteffort-pod{uid_}.slice",
}
CGROUPFS_PODS = {
    "Guaranteed": "kubepods/pod{uid}",
    "Burstable": "kubepods/burstable/pod{uid}",
    "BestEffort": "kubepods/besteffort/pod{uid}",
}
SYSTEMD_CONTAINERS = {"containerd": "cri-containerd-{id}.scope", "cri-o": "crio-{id}.scope", "docker": "docker-{id}.scope"}
CGROUPFS_CONTAINERS = {"containerd": "{id}", "cri-o": "crio-{id}", "docker": "{id}"}
SYSTEMD_PREFIXES = {
    "plain": ("kubepods", ""),
    "kubelet --cgroup-root, kind": ("kubelet-kubepods", "kubelet.slice/"),
    "nested in a docker scope": ("kubepods", f"system.slice/docker-{OTHER}.scope/"),
    "kind in a docker scope": ("kubelet-kubepods", f"system.slice/docker-{OTHER}.scope/kubelet.slice/"),
    "kind in a docker cgroup": ("kubelet-kubepods", f"docker/{OTHER}/kubelet.slice/"),
}
CGROUPFS_PREFIXES = {"plain": "", "kubelet --cgroup-root": "kubelet/", "kind": f"docker/{OTHER}/kubelet/", "nested": f"docker/{OTHER}/"}


def layouts():
    for (where, (stem, prefix)), qos, runtime, uid in itertools.product(
        SYSTEMD_PREFIXES.items(), SYSTEMD_PODS, SYSTEMD_CONTAINERS, (UID, STATIC_UID)
    ):
        pod = prefix + SYSTEMD_PODS[qos].format(stem=stem, uid_=uid.replace("-", "_"))
        name = f"systemd {where}, {qos}, {runtime}{', static' if uid == STATIC_UID else ''}"
        yield pytest.param(qos, runtime, uid, f"{pod}/{SYSTEMD_CONTAINERS[runtime].format(id=ID)}", id=name)
    for (where, prefix), qos, runtime in itertools.product(CGROUPFS_PREFIXES.items(), CGROUPFS_PODS, CGROUPFS_CONTAINERS):
        pod = prefix + CGROUPFS_PODS[qos].format(uid=UID)
        yield pytest.param(
            qos, runtime, UID, f"{pod}/{CGROUPFS_CONTAINERS[runtime].format(id=ID)}", id=f"cgroupfs {where}, {qos}, {runtime}"
        )


@pytest.fixture
def node(tmp_path):
    return make_node(tmp_path)


@pytest.mark.parametrize(("qos", "runtime", "uid", "layout"), list(layouts()))
def test_container_is_found_in_every_layout(node, qos, runtime, uid, layout):
    root, proc = node
    path = make_cgroup(root / layout)
    make_cgroup(path.parent / path.name.replace(ID, "d" * 64))  # the sandbox container
    finder = CgroupFsFinder(root, proc)
    for class_ in (qos, ""):
        found = finder.find(uid, f"{runtime}://{ID}", class_)
        assert found is not None
        assert (found.path, found.identity()) == (str(path), path.stat().st_ino)
    assert finder.find(uid, f"{runtime}://{OTHER}", qos) is None
    finder.close()


@pytest.mark.parametrize(
    ("scope_max", "child_max", "found"),
    [
        pytest.param("268435456\n", "268435456\n", "", id="on both, as crun does"),
        pytest.param("268435456\n", "max\n", "", id="on the scope"),
        pytest.param("max\n", "268435456\n", "container", id="on the child alone"),
        pytest.param("max\n", "max\n", "", id="nowhere"),
        pytest.param("max\n", None, "", id="child without the memory controller"),
    ],
)
@pytest.mark.parametrize("scope", [f"kubepods.slice/kubepods-pod{UID_}.slice/crio-{ID}.scope", f"kubepods/pod{UID}/crio-{ID}"])
def test_crun_child_is_the_container_only_where_the_limit_is_on_it(node, scope, scope_max, child_max, found):
    root, proc = node
    outer = make_cgroup(root / scope, memory__max=scope_max)
    make_cgroup(outer / "container", memory__max=child_max)
    make_cgroup(outer.parent / f"crio-conmon-{ID}.scope")
    for name in ("memory.current", "memory.max"):
        (outer.parent / name).write_text("300000000\n")
    cgroup = CgroupFsFinder(root, proc, FakeHelper()).find(UID, f"cri-o://{ID}", "Guaranteed")
    assert cgroup is not None
    assert cgroup.path == str(outer / found)
    assert cgroup.read().pod.usage_bytes == 300000000


@pytest.mark.parametrize("events", ["populated 0\nfrozen 0\n", "frozen 0\npopulated 0\n"])
def test_cgroup_without_processes_is_none_of_a_running_container(node, events):
    """Kata and gVisor run them elsewhere; the sentry's are in the sandbox container's cgroup."""
    root, proc = node
    path = make_cgroup(root / f"kubepods/burstable/pod{UID}/{ID}", cgroup__events=events)
    finder = CgroupFsFinder(root, proc)
    assert finder.find(UID, f"containerd://{ID}", "Burstable") is None
    (path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert finder.find(UID, f"containerd://{ID}", "Burstable") is not None
    finder.close()


def test_pod_level_is_read_beside_the_container(node):
    root, proc = node
    path = make_cgroup(root / f"kubepods/burstable/pod{UID}/{ID}")
    cgroup = CgroupFsFinder(root, proc).find(UID, f"containerd://{ID}", "Burstable")
    assert cgroup.read().pod is None
    (path.parent / "memory.current").write_text("200000000\n")
    (path.parent / "memory.max").write_text("max\n")
    assert (cgroup.read().pod.usage_bytes, cgroup.read().pod.max_bytes) == (200000000, None)


def test_what_was_left_is_opened_again_on_a_node_that_can_shrink_no_more(node):
    root, proc = node
    make_cgroup(root / f"kubepods/burstable/pod{UID}/{ID}")
    (proc / "pressure/io").unlink()
    finder = CgroupFsFinder(root, proc)
    with pytest.raises(ActuatorError):
        finder.find(UID, f"containerd://{ID}", "Burstable")
    assert finder.reopen(UID, f"containerd://{ID}", "Burstable") is not None
    finder.close()


def test_no_mount_is_crossed():
    assert open_below(open_root("/"), ("proc", "self", "fd")) is None
    assert open_below(open_root("/"), ("proc",)) is None


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


@pytest.mark.parametrize(
    ("release", "said"), [("5.15.0-91-generic\n", "Linux 5.15.0-91-generic has no"), (None, "Linux of unknown release has no")]
)
def test_kernel_release_is_said_but_decides_nothing(node, release, said):
    root, proc = node
    if release is not None:
        (proc / "sys/kernel").mkdir(parents=True)
        (proc / "sys/kernel/osrelease").write_text(release)
    probe(root, proc).require()
    (root / "memory.reclaim").unlink()
    with pytest.raises(ActuatorError, match=said):
        probe(root, proc).require()
