"""The command line on a cgroup of no pod: ``vpa-ippr actuator shrink``, what is left when it is killed, and who puts it back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kernel.harness.containers import DATA, Container, Guest
from kernel.harness.machine import CGROUPS, MIB

_FULL_DISK = Path("/run/full")
_OLD_HIERARCHY = Path("/run/cgroup-v1")
LIMIT_MIB, TARGET_MIB, CACHE_MIB = 200, 100, 130
_PACE = ("--observe", "5s", "--settle", "2s", "--stability", "4s", "--step-percent", "10", "--deadline", "180s")
_PATIENCE_SECONDS = 240.0
_HEALING_SECONDS = 30.0


def shrink(guest: Guest, commit: str, freeze: bool = True, skip: int = 0) -> dict[str, Any]:
    """To its end: cold page cache goes, and the limit follows. Before that a rehearsal, of which the cgroup must not notice anything."""
    container = _standalone(guest, skip)
    before = _left(container)
    rehearsal, _ = _command("shrink", *_cgroup(container), *_PACE, "--dry-run", "-o", "json", journal=_journal(container)).communicate()
    rehearsed = _left(container)
    options = ["--commit", commit, "--probation", "10s", "--freeze" if freeze else "--no-freeze"]
    began = time.monotonic()
    done = _command("shrink", *_cgroup(container), *_PACE, *options, "-o", "json", journal=_journal(container))
    out, err = done.communicate()
    return {
        "rehearsal": _json(rehearsal),
        "before": before,
        "rehearsed": rehearsed,
        "status": done.returncode,
        "out": _json(out),
        "err": err[-2000:],
        "seconds": round(time.monotonic() - began, 1),
        **_left(container),
    }


def killed(guest: Guest, phase: str, by: str, healer: str, skip: int = 0) -> dict[str, Any]:
    """End it by a signal in a phase, and let the healer (``restore``, ``guard``, ``nobody``) put it back.

    ``healed_seconds``: from the end of the process (for ``guard``) or the start of the healer until ``memory.high`` and the journal are as
    before the shrink; ``idle_seconds``: what the healer takes where there is nothing to put back, which is the start of Python.
    """
    container = _standalone(guest, skip)
    journal = _journal(container)
    journal.mkdir(exist_ok=True)
    idle_seconds = _seconds_of(_command("restore", journal=journal)) if healer == "restore" else 0.0
    guard = _command("guard", journal=journal) if healer == "guard" else None
    commit = "none" if phase == "Holding" else "direct"  # with a commit of its own it holds for a moment only
    process = _command("shrink", *_cgroup(container), *_PACE, "--commit", commit, "--probation", "60s", journal=journal)
    seen = _wait_for_phase(process, phase, container)
    high_then = container.text("memory.high")
    process.send_signal(signal.Signals[by])
    out, _ = process.communicate()
    after_death, began = _left(container), time.monotonic()
    healing = _command("restore", journal=journal) if healer == "restore" else guard
    _wait(lambda: container.text("memory.high") == "max" and not _entries(container), _HEALING_SECONDS)
    healed_seconds = time.monotonic() - began
    answer = ""
    if healing is not None:
        if healing is guard:
            healing.terminate()
        answer = "".join(healing.communicate())
    return {
        "phases": seen,
        "high_then": high_then,
        "status": process.returncode,
        "out": out,
        "after_death": after_death,
        "healed_seconds": round(healed_seconds, 2),
        "idle_seconds": round(idle_seconds, 2),
        "answer": answer[-2000:],
        **_left(container),
    }


def full_disk(guest: Guest, skip: int = 0) -> dict[str, Any]:
    """A journal that cannot be written: refused before the kernel is asked for anything."""
    container = _standalone(guest, skip)
    _mount("tmpfs", _FULL_DISK, "tmpfs", "size=16k")
    with contextlib.suppress(OSError), (_FULL_DISK / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(4096))
    usage = container.usage_mib
    done = _command("shrink", *_cgroup(container), *_PACE, "--commit", "direct", "-o", "json", journal=_FULL_DISK)
    out, err = done.communicate()
    files = sorted(path.name for path in _FULL_DISK.iterdir())
    return {
        "status": done.returncode,
        "out": _json(out),
        "err": err[-2000:],
        "freed_mib": usage - container.usage_mib,
        "files": files,
        **_left(container),
    }


def refused(guest: Guest, root: str = "", skip: int = 0) -> dict[str, Any]:
    """On a node that cannot do it: ``root="cgroup-v1"`` names a hierarchy of version 1, else it is the machine's own."""
    container = _standalone(guest, skip)
    before = _left(container)
    where: tuple[str, ...] = ()
    if root:
        _mount("cgroup", _OLD_HIERARCHY, "cgroup", "none,name=lab")
        where = ("--cgroup-root", str(_OLD_HIERARCHY))
    done = _command("shrink", *_cgroup(container), *_PACE, *where, "--commit", "direct", journal=_journal(container))
    out, err = done.communicate()
    return {"status": done.returncode, "out": out, "err": err[-2000:], "before": before, "after": _left(container)}


def clock_jump(guest: Guest, by_seconds: float, skip: int = 0) -> dict[str, Any]:
    """The wall clock is set while the guard stands."""
    container = _standalone(guest, skip)
    process = _command("shrink", *_cgroup(container), *_PACE, "--commit", "direct", "--probation", "10s", journal=_journal(container))
    _wait_for_phase(process, "Shrinking", container)
    began = time.monotonic()
    time.clock_settime(time.CLOCK_REALTIME, time.time() + by_seconds)
    try:
        out, err = process.communicate()
    finally:
        time.clock_settime(time.CLOCK_REALTIME, time.time() - by_seconds)
    seconds = round(time.monotonic() - began, 1)
    return {"status": process.returncode, "out": out, "err": err[-2000:], "seconds": seconds, **_left(container)}


def _mount(source: str, target: Path, kind: str, options: str) -> None:
    target.mkdir(exist_ok=True)
    words = [sys.executable, "-c", _MOUNT, source, str(target), kind, options]
    subprocess.run(words, check=True)


_MOUNT = "import ctypes, sys; a = [word.encode() for word in sys.argv[1:]]; sys.exit(ctypes.CDLL(None).mount(*a[:3], 0, a[3]))"


def _standalone(guest: Guest, skip: int) -> Container:
    """A cgroup beside Kubernetes', full of cold page cache from its own part of the data."""
    made = guest.container(limit_mib=LIMIT_MIB)
    path = CGROUPS / f"standalone-{made.path.name[15:23]}"
    path.mkdir()
    made.path.rmdir()
    made.path.parent.rmdir()
    made.path = path
    for name, value in (("memory.swap.max", 0), ("memory.max", LIMIT_MIB * MIB)):
        if (path / name).exists():
            (path / name).write_text(str(value))
    made.start("file", path=DATA, skip=skip, size=CACHE_MIB, hot=0)
    return made


def _journal(container: Container) -> Path:
    """Its own, for others run beside it."""
    return Path("/run") / f"journal-{container.path.name}"


def _cgroup(container: Container) -> tuple[str, ...]:
    return "--cgroup", container.path.name, "--target", f"{TARGET_MIB}Mi"


def _command(name: str, *arguments: str, journal: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-s", "-m", "vpa_ippr.cli", "actuator", name, "--state-dir", str(journal), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "LC_ALL": "C.UTF-8"}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _seconds_of(process: subprocess.Popen[str]) -> float:
    began = time.monotonic()
    process.communicate()
    return time.monotonic() - began


def _wait_for_phase(process: subprocess.Popen[str], phase: str, container: Container) -> list[str]:
    """The phases up to that one; in Shrinking and later until a guard stands, or the limit is set, which is when it matters."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line.partition(": ")[2].partition(" |")[0])
        if seen[-1] == phase:
            if phase == "Shrinking":
                _wait(lambda: container.text("memory.high") != "max", _PATIENCE_SECONDS)
            return seen
    raise RuntimeError(f"never came to {phase}: {seen}, {process.communicate()}")


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return
        time.sleep(0.05)


def _left(container: Container) -> dict[str, Any]:
    return {
        "high": container.text("memory.high"),
        "max_mib": int(container.text("memory.max")) // MIB,
        "frozen": container.table("cgroup.events")["frozen"],
        "usage_mib": round(container.usage_mib, 1),
        "oom_kills": container.table("memory.events")["oom_kill"],
        "is_alive": all(workload.is_alive for workload in container.workloads),
        "entries": _entries(container),
    }


def _entries(container: Container) -> list[str]:
    return sorted(path.name for path in _journal(container).glob("*.json"))


def _json(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except json.JSONDecodeError:
        return {"text": text}
