"""How the recommender runs, and what one of its cycles did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vpa_ippr.api.errors import EXIT_DONE, EXIT_FAILED, EXIT_PARTIAL
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import Finding, WorkloadRef
from vpa_ippr.recommend.result import Recommendation
from vpa_ippr.recommend.rounding import AS_COMPUTED, Rounding
from vpa_ippr.recommend.status import Problem
from vpa_ippr.usage.container import DAY_SECONDS


@dataclass(frozen=True, slots=True)
class RecommenderSettings:
    """How the recommender runs; the defaults are upstream's where it has the setting."""

    default_profile: str = "balanced"
    """Profile of VPAs that name the recommender ``vpa-ippr`` and no profile."""
    default_recommender: bool = False
    """True: VPAs that name no recommender are ours too."""
    history_seconds: float = 8 * DAY_SECONDS
    """How far back a workload that is new is read; further for an ensemble profile that looks at more."""
    step_seconds: float = 60.0
    """Distance of the samples that are asked for; upstream's confidence counts on one a minute."""
    max_allowed: Amounts = Amounts()
    """Maximum for every container whose policy sets none."""
    rounding: Rounding = AS_COMPUTED
    """How results are rounded and written."""
    models: Path | None = None
    """Directory of the models that profiles name; None for the program's own."""


@dataclass(frozen=True, slots=True)
class VpaOutcome:
    """What became of one VPA in a cycle; ``recommendations`` is None when the old ones were kept."""

    vpa: ObjectKey
    workload: WorkloadRef | None
    recommendations: tuple[Recommendation, ...] | None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What one cycle did; ``failures`` are the parts that could not be done, ``findings`` what was noticed on the data."""

    as_of: float
    outcomes: tuple[VpaOutcome, ...]
    failures: tuple[Finding, ...] = ()
    findings: tuple[Finding, ...] = ()
    statuses_written: int = 0

    @property
    def exit_code(self) -> int:
        """0 done, 3 partial, 1 when something failed and nothing at all was recommended."""
        if not self.failures:
            return EXIT_DONE
        return EXIT_PARTIAL if any(outcome.recommendations for outcome in self.outcomes) else EXIT_FAILED


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """How many checkpoints were written, and of what they could not be."""

    written: int
    failures: tuple[Finding, ...] = ()
