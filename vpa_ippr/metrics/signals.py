"""What containers go through, asked of a Prometheus at one moment: throttled CPU periods, and pressure (PSI)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from vpa_ippr.api.signals import Signals
from vpa_ippr.metrics.queries import one_of, quote

# cAdvisor's counters. A pressure of 1 is a task waiting all of the time.
_THROTTLED: Final = "sum by (pod, container) (increase({0}{{{2}}}[{3}s])) / sum by (pod, container) (increase({1}{{{2}}}[{3}s]) > 0)"
_WAITING: Final = "max by (pod, container) (rate({0}{{{1}}}[{2}s]))"


def read_signals(
    ask: Callable[[str, float], dict[tuple[str, str], float]],
    namespace: str,
    pods: Sequence[str],
    at: float,
    window_seconds: float,
    extra_matchers: tuple[str, ...] = (),
) -> dict[str, dict[str, Signals]]:
    """By pod and container, over the ``window_seconds`` before ``at``. ``ask`` answers a query at a moment with a value for each of those.

    Raises:
        SourceError: Prometheus cannot be read.
    """
    own = (f"namespace={quote(namespace)}", one_of("pod", pods), 'container!=""')
    selector, window = ",".join((*own, *extra_matchers)), max(round(window_seconds), 1)
    throttled = ask(_THROTTLED.format("container_cpu_cfs_throttled_periods_total", "container_cpu_cfs_periods_total", selector, window), at)
    waiting = {
        name: ask(_WAITING.format(f"container_pressure_{name}_waiting_seconds_total", selector, window), at) for name in ("cpu", "memory")
    }
    found: dict[str, dict[str, Signals]] = {}
    for key in {*throttled, *waiting["cpu"], *waiting["memory"]}:
        pod, container = key
        shares = Signals(_share(throttled.get(key)), _share(waiting["cpu"].get(key)), _share(waiting["memory"].get(key)))
        found.setdefault(pod, {})[container] = shares
    return found


def _share(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else min(max(value, 0.0), 1.0)
