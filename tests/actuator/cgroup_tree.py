"""Cgroups as plain files."""

import os
from pathlib import Path

from vpa_ippr.actuator.helper import ReclaimKind

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


def make_cgroup(path: Path, **changes: str | None) -> Path:
    """A cgroup; ``memory__high="0\\n"`` sets a file, None leaves it out."""
    path.mkdir(parents=True)
    for name, text in (FILES | {key.replace("__", "."): value for key, value in changes.items()}).items():
        if text is not None:
            (path / name).write_text(text)
    return path


def make_node(tmp_path: Path) -> tuple[Path, Path]:
    """A cgroup root without pods, and a /proc."""
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    (root / "init.scope").mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (root / "memory.reclaim").write_text("")
    (proc / "pressure").mkdir(parents=True)
    for name in ("memory", "io"):
        (proc / "pressure" / name).write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    return root, proc


class FakeHelper:
    """Notes what it is asked for, and writes limits at once."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.reclaims: list[tuple[int, ReclaimKind]] = []
        self.limits: list[str] = []

    def reclaim(self, _fd: int, amount_bytes: int, kind: ReclaimKind) -> int:
        self.reclaims.append((amount_bytes, kind))
        return self.code

    def set_limit(self, fd: int, text: str) -> int:
        self.limits.append(text)
        os.write(fd, text.encode() + b"\n")
        return self.code
