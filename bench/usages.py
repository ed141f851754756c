"""Seeded usage: a daily rhythm with noise for CPU, a level with noise for memory."""

from __future__ import annotations

import numpy as np

from bench.objects import DAY_SECONDS
from vpa_ippr.api.series import ContainerRef, Floats, Resource, UsageSeries


def grid(end: float, seconds: float, step_seconds: float) -> Floats:
    """Times with ``end - seconds < t <= end``."""
    count = int(seconds // step_seconds)
    return end - step_seconds * np.arange(count - 1, -1, -1, dtype=np.float64)


class Curves:
    """Values for many containers, drawn from a few curves so that making them costs no time and little memory."""

    def __init__(self, times: Floats, curves: int = 16, seed: int = 3) -> None:
        chance = np.random.default_rng(seed)
        self._times = times
        rhythm = 1.2 + np.sin(times * (2 * np.pi / DAY_SECONDS))
        self._cpu = [0.1 * (1 + index % 5) * rhythm * chance.gamma(4.0, 0.25, times.size) for index in range(curves)]
        self._memory = [2e8 * (1 + index % 7) * chance.normal(1.0, 0.05, times.size).clip(0.5) for index in range(curves)]

    def series(self, container: ContainerRef, number: int) -> tuple[UsageSeries, UsageSeries]:
        """CPU and memory of the container with that number."""
        cpu, memory = (curves[number % len(curves)] for curves in (self._cpu, self._memory))
        return UsageSeries(container, Resource.CPU, self._times, cpu), UsageSeries(container, Resource.MEMORY, self._times, memory)
