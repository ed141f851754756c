"""What this node's kernel can do, found by trying and never by its version."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from vpa_ippr.actuator.cgroup_files import CgroupFiles, Gone
from vpa_ippr.actuator.helper import HelperProcess
from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.errors import ActuatorError

_FILL_BYTES = 8 * 1024 * 1024
_SQUEEZED_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Features:
    """The four things without which nothing is shrunk, and what else is good to know."""

    unified: bool
    """cgroup v2 is mounted at the root."""
    memory_controller: bool
    reclaim: bool
    """``memory.reclaim`` (5.19): the step tool that neither kills, throttles nor over-shoots."""
    pressure: bool
    """PSI is compiled in and switched on."""
    file_only_reclaim: bool | None = None
    """``memory.reclaim`` takes ``swappiness=``; None when the root's could not be written."""
    kernel_release: str = "of unknown release"
    """For messages; nothing is decided by it."""

    def require(self) -> None:
        """Raise ActuatorError with the reason when the node cannot shrink."""
        old = f"Linux {self.kernel_release} has no memory.reclaim: 5.19 or later is needed"
        for is_there, reason, message in (
            (self.unified, Reason.CGROUP_V1, "cgroup v2 is not mounted: boot with systemd.unified_cgroup_hierarchy=1"),
            (self.memory_controller, Reason.NO_MEMORY_CONTROLLER, "the memory controller is off: boot without cgroup_disable=memory"),
            (self.reclaim, Reason.KERNEL_TOO_OLD, old),
            (self.pressure, Reason.PRESSURE_UNAVAILABLE, "pressure stall information is off: boot with psi=1"),
        ):
            if not is_there:
                raise ActuatorError(message, reason=reason)

    def as_fields(self) -> dict[str, object]:
        """For a log line."""
        return asdict(self)


def probe(root: Path, proc: Path) -> Features:
    """Look at the cgroup root and at ``/proc/pressure``."""
    controllers = _text(root / "cgroup.controllers")
    return Features(
        unified=controllers is not None,
        memory_controller=controllers is not None and "memory" in controllers.split(),
        reclaim=(root / "memory.reclaim").exists(),
        pressure=all("total=" in (_text(proc / "pressure" / name) or "") for name in ("memory", "io")),
        file_only_reclaim=_takes_swappiness(root),
        kernel_release=(_text(proc / "sys/kernel/osrelease") or "of unknown release").strip(),
    )


def honours_nonblocking(root: Path, scratch: Path, helper: HelperProcess | None = None) -> bool | None:
    """Whether O_NONBLOCK makes a limit's write return without reclaiming (Linux 6.16); None when it cannot be found out.

    Older kernels ignore the flag without an error, so it is tried: page cache is charged to a cgroup of our own, whose ``memory.high`` is
    then set below it. What is left tells.

    Args:
        root: where cgroup v2 is mounted; a child is made there and removed again.
        scratch: a directory on a disk, for a file of 8 MiB.
        helper: for the process that leaves the page cache.
    """
    directory = root / f"vpa-ippr-self-test-{os.getpid()}"
    try:
        directory.mkdir()
    except OSError:
        return None
    try:
        files = CgroupFiles(os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), str(directory))
        with contextlib.closing(files):
            return _squeeze(files, scratch / f".{directory.name}", helper or HelperProcess())
    except (OSError, ValueError, ActuatorError, Gone):
        return None
    finally:
        with contextlib.suppress(OSError):
            directory.rmdir()


def _squeeze(files: CgroupFiles, scratch: Path, helper: HelperProcess) -> bool | None:
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        # Unlinked it would lose its pages.
        procs = files.open("cgroup.procs", os.O_WRONLY)
        try:
            if helper.fill(procs, fd, _FILL_BYTES) != 0:
                return None
        finally:
            os.close(procs)
        before = _page_cache_bytes(files)
        # Pages of a tmpfs are not page cache, and stay whatever the kernel does.
        if before < _FILL_BYTES // 2:
            return None
        files.put("memory.high", str(_SQUEEZED_BYTES), nonblocking=True)
        left = _page_cache_bytes(files) / before
    finally:
        os.close(fd)
        scratch.unlink(missing_ok=True)
    return True if left > 0.9 else (False if left < 0.5 else None)


def _page_cache_bytes(files: CgroupFiles) -> int:
    stat = files.flat("memory.stat")
    return stat.get("active_file", 0) + stat.get("inactive_file", 0)


def _takes_swappiness(root: Path) -> bool | None:
    """Reclaim nothing at all in that way: no kernel minds."""
    try:
        fd = os.open(root / "memory.reclaim", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.write(fd, b"0 swappiness=0")
    except OSError as error:
        return False if error.errno == errno.EINVAL else None
    finally:
        os.close(fd)
    return True


def _text(path: Path) -> str | None:
    """The file, or None: a missing file and one that answers EOPNOTSUPP (PSI off) both mean that the feature is not there."""
    try:
        return path.read_text()
    except OSError:
        return None
