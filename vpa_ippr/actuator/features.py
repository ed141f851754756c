"""What this node's kernel can do, found by trying and never by its version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vpa_ippr.actuator.reasons import Reason
from vpa_ippr.api.errors import ActuatorError


@dataclass(frozen=True, slots=True)
class Features:
    """The four things without which nothing is shrunk."""

    unified: bool
    """cgroup v2 is mounted at the root."""
    memory_controller: bool
    reclaim: bool
    """``memory.reclaim`` (5.19): the step tool that neither kills, throttles nor over-shoots."""
    pressure: bool
    """PSI is compiled in and switched on."""

    def require(self) -> None:
        """Raise ActuatorError with the reason when the node cannot shrink."""
        for is_there, reason, message in (
            (self.unified, Reason.CGROUP_V1, "cgroup v2 is not mounted: boot with systemd.unified_cgroup_hierarchy=1"),
            (self.memory_controller, Reason.NO_MEMORY_CONTROLLER, "the memory controller is off: boot without cgroup_disable=memory"),
            (self.reclaim, Reason.KERNEL_TOO_OLD, "the kernel has no memory.reclaim: 5.19 or later is needed"),
            (self.pressure, Reason.PRESSURE_UNAVAILABLE, "pressure stall information is off: boot with psi=1"),
        ):
            if not is_there:
                raise ActuatorError(message, reason=reason)


def probe(root: Path, proc: Path) -> Features:
    """Look at the cgroup root and at ``/proc/pressure``."""
    controllers = _text(root / "cgroup.controllers")
    return Features(
        unified=controllers is not None,
        memory_controller=controllers is not None and "memory" in controllers.split(),
        reclaim=(root / "memory.reclaim").exists(),
        pressure=all("total=" in (_text(proc / "pressure" / name) or "") for name in ("memory", "io")),
    )


def _text(path: Path) -> str | None:
    """The file, or None: a missing file and one that answers EOPNOTSUPP (PSI off) both mean that the feature is not there."""
    try:
        return path.read_text()
    except OSError:
        return None
