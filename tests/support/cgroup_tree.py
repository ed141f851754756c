"""A node of plain files for the actuator's command line: a cgroup root, a /proc, a journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.cli import Outcome, run
from vpa_ippr.actuator.journal import Entry, Journal
from vpa_ippr.api.clock import boottime_seconds
from vpa_ippr.api.shrink import Phase

MIB = 1 << 20
FILES = {
    "cgroup.events": "populated 1\nfrozen 0\n",
    "cgroup.freeze": "0\n",
    "memory.current": f"{400 * MIB}\n",
    "memory.high": "max\n",
    "memory.max": f"{512 * MIB}\n",
    "memory.stat": f"anon {40 * MIB}\nactive_file {60 * MIB}\ninactive_file {300 * MIB}\n",
    "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
    "memory.reclaim": "",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
    "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
}


class Node:
    """A cgroup root, a /proc and a journal."""

    def __init__(self, directory: Path) -> None:
        self.root, self.proc, self.journal = directory / "cgroup", directory / "proc", directory / "journal"
        self.root.mkdir()
        (self.root / "cgroup.controllers").write_text("memory\n")
        (self.root / "memory.reclaim").write_text("")
        for name, text in {
            "pressure/memory": FILES["memory.pressure"],
            "pressure/io": FILES["io.pressure"],
            "sys/kernel/random/boot_id": "b\n",
            "swaps": "Filename\n",
        }.items():
            (self.proc / name).parent.mkdir(parents=True, exist_ok=True)
            (self.proc / name).write_text(text)
        self.db = self.add("system.slice/db.scope")

    def add(self, path: str, **changes: str) -> Path:
        directory = self.root / path
        directory.mkdir(parents=True)
        for name, text in (FILES | changes).items():
            (directory / name).write_text(text)
        return directory

    def run(self, command: str, *arguments: object) -> Outcome:
        place = ["--cgroup-root", self.root, "--proc", self.proc, "--state-dir", self.journal]
        return run("actuator", command, *map(str, [*place, *arguments]))

    def leave(self, uid: str = "s1", path: str = "system.slice/db.scope", guard: int = 300 * MIB, **changes: Any) -> Journal:
        """The journal of an owner that has gone."""
        directory = self.root / path
        (directory / "memory.high").write_text(f"{guard}\n")
        fields = {
            "boot_id": "b",
            "shrink_uid": uid,
            "namespace": "",
            "name": path,
            "pod_name": "",
            "pod_uid": "",
            "container_name": "",
            "container_id": "",
            "qos_class": "",
            "cgroup_identity": directory.stat().st_ino,
            "original_high_bytes": None,
            "original_max_bytes": 512 * MIB,
            "target_bytes": 256 * MIB,
            "guard_bytes": guard,
            "previous_guard_bytes": None,
            "phase": Phase.SHRINKING,
            "started_at": 1.0,
            "deadline_at": 901.0,
            "deadline_boottime_seconds": boottime_seconds() + 600,
            "cgroup_path": path,
        }
        journal = Journal(self.journal, "b")
        journal.write(Entry(**fields | changes))
        return journal

    def high(self) -> str:
        return (self.db / "memory.high").read_text().splitlines()[0]

    def entries(self) -> list[str]:
        return [path.name for path in self.journal.glob("*.json")]
