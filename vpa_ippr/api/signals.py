"""What a container goes through, as Prometheus tells it at one moment."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Signals:
    """Shares of 1 (None: not known): throttled CFS periods; time with a task waiting for CPU, for memory (PSI)."""

    cpu_throttled: float | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None
