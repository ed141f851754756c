"""What the recommender gathers in the course of one cycle."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from vpa_ippr.api.errors import VpaIpprError
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.series import Finding, WorkloadRef
from vpa_ippr.forecast.catalogue import Profile
from vpa_ippr.recommend.cycle import CycleResult, VpaOutcome
from vpa_ippr.recommend.ownership import FindWorkload
from vpa_ippr.recommend.planning import Plan

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class CycleState:
    """What one cycle gathers, and what went wrong in it."""

    now: float
    find: FindWorkload
    plans: list[Plan] = field(default_factory=list)
    # Of all workloads that are tracked, those included that are not served this time.
    profiles: dict[WorkloadRef, Profile] = field(default_factory=dict)
    # The node label by which the pods of a workload are told apart, where they are.
    splits: dict[WorkloadRef, str] = field(default_factory=dict)
    owners: dict[tuple[str, str], WorkloadRef] = field(default_factory=dict)
    live: dict[WorkloadRef, list[Pod]] = field(default_factory=lambda: defaultdict(list))
    unread: dict[WorkloadRef, Finding] = field(default_factory=dict)
    outcomes: list[VpaOutcome] = field(default_factory=list)
    failures: list[Finding] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    statuses_written: int = 0
    checkpoints_written: int = 0

    @property
    def served(self) -> list[Plan]:
        """The plans of the VPAs that get recommendations this time."""
        return [plan for plan in self.plans if plan.is_served]

    def result(self) -> CycleResult:
        """What is told of the cycle when it is over."""
        return CycleResult(self.now, tuple(self.outcomes), tuple(self.failures), tuple(self.findings), self.statuses_written)

    @contextmanager
    def guard(self, subject: str) -> Iterator[None]:
        """The boundary between objects: what goes wrong inside becomes a failure of ``subject``."""
        try:
            yield
        except VpaIpprError as error:
            self.failures.append(Finding(error.reason, subject, 1, f"{subject}: {error}"))
        except Exception as error:  # noqa: BLE001 - the boundary between objects: one must not stop the others
            _log.exception("object not served", extra={"object": subject})
            self.failures.append(Finding("Unexpected", subject, 1, f"{subject}: unexpected {type(error).__name__}: {error}"))
