"""What a scenario works with in the guest: containers in the kubelet's layout, workloads in them, and what both did over a time."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel.harness.machine import CGROUPS, DISK, MIB
from kernel.harness.places import GUEST_WORKLOAD

DATA = DISK / "data"
_PROGRAMS = 16
_CONTROLLERS = "+memory +io +cpu +pids"
_START_SECONDS = 120.0
_PATIENCE_SECONDS = 30.0
_numbers = itertools.count()


def try_write(path: Path, text: str, flags: int = 0) -> tuple[str, float]:
    """One write(2): ``ok`` or the errno's name, and how many seconds it took."""
    began = time.monotonic()
    result = "ok"
    try:
        fd = os.open(path, os.O_WRONLY | flags)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)
    except OSError as error:
        result = errno.errorcode.get(error.errno or 0, str(error.errno))
    return result, time.monotonic() - began


@dataclass(frozen=True)
class Look:
    """A container's counters at one moment."""

    at: float
    usage_bytes: int
    high: str
    limit: str
    memory_some_us: int
    memory_full_us: int
    io_some_us: int
    refaults: int
    major_faults: int
    events: dict[str, int]


class Workload:
    """One running ``wl``."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    def wait_until_ready(self) -> None:
        """Until its memory is set up. Raises RuntimeError when that fails."""
        patience = time.monotonic() + _START_SECONDS
        while "ready" not in self._text():
            if self.process.poll() is not None or time.monotonic() > patience:
                raise RuntimeError(f"workload did not start (status {self.process.poll()}): {self._text()[-300:]!r}")
            time.sleep(0.02)

    def rate(self, since: float, until: float) -> float:
        """Operations a second between two moments of the monotonic clock; seconds that straddle an edge count by their share."""
        done = 0.0
        before = None
        for at, ops, _, _ in self._lines():
            began = at - 1 if before is None else before
            before = at
            share = (min(at, until) - max(began, since)) / (at - began)
            done += ops * max(0.0, share)
        return done / (until - since)

    def latency(self, since: float, until: float) -> dict[str, float | None]:
        """Median of the seconds' 99th percentiles, and the longest operation, in milliseconds; None when none was done."""
        seen = [(p99, longest) for at, _, p99, longest in self._lines() if since <= at <= until]
        if not seen:
            return {"p99_ms": None, "max_ms": None}
        return {"p99_ms": sorted(p99 for p99, _ in seen)[len(seen) // 2] / 1e3, "max_ms": max(longest for _, longest in seen) / 1e3}

    @property
    def is_alive(self) -> bool:
        """Whether it runs still."""
        return self.process.poll() is None

    def _text(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def _lines(self) -> Iterator[tuple[float, int, int, int]]:
        for line in self._text().splitlines():
            words = line.split()
            if len(words) == 4 and words[0] != "error":
                yield float(words[0]), int(words[1]), int(words[2]), int(words[3])


@dataclass
class Container:
    """A container's cgroup, in a pod's, where the kubelet and the runtime would have put it."""

    path: Path
    pod_uid: str
    container_id: str
    qos_class: str
    program: Path
    workloads: list[Workload] = field(default_factory=list)

    def start(self, mode: str, *, into: Path | None = None, wait: bool = True, **options: object) -> Workload:
        """A workload in this container (or in a cgroup below it); back when its memory is set up."""
        log = Path(f"/run/wl-{os.getpid()}-{next(_numbers)}.log")
        words = [f"{key}={value}" for key, value in options.items()]
        procs = (into or self.path) / "cgroup.procs"
        # Into the cgroup before the program is run, as a runtime does it: its text is charged to whom first reads it.
        process = subprocess.Popen([str(self.program), str(log), mode, *words], preexec_fn=lambda: procs.write_text("0"))  # noqa: PLW1509
        started = Workload(process, log)
        self.workloads.append(started)
        if wait:
            started.wait_until_ready()
        return started

    def write(self, name: str, value: object, flags: int = 0) -> tuple[str, float]:
        """One write to one of the cgroup's files."""
        return try_write(self.path / name, str(value), flags)

    def text(self, name: str) -> str:
        """One of the cgroup's files."""
        return (self.path / name).read_text().strip()

    def table(self, name: str) -> dict[str, int]:
        """One of the cgroup's files of keys and numbers."""
        return {key: int(value) for key, value in (line.split() for line in self.text(name).splitlines())}

    @property
    def usage_mib(self) -> float:
        """``memory.current`` in MiB."""
        return int(self.text("memory.current")) / MIB

    def look(self) -> Look:
        """All counters now."""
        stat, memory, io = self.table("memory.stat"), self._stalls("memory.pressure"), self._stalls("io.pressure")
        return Look(
            at=time.monotonic(),
            usage_bytes=int(self.text("memory.current")),
            high=self.text("memory.high"),
            limit=self.text("memory.max"),
            memory_some_us=memory[0],
            memory_full_us=memory[1],
            io_some_us=io[0],
            refaults=stat.get("workingset_refault_file", 0) + stat.get("workingset_refault_anon", 0),
            major_faults=stat["pgmajfault"],
            events=self.table("memory.events"),
        )

    def _stalls(self, name: str) -> tuple[int, int]:
        totals = [int(line.rpartition("total=")[2]) for line in self.text(name).splitlines()]
        return totals[0], totals[1] if len(totals) > 1 else 0


def between(before: Look, after: Look) -> dict[str, Any]:
    """What happened from one look to another."""
    seconds = after.at - before.at
    return {
        "seconds": round(seconds, 3),
        "usage_before_mib": round(before.usage_bytes / MIB, 1),
        "usage_after_mib": round(after.usage_bytes / MIB, 1),
        "stall_seconds": round((after.memory_some_us - before.memory_some_us) / 1e6, 3),
        "memory_some_percent": round((after.memory_some_us - before.memory_some_us) / 1e4 / seconds, 2),
        "memory_full_percent": round((after.memory_full_us - before.memory_full_us) / 1e4 / seconds, 2),
        "io_some_percent": round((after.io_some_us - before.io_some_us) / 1e4 / seconds, 2),
        "refault_mib": round((after.refaults - before.refaults) / 256, 2),
        "major_faults": after.major_faults - before.major_faults,
        "events": {key: after.events[key] - before.events.get(key, 0) for key in after.events},
    }


class Watcher:
    """Looks at a container at intervals from a thread of its own, for the trace of a run."""

    def __init__(self, container: Container, every_seconds: float = 1.0) -> None:
        self.looks: list[Look] = []
        self._container = container
        self._every = every_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def trace(self) -> list[list[Any]]:
        """``[seconds, usage MiB, memory.high, memory.max, memory some us, io some us, refaults, major faults]`` for each look."""
        return [
            [
                round(look.at - self.looks[0].at, 2),
                round(look.usage_bytes / MIB, 2),
                _mib(look.high),
                _mib(look.limit),
                look.memory_some_us - self.looks[0].memory_some_us,
                look.io_some_us - self.looks[0].io_some_us,
                look.refaults - self.looks[0].refaults,
                look.major_faults - self.looks[0].major_faults,
            ]
            for look in self.looks
        ]

    def _watch(self) -> None:
        while not self._stop.is_set():
            try:
                self.looks.append(self._container.look())
            except OSError:
                return  # the container is gone: so is there nothing to see
            self._stop.wait(self._every)


class Guest:
    """A machine with Kubernetes' cgroups, as one scenario finds it.

    Args:
        first_program: which copy of the workloads' program its first container runs; those that run at once need one each.
    """

    def __init__(self, first_program: int = 0) -> None:
        self.release = os.uname().release
        self._first_program = first_program
        self._containers: list[Container] = []

    def container(self, *, limit_mib: int, layout: str = "systemd", swap_mib: int = 0, qos_class: str = "Burstable") -> Container:
        """A new container under ``memory.max``; swap is off in it unless said, as runtimes set it."""
        pod_uid, hexadecimal = str(uuid.uuid4()), uuid.uuid4().hex + uuid.uuid4().hex
        path = CGROUPS / _pod_path(layout, pod_uid) / (f"cri-containerd-{hexadecimal}.scope" if layout == "systemd" else hexadecimal)
        _make(path)
        program = _program((self._first_program + len(self._containers)) % _PROGRAMS)
        made = Container(path, pod_uid, f"containerd://{hexadecimal}", qos_class, program)
        self._containers.append(made)
        for name, value in (("memory.swap.max", swap_mib * MIB), ("memory.max", limit_mib * MIB), ("memory.oom.group", 1)):
            if (path / name).exists():
                (path / name).write_text(str(value))
        return made

    def again(self, container: Container) -> Container:
        """The same path as a new cgroup: what a restart of a container leaves behind."""
        _clear(container)
        container.path.mkdir()
        return container

    def clean(self, *, everything: bool = True) -> None:
        """Kill and remove all that was made, so that the next scenario finds nothing of this one; without ``everything`` no files."""
        for container in self._containers:
            _clear(container)
            with contextlib.suppress(OSError):
                container.path.parent.rmdir()
        self._containers.clear()
        if everything:
            for left in (*Path("/dev/shm").iterdir(), *DISK.glob("scratch*"), *Path("/run").glob("wl-*")):  # noqa: S108
                left.unlink()


def install_programs() -> None:
    """Put the workloads' program on the disk, once for each container of a scenario.

    In the initial file system its text could not be reclaimed, which that of a container can; and containers that share a file share its
    page cache, which is charged to the first.
    """
    for number in range(_PROGRAMS):
        shutil.copy(GUEST_WORKLOAD, _program(number))
        _program(number).chmod(0o755)


def _program(number: int) -> Path:
    return DISK / f"wl-{number}"


def _pod_path(layout: str, pod_uid: str) -> Path:
    if layout == "systemd":
        escaped = pod_uid.replace("-", "_")
        return Path("kubepods.slice/kubepods-burstable.slice") / f"kubepods-burstable-pod{escaped}.slice"
    if layout == "cgroupfs":
        return Path("kubepods/burstable") / f"pod{pod_uid}"
    raise ValueError(f"no such layout: {layout}")


def _make(path: Path) -> None:
    """The cgroup and those above it, which pass the controllers on."""
    above = CGROUPS
    for part in path.relative_to(CGROUPS).parts:
        (above / "cgroup.subtree_control").write_text(_CONTROLLERS)
        above = above / part
        above.mkdir(exist_ok=True)


def _clear(container: Container) -> None:
    (container.path / "cgroup.kill").write_text("1")
    for workload in container.workloads:
        workload.process.wait(_PATIENCE_SECONDS)
    container.workloads.clear()
    for path in sorted(container.path.rglob("*/"), reverse=True):
        if path.is_dir():
            _remove(path)
    _remove(container.path)


def _remove(path: Path) -> None:
    patience = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            path.rmdir()
        except OSError:
            if time.monotonic() > patience:
                raise
            time.sleep(0.02)
        else:
            return


def _mib(text: str) -> float | None:
    return None if text == "max" else round(int(text) / MIB, 2)
