"""The cgroups of journal entries, and those that a person names by path: opened without asking whether this node could shrink them.

What was written must be put back also where pressure files have since been switched off.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vpa_ippr.actuator.cgroup_files import CgroupFiles, Gone
from vpa_ippr.actuator.cgroupfs import CgroupFs, CgroupFsFinder
from vpa_ippr.actuator.journal import Entry
from vpa_ippr.actuator.locate import open_below, open_root
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.errors import ActuatorError, UsageError

if TYPE_CHECKING:
    from vpa_ippr.actuator.systemd import GuardWriter


class NodeCgroups:
    """Below one cgroup root, which is held open.

    Args:
        finder: of this node's containers.
        root: where cgroup v2 is mounted.
        proc: the host's /proc.
        guards: tells systemd of guards; without it they are written by file alone.
    """

    def __init__(self, finder: CgroupFsFinder, root: Path, proc: Path = Path("/proc"), guards: GuardWriter | None = None) -> None:
        self.root = root
        self.finder = finder
        self._root_fd = open_root(str(root))
        self._proc = proc
        self._guards = guards

    def of_entry(self, entry: Entry) -> CgroupFs | None:
        """What bears the entry's name now; None when nothing does.

        Raises:
            ActuatorError: the name cannot be one, or the directory cannot be opened.
        """
        if entry.cgroup_path is not None:
            cgroup = self.open(entry.cgroup_path)
        else:
            cgroup = self.finder.reopen(entry.pod_uid, entry.container_id, entry.qos_class)
        if cgroup is not None and cgroup.identity() == entry.cgroup_identity:
            cgroup.take_over(entry.unit_high, entry.guard_bytes)
        return cgroup

    def open(self, path: str) -> CgroupFs | None:
        """The cgroup at a path below the root; None when there is none. Raises as ``of_entry``."""
        components = tuple(path.split("/"))
        fd = open_below(self._root_fd, components)
        if fd is None:
            return None
        unit = self._guards.unit_at(components) if self._guards is not None else None
        return CgroupFs(fd, str(self.root / path), unit=unit, proc=self._proc)

    def files(self, path: str) -> CgroupFiles:
        """Its files, one by one.

        Raises:
            ActuatorError: as ``of_entry``, or it is gone.
        """
        fd = open_below(self._root_fd, tuple(path.split("/")))
        if fd is None:
            raise ActuatorError(f"cgroup {self.root / path} is gone", reason=Reason.CONTAINER_GONE)
        return CgroupFiles(fd, str(self.root / path))

    def thaw(self, entry: Entry) -> None:
        """Let the processes of the entry's cgroup go on, if it is still the very one. Raises as ``of_entry``."""
        if entry.cgroup_path is None:
            return
        files = self.files(entry.cgroup_path)
        try:
            if files.inode == entry.cgroup_identity:
                files.put("cgroup.freeze", "0")
        except Gone:
            pass
        finally:
            files.close()

    def below_root(self, given: str) -> str:
        """A path as a person gives it, absolute or from the root on, as the path below the root.

        Raises:
            UsageError: it is the root itself, or lies elsewhere (reason ``BadCgroup``).
        """
        path = given
        if given.startswith("/"):
            root = str(self.root).rstrip("/") + "/"
            if not given.startswith(root):
                raise UsageError(f"{given} is not below the cgroup root {self.root}: give --cgroup-root", reason="BadCgroup")
            path = given.removeprefix(root)
        path = path.rstrip("/")
        if not path:
            raise UsageError(f"{given} is the cgroup root itself: name a cgroup below it", reason="BadCgroup")
        return path

    def close(self) -> None:
        """Let the root go."""
        os.close(self._root_fd)
