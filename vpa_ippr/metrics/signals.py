"""What containers go through, asked of a Prometheus at one moment: throttled CPU periods, and pressure (PSI)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.signals import Signals
from vpa_ippr.metrics.queries import quote

# cAdvisor's counters. A pressure of 1 is a task waiting all of the time.
_THROTTLED: Final = "sum by (container) (increase({0}{{{2}}}[{3}s])) / sum by (container) (increase({1}{{{2}}}[{3}s]) > 0)"
_WAITING: Final = "max by (container) (rate({0}{{{1}}}[{2}s]))"


def read_signals(
    ask: Callable[[str, float], dict[str, float]], pod: ObjectKey, at: float, window_seconds: float, extra_matchers: tuple[str, ...] = ()
) -> dict[str, Signals]:
    """By container, over the ``window_seconds`` before ``at``. ``ask`` answers a query at a moment with a value for each container.

    Raises:
        SourceError: Prometheus cannot be read.
    """
    own = (f"namespace={quote(pod.namespace)}", f"pod={quote(pod.name)}", 'container!=""')
    selector, window = ",".join((*own, *extra_matchers)), max(round(window_seconds), 1)
    throttled = ask(_THROTTLED.format("container_cpu_cfs_throttled_periods_total", "container_cpu_cfs_periods_total", selector, window), at)
    waiting = {
        name: ask(_WAITING.format(f"container_pressure_{name}_waiting_seconds_total", selector, window), at) for name in ("cpu", "memory")
    }
    names = {*throttled, *waiting["cpu"], *waiting["memory"]}
    return {
        name: Signals(_share(throttled.get(name)), _share(waiting["cpu"].get(name)), _share(waiting["memory"].get(name))) for name in names
    }


def _share(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else min(max(value, 0.0), 1.0)
