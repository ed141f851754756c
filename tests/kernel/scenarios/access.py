"""The actuator's access to the kernel: its reading of the files, its features, its blocking writes and its pressure triggers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel.harness.containers import DATA, Container, Guest
from kernel.harness.machine import CGROUPS, DISK, MIB
from vpa_ippr.actuator.cgroupfs import CgroupFs, CgroupFsFinder
from vpa_ippr.actuator.features import honours_nonblocking
from vpa_ippr.api.errors import ActuatorError


def features(guest: Guest) -> dict[str, Any]:
    """What is found by trying, and that nothing is left of the tries."""
    finder = CgroupFsFinder(CGROUPS)
    before = sorted(path.name for path in CGROUPS.iterdir())
    found = {
        "release": finder.features.kernel_release == guest.release,
        "file_only_reclaim": finder.features.file_only_reclaim,
        "nonblocking": honours_nonblocking(CGROUPS, DISK),
        "nonblocking_on_tmpfs": honours_nonblocking(CGROUPS, Path("/run")),
        "left": sorted({path.name for path in CGROUPS.iterdir()} - set(before)),
    }
    finder.close()
    return found


def files(guest: Guest) -> dict[str, Any]:
    """One container through its handle: looks, steps, a limit below usage, and its end."""
    container = guest.container(limit_mib=256)
    container.start("file", path=DATA, skip=64, size=96, hot=0)
    cgroup = _open(container)
    first = cgroup.read()
    assert first is not None
    whole = cgroup.reclaim(8 * MIB)
    stepped = cgroup.read()
    assert stepped is not None
    too_much = cgroup.reclaim(1024 * MIB)
    container.start("file", path=DATA, skip=160, size=64, hot=0)
    began = time.monotonic()
    cgroup.write_high(48 * MIB + 5)
    seconds = time.monotonic() - began
    squeezed = cgroup.read()
    assert squeezed is not None
    cgroup.write_high(None)
    restored = cgroup.read()
    assert restored is not None
    found = {
        "identity": cgroup.identity() == container.path.stat().st_ino,
        "pod_is_read": first.pod is not None and first.pod.usage_bytes >= first.usage_bytes,
        "reclaimed": whole,
        "freed_mib": round((first.usage_bytes - stepped.usage_bytes) / MIB, 1),
        "too_much": too_much,
        "peak_is_of_the_window": None if stepped.peak_bytes is None else squeezed.peak_bytes > squeezed.usage_bytes,
        "high": squeezed.high_bytes,
        "seconds": round(seconds, 2),
        "restored": restored.high_bytes,
    }
    found["after_restart"] = _look_after_restart(guest, container, cgroup)
    return found


def pressure_off(guest: Guest) -> dict[str, Any]:
    """``cgroup.pressure`` of a container, and of its pod."""
    container = guest.container(limit_mib=64)
    container.start("anon", size=16)
    cgroup = _open(container)
    (container.path.parent / "cgroup.pressure").write_text("0")
    at_pod = _reason(cgroup.read)
    container.write("cgroup.pressure", "0")
    at_container = _reason(cgroup.read)
    triggers = len(cgroup.open_triggers().filenos())
    container.write("cgroup.pressure", "1")
    return {"at_pod": at_pod, "at_container": at_container, "triggers_while_off": triggers, "on_again": _reason(cgroup.read)}


def triggers(guest: Guest) -> dict[str, Any]:
    """Calm, stalled, gone."""
    container = guest.container(limit_mib=256)
    container.start("anon", size=64)
    cgroup = _open(container)
    armed = cgroup.open_triggers()
    count = len(armed.filenos())
    calm = sorted(armed.wait(3.0))
    container.write("memory.high", 32 * MIB)
    began, stalled = time.monotonic(), set()
    while not stalled and time.monotonic() < began + 30:
        stalled = armed.wait(1.0)
    seconds = time.monotonic() - began
    container.write("memory.high", "max")
    guest.again(container)
    gone: set[str] = set()
    while armed.filenos():
        gone = armed.wait(5.0)
        if not gone:
            break
    return {
        "armed": count,
        "calm": calm,
        "stalled": sorted(stalled),
        "seconds": round(seconds, 2),
        "gone": sorted(gone),
        "left": len(armed.filenos()),
    }


def _open(container: Container) -> CgroupFs:
    finder = CgroupFsFinder(CGROUPS)
    cgroup = finder.find(container.pod_uid, container.container_id, container.qos_class)
    finder.close()
    assert cgroup is not None
    return cgroup


def _look_after_restart(guest: Guest, container: Container, cgroup: CgroupFs) -> dict[str, Any]:
    guest.again(container)
    cgroup.write_high(4096)
    return {"read": cgroup.read() is None, "reclaim": cgroup.reclaim(4096), "successor_high": container.text("memory.high")}


def _reason(read: Callable[[], object]) -> str:
    try:
        read()
    except ActuatorError as error:
        return f"{error.reason}: {str(error).rpartition('; ')[2]}"
    return "ok"
