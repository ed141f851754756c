"""From a pod's UID and a container's id to the container's cgroup, below a root that nothing leaves.

Layouts: the systemd driver (``kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<UID_>.slice/cri-containerd-<id>.scope``) and
the cgroupfs driver (``kubepods/burstable/pod<UID>/<id>``), with a prefix where the kubelet has its own ``--cgroup-root`` or runs in a
container (``kubelet.slice/kubelet-kubepods.slice``, ``docker/<id>/kubelet/kubepods``).

crun on systemd puts the processes into a child of the scope named ``container`` and sets the limits on both (as properties of the scope,
and by file on the child), so the scope is what is found; where the limit is on the child alone, the child is.

A VM runtime (Kata, gVisor) runs the processes elsewhere: its containers have no cgroup, or one without processes.
"""

from __future__ import annotations

import os
import re

from vpa_ippr.api.errors import ActuatorError

_POD_UID = re.compile(r"[0-9a-f][0-9a-f-]{0,63}")
_CONTAINER_ID = re.compile(r"(?:[a-z][a-z0-9+.-]*://)?([0-9a-f]{64})")
_COMPONENT = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.:@\\-]*")
_BASE = re.compile(r"(?:(?P<slice>(?:[0-9a-z]+-)*kubepods)\.slice)|kubepods")
_QOS_DIRECTORIES = {"Guaranteed": "", "Burstable": "burstable", "BestEffort": "besteffort"}
_CONTAINER_NAMES = ("cri-containerd-{}.scope", "{}", "crio-{}.scope", "crio-{}", "docker-{}.scope")
_MAX_BASE_DEPTH = 5
"""``system.slice/docker-<id>.scope/kubelet.slice/kubelet-kubepods.slice`` is the deepest of the known ones, at 4."""
_INNER = "container"
_SMALL_READ = 4096

_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Path = tuple[str, ...]


def open_root(path: str) -> int:
    """A held descriptor of the cgroup root; here alone may a symlink be followed, for the path is the operator's."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ActuatorError(f"cannot open the cgroup root {path}: {error.strerror}; mount cgroup v2 there or name another") from error


def open_below(root_fd: int, path: Path) -> int | None:
    """A descriptor of a directory below ``root_fd``, one component at a time; None when it is not there.

    Neither symlinks are followed nor mounts crossed: what another file system shows inside the tree is no cgroup of this root.
    """
    current, device = os.dup(root_fd), os.fstat(root_fd).st_dev
    for component in path:
        if not _COMPONENT.fullmatch(component):
            os.close(current)
            raise ActuatorError(f"{component!r} cannot name a cgroup")
        try:
            following = os.open(component, _DIRECTORY_FLAGS, dir_fd=current)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ActuatorError(f"cannot open cgroup {'/'.join(path)}: {error.strerror}") from error
        finally:
            os.close(current)
        current = following
        if os.fstat(current).st_dev != device:
            os.close(current)
            return None
    return current


def find_bases(root_fd: int) -> tuple[Path, ...]:
    """Every ``kubepods`` directory below the root, nearest first; a kubelet in a container brings its own."""
    found: list[Path] = []
    level: list[Path] = [()]
    for _ in range(_MAX_BASE_DEPTH):
        children = [(*path, name) for path in level for name in _directories(root_fd, path)]
        found += [path for path in children if _BASE.fullmatch(path[-1])]
        level = [path for path in children if not _BASE.fullmatch(path[-1])]
    return tuple(found)


def is_kubernetes(path: Path) -> bool:
    """Whether a path is one of the kubelet's cgroups, or leads below one."""
    return any(_BASE.fullmatch(component) for component in path)


def pod_paths(base: Path, pod_uid: str, qos_class: str) -> tuple[Path, ...]:
    """Where the pod's cgroup may be below one base; a QoS class that is not known means all of them.

    Raises:
        ActuatorError: the UID cannot be part of a path.
    """
    if not _POD_UID.fullmatch(pod_uid):
        raise ActuatorError(f"pod UID {pod_uid!r} cannot be part of a cgroup's name", reason="InvalidName")
    classes = [_QOS_DIRECTORIES[qos_class]] if qos_class in _QOS_DIRECTORIES else list(_QOS_DIRECTORIES.values())
    match = _BASE.fullmatch(base[-1])
    stem = match.group("slice") if match else None
    if stem is None:
        return tuple((*base, *filter(None, [name]), f"pod{pod_uid}") for name in classes)
    escaped = pod_uid.replace("-", "_")
    return tuple(
        (*base, f"{stem}-{name}.slice", f"{stem}-{name}-pod{escaped}.slice") if name else (*base, f"{stem}-pod{escaped}.slice")
        for name in classes
    )


def container_names(container_id: str) -> tuple[str, ...]:
    """What runtimes call a container's cgroup.

    Raises:
        ActuatorError: not ``<runtime>://<64 hex digits>``.
    """
    match = _CONTAINER_ID.fullmatch(container_id)
    if match is None:
        raise ActuatorError(f"container id {container_id!r} is not <runtime>://<64 hex digits>", reason="InvalidName")
    return tuple(pattern.format(match.group(1)) for pattern in _CONTAINER_NAMES)


def open_container(root_fd: int, bases: tuple[Path, ...], pod_uid: str, container_id: str, qos_class: str) -> tuple[int, Path] | None:
    """A descriptor of the container's cgroup and its path below the root, or None."""
    names = container_names(container_id)
    for base in bases:
        for pod in pod_paths(base, pod_uid, qos_class):
            for name in names:
                found = open_below(root_fd, (*pod, name))
                if found is not None:
                    return _limited(found, (*pod, name))
    return None


def pod_of(path: Path) -> Path:
    """The pod's cgroup, from that of its container."""
    return path[:-2] if path[-1] == _INNER else path[:-1]


def _limited(fd: int, path: Path) -> tuple[int, Path]:
    """Where the runtime has set the limits: the container's cgroup, or crun's child of it. Takes ``fd`` over."""
    if _first_line(fd, "memory.max") != "max":
        return fd, path
    child = open_below(fd, (_INNER,))
    if child is None:
        return fd, path
    if _first_line(child, "memory.max") in ("max", ""):
        os.close(child)
        return fd, path
    os.close(fd)
    return child, (*path, _INNER)


def has_processes(fd: int) -> bool:
    """Whether any process is in the cgroup or below; a container that ran once never gets any again."""
    return "populated 0" not in _text(fd, "cgroup.events").splitlines()


def _first_line(fd: int, name: str) -> str:
    return _text(fd, name).partition("\n")[0]


def _text(directory_fd: int, name: str) -> str:
    """The file, or nothing where it is not there: the reader of the whole cgroup says what is wrong with it."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
    except OSError:
        return ""
    try:
        return os.read(fd, _SMALL_READ).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def directories(fd: int) -> list[str]:
    """The cgroups right below one, by name; none where it is gone or not ours to read."""
    try:
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return []
    try:
        with os.scandir(listing) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and _COMPONENT.fullmatch(e.name))
    except OSError:
        return []
    finally:
        os.close(listing)


def _directories(root_fd: int, path: Path) -> list[str]:
    directory = open_below(root_fd, path)
    if directory is None:
        return []
    try:
        return directories(directory)
    finally:
        os.close(directory)
