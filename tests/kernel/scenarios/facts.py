"""What this kernel really does with the files that the actuator relies on. No code of the project."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path
from typing import Any

from kernel.harness.containers import DATA, Container, Guest, try_write
from kernel.harness.machine import MIB


def probe(guest: Guest) -> dict[str, Any]:
    """Which features there are, found by trying."""
    container = guest.container(limit_mib=128)
    container.start("file", path=DATA, size=64, hot=0)
    return {
        "release": guest.release,
        "reclaim_swappiness_0": container.write("memory.reclaim", f"{MIB} swappiness=0")[0],
        "reclaim_swappiness_max": container.write("memory.reclaim", f"{MIB} swappiness=max")[0],
        "reclaim_nothing": container.write("memory.reclaim", "0")[0],
        "has_proactive_counters": "pgsteal_proactive" in container.table("memory.stat"),
        "has_sock_throttled": "sock_throttled" in container.table("memory.events"),
        "peak_mode": oct((container.path / "memory.peak").stat().st_mode & 0o777),
        "peak_window": _peak_window(container),
        "psi_window_100_ms": _trigger(container, 10_000, 100_000),
        "psi_window_500_ms": _trigger(container, 50_000, 500_000),
        "has_cgroup_pressure": (container.path / "cgroup.pressure").exists(),
        "mglru": _text(Path("/sys/kernel/mm/lru_gen/enabled")),
    }


def numbers(guest: Guest) -> dict[str, Any]:
    """How limits are read: units, rounding, refusals."""
    container = guest.container(limit_mib=64)

    def written(text: str) -> str:
        result, _ = container.write("memory.high", text)
        return container.text("memory.high") if result == "ok" else result

    return {text: written(text) for text in ("100M", "1G", "104857601", "0x100000", " 104857600\n", "max", "-1", "1.5G")}


def reclaim(guest: Guest) -> dict[str, Any]:
    """How exact ``memory.reclaim`` is over cold cache, what it does when asked for too much, and that nobody is stalled by it."""
    container = guest.container(limit_mib=256)
    container.start("file", path=DATA, skip=64, size=128, hot=0)
    container.start("anon", size=32)
    before, freed = container.look(), {}
    for asked in (2, 8, 24):
        held = container.usage_mib
        freed[str(asked)] = (container.write("memory.reclaim", asked * MIB)[0], round(held - container.usage_mib, 2))
    after, held = container.look(), container.usage_mib
    too_much, seconds = container.write("memory.reclaim", 512 * MIB)
    return {
        "freed_mib": freed,
        "too_much": too_much,
        "too_much_freed_mib": round(held - container.usage_mib, 2),
        "too_much_seconds": round(seconds, 2),
        "left_mib": round(container.usage_mib, 1),
        "stall_ms": (after.memory_some_us - before.memory_some_us) / 1e3,
        "high_events": after.events["high"] - before.events["high"],
    }


def high_below_floor(guest: Guest) -> dict[str, Any]:
    """``memory.high`` under what cannot be reclaimed: the write succeeds, usage stays, and who takes more memory is put to sleep."""
    container = guest.container(limit_mib=256)
    holder = container.start("anon", size=64)
    result, seconds = container.write("memory.high", 32 * MIB)
    held = container.usage_mib
    before = container.look()
    second = container.start("anon", size=8, wait=False)
    time.sleep(5)
    stuck = container.look()
    container.write("memory.high", "max")
    second.wait_until_ready()
    released = time.monotonic()
    time.sleep(3)
    return {
        "write": result,
        "write_seconds": round(seconds, 2),
        "usage_mib": round(held, 1),
        "stall_seconds_of_5": round((stuck.memory_some_us - before.memory_some_us) / 1e6, 2),
        "seconds_until_free": round(released - stuck.at, 2),
        "ops_after": round(holder.rate(released, released + 3)),
    }


def nonblocking(guest: Guest) -> dict[str, Any]:
    """``O_NONBLOCK`` on ``memory.max`` below usage: newer kernels leave the process alive, older ones ignore the flag and kill."""
    container = guest.container(limit_mib=128)
    holder = container.start("anon", size=64)
    result, seconds = container.write("memory.max", 32 * MIB, os.O_NONBLOCK)
    is_alive = holder.is_alive and container.table("memory.events")["oom_kill"] == 0
    return {"write": result, "seconds": round(seconds, 2), "is_alive": is_alive, "usage_mib": round(container.usage_mib, 1)}


def restart(guest: Guest) -> dict[str, Any]:
    """A cgroup that is removed and made again at the same path is another one, and a held directory never comes to mean it."""
    container = guest.container(limit_mib=64)
    inode = container.path.stat().st_ino
    directory = os.open(container.path, os.O_PATH | os.O_DIRECTORY)
    usage = os.open("memory.current", os.O_RDONLY, dir_fd=directory)
    os.read(usage, 32)
    guest.again(container)
    return {
        "is_same_inode": container.path.stat().st_ino == inode,
        "read_on_old_file": _errno(lambda: os.pread(usage, 32, 0)),
        "open_in_old_directory": _errno(lambda: os.open("memory.current", os.O_RDONLY, dir_fd=directory)),
    }


def frozen(guest: Guest) -> dict[str, Any]:
    """A frozen cgroup can be reclaimed like any other."""
    container = guest.container(limit_mib=128)
    container.start("file", path=DATA, skip=192, size=64, hot=8)
    container.write("cgroup.freeze", 1)
    until = time.monotonic() + 5
    while "frozen 1" not in container.text("cgroup.events") and time.monotonic() < until:
        time.sleep(0.01)
    held = container.usage_mib
    result, _ = container.write("memory.reclaim", 16 * MIB)
    is_frozen = container.table("cgroup.events")["frozen"] == 1
    container.write("cgroup.freeze", 0)
    return {"is_frozen": is_frozen, "reclaim": result, "freed_mib": round(held - container.usage_mib, 1)}


def protected_child(guest: Guest) -> dict[str, Any]:
    """A child's ``memory.min`` holds against reclaim at its parent, not against reclaim at itself."""
    container = guest.container(limit_mib=256)
    (container.path / "cgroup.subtree_control").write_text("+memory")
    child = container.path / "inner"
    child.mkdir()
    (child / "memory.min").write_text(str(96 * MIB))
    container.start("file", into=child, path=DATA, skip=256, size=80, hot=0)
    at_parent, _ = container.write("memory.reclaim", 32 * MIB)
    at_child, _ = try_write(child / "memory.reclaim", str(32 * MIB))
    return {"at_parent": at_parent, "at_child": at_child}


def _peak_window(container: Container) -> str:
    """Whether a private window of ``memory.peak`` can be begun, and forgets what was before."""
    try:
        fd = os.open(container.path / "memory.peak", os.O_RDWR)
    except PermissionError:
        return "EACCES"
    except OSError as error:
        return str(error.errno)
    try:
        container.write("memory.reclaim", 16 * MIB)
        whole = int(os.pread(fd, 32, 0))
        os.pwrite(fd, b"reset\n", 0)
        window = int(os.pread(fd, 32, 0))
    except OSError as error:
        return os.strerror(error.errno or 0)
    finally:
        os.close(fd)
    return "own window" if window < whole else "no window"


def _trigger(container: Container, stall_us: int, window_us: int) -> str:
    fd = os.open(container.path / "memory.pressure", os.O_RDWR | os.O_NONBLOCK)
    try:
        result = _errno(lambda: os.write(fd, f"some {stall_us} {window_us}\0".encode()))
        if result == "ok":
            poll = select.poll()
            poll.register(fd, select.POLLPRI)
            poll.poll(1)
        return result
    finally:
        os.close(fd)


def _errno(call: Any) -> str:
    import errno

    try:
        call()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "ok"


def _text(path: Path) -> str | None:
    return path.read_text().strip() if path.exists() else None
