"""What one cycle of the updater did, pod by pod."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.resize.reasons import OutcomeCode

_FAILURES = frozenset({OutcomeCode.UNAVAILABLE, OutcomeCode.BAD_OBJECT, OutcomeCode.FAILED})


@dataclass(frozen=True, slots=True)
class PodOutcome:
    """What became of one pod; ``reason`` is the code of the rule or of the refusal behind it.

    ``seconds``: how long a resize took that is complete now.
    """

    pod: ObjectKey
    vpa: ObjectKey | None
    code: OutcomeCode
    reason: str = ""
    message: str = ""
    seconds: float | None = None

    @property
    def is_failure(self) -> bool:
        """True when the pod could not be dealt with."""
        return self.code in _FAILURES


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The outcomes of a cycle.

    ``disturbed``: pods that were charged to a disruption budget, for a restart or an eviction. ``may_be_disturbed``: how many more pods the
    budgets of the workloads that asked would have borne, their PodDisruptionBudgets apart.
    """

    outcomes: tuple[PodOutcome, ...]
    disturbed: int = 0
    may_be_disturbed: int = 0

    @property
    def failures(self) -> tuple[PodOutcome, ...]:
        """The pods that could not be dealt with; the others were."""
        return tuple(outcome for outcome in self.outcomes if outcome.is_failure)

    def counts(self) -> dict[OutcomeCode, int]:
        """How many pods met each outcome."""
        return dict(Counter(outcome.code for outcome in self.outcomes))
