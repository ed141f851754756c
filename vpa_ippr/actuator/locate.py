"""From a pod's UID and a container's id to the container's cgroup, below a root that nothing leaves.

Layouts: the systemd driver (``kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<UID_>.slice/cri-containerd-<id>.scope``) and
the cgroupfs driver (``kubepods/burstable/pod<UID>/<id>``), with a prefix where the kubelet has its own ``--cgroup-root`` or runs in a
container (``kubelet.slice/kubelet-kubepods.slice``, ``docker/<id>/kubelet/kubepods``). crun puts the processes into a child of the scope
named ``container``; the limits are set on the scope, so the scope is what is found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from vpa_ippr.api.errors import ActuatorError

_POD_UID = re.compile(r"[0-9a-f][0-9a-f-]{0,63}")
_CONTAINER_ID = re.compile(r"(?:[a-z][a-z0-9+.-]*://)?([0-9a-f]{64})")
_COMPONENT = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.:@\\-]*")
_BASE = re.compile(r"(?:(?P<slice>(?:[0-9a-z]+-)*kubepods)\.slice)|kubepods")
_QOS_DIRECTORIES = {"Guaranteed": "", "Burstable": "burstable", "BestEffort": "besteffort"}
_CONTAINER_NAMES = ("cri-containerd-{}.scope", "{}", "crio-{}.scope", "crio-{}", "docker-{}.scope")
_MAX_BASE_DEPTH = 5
"""``system.slice/docker-<id>.scope/kubelet.slice/kubelet-kubepods.slice`` is the deepest of the known ones, at 4."""

_DIRECTORY_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Path = tuple[str, ...]


def open_root(path: str) -> int:
    """A held descriptor of the cgroup root; here alone may a symlink be followed, for the path is the operator's."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ActuatorError(f"cannot open the cgroup root {path}: {error.strerror}; mount cgroup v2 there or name another") from error


def open_below(root_fd: int, path: Path) -> int | None:
    """A descriptor of a directory below ``root_fd``, one component at a time without following symlinks; None when it is not there."""
    current = os.dup(root_fd)
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
                    return found, (*pod, name)
    return None


def _directories(root_fd: int, path: Path) -> Iterator[str]:
    directory = open_below(root_fd, path)
    if directory is None:
        return
    try:
        listing = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return  # gone or not ours to read between the two looks: nothing of Kubernetes is there
    finally:
        os.close(directory)
    try:
        with os.scandir(listing) as entries:
            names = sorted(e.name for e in entries if e.is_dir(follow_symlinks=False) and _COMPONENT.fullmatch(e.name))
    finally:
        os.close(listing)
    yield from names
