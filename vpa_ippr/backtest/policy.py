"""What a policy is: it sees what was known at a moment and says what every container should have.

A view holds the slots before the moment and nothing else: its arrays are windows on a buffer that the replay fills slot by slot, so the
future is not hidden but absent. A policy may keep what it has learned from one decision to the next; it then serves one replay only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np

from vpa_ippr.api.series import Floats, Resource


@dataclass(frozen=True, slots=True, eq=False)
class HistoryView:
    """What is known at the beginning of slot ``now``: slots 0 to ``now - 1`` of n series; the arrays are read-only.

    ``usage``: shape (n, now), NaN where nothing was recorded. ``allocation``: what was in force in those slots, NaN before the first
    decision. ``in_force``: what stands at this moment, shape (n,). ``starts``: seconds since the epoch of slot 0 of each series.
    """

    resource: Resource
    step_seconds: float
    starts: Floats
    usage: Floats
    allocation: Floats
    in_force: Floats

    @property
    def now(self) -> int:
        """The slot that is about to begin."""
        return int(self.usage.shape[1])

    @property
    def moments(self) -> Floats:
        """When it begins for each series, in seconds since the epoch."""
        return self.starts + self.now * self.step_seconds

    def recent(self, seconds: float) -> Floats:
        """The usage of the last so many seconds, or of what there is."""
        return self.usage[:, max(0, self.now - round(seconds / self.step_seconds)) :]


@dataclass(frozen=True, slots=True, eq=False)
class Forecasted:
    """What a policy says the largest use within ``horizon_seconds`` stays below, with chance ``quantile``; shape (n,), NaN: unsaid."""

    values: Floats
    quantile: float
    horizon_seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """What each of n series should have (cores or bytes; NaN: keep what there is), and the bounds outside which a resize is urgent.

    ``forecast`` is what the policy can be held to, if it forecasts at all.
    """

    target: Floats
    lower: Floats
    upper: Floats
    forecast: Forecasted | None = None

    @classmethod
    def only(cls, target: Floats) -> Self:
        """Targets of a policy that knows no bounds."""
        return cls(target, target, target)

    def at_least(self, floor: float) -> Targets:
        """With nothing below ``floor``."""
        return replace(
            self, target=np.maximum(self.target, floor), lower=np.maximum(self.lower, floor), upper=np.maximum(self.upper, floor)
        )


class Policy(Protocol):
    """A way to decide."""

    @property
    def name(self) -> str:
        """The name by which the command line knows it."""
        ...

    def decide(self, view: HistoryView) -> Targets:
        """What every series should have from now on; a function of all views so far and of nothing else."""
        ...
