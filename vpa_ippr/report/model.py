"""The report as values: what each container has, what is recommended, how far apart they are, and what is wrong with the data.

Built by one pure function from advice (whatever its source) and current resources; every renderer reads the same model.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.api.series import Finding, WorkloadRef

SCHEMA = "vpa-ippr/report/v1"

ContainerKey = tuple[WorkloadRef, str]


class Severity(enum.StrEnum):
    """How far a request lies from the recommendation, worst first."""

    CRITICAL = "CRITICAL"
    WARNING = "WARNING"
    OK = "OK"
    GOOD = "GOOD"
    UNKNOWN = "UNKNOWN"


# A difference counts by its share of the larger value, so that small and large containers are judged alike, but never below these
# amounts: what is cheaper than that is not worth a person's time.
_SHARES = ((0.5, Severity.CRITICAL), (0.25, Severity.WARNING), (0.1, Severity.OK))
_NEGLIGIBLE = {Resource.CPU: 50, Resource.MEMORY: 64 * 1024 * 1024}


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommendation for one container of a workload; ``why`` is one line for a person, ``confidence`` is None when not known."""

    workload: WorkloadRef
    container: str
    target: Amounts
    lower_bound: Amounts = Amounts()
    upper_bound: Amounts = Amounts()
    confidence: float | None = None
    why: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Current:
    """What a container has now, and in how many pods."""

    resources: ContainerResources
    replicas: int


@dataclass(frozen=True, slots=True)
class Row:
    """One container: current against recommended. A difference is recommended minus current, a pod; None when either is not known."""

    advice: Advice
    current: Current | None
    severity: Severity
    cpu_difference_millicores: int | None
    memory_difference_bytes: int | None

    @property
    def replicas(self) -> int:
        """Pods that the row speaks for; 1 when not known."""
        return self.current.replicas if self.current else 1


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all rows whose request is known, times replicas."""

    containers: int
    requested: Amounts
    recommended: Amounts


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report. ``failures`` are the parts that could not be read: with any, the run is partial."""

    as_of: float
    source: str
    profile: str
    rows: tuple[Row, ...]
    totals: Totals
    findings: tuple[Finding, ...] = ()
    failures: tuple[Finding, ...] = ()


def build_report(
    advice: Iterable[Advice],
    current: Mapping[ContainerKey, Current],
    *,
    as_of: float,
    source: str,
    profile: str,
    findings: Sequence[Finding] = (),
    failures: Sequence[Finding] = (),
) -> Report:
    """Put advice beside current resources, worst and largest first."""
    rows = sorted((_row(item, current.get((item.workload, item.container))) for item in advice), key=_impact)
    return Report(as_of, source, profile, tuple(rows), _totals(rows), tuple(findings), tuple(failures))


def _row(advice: Advice, current: Current | None) -> Row:
    requests = current.resources.requests if current else Amounts()
    severities = [severity_of(resource, requests.get(resource), advice.target.get(resource)) for resource in Resource]
    return Row(
        advice=advice,
        current=current,
        severity=min((s for s in severities if s is not Severity.UNKNOWN), key=list(Severity).index, default=Severity.UNKNOWN),
        cpu_difference_millicores=_difference(advice.target.cpu_millicores, requests.cpu_millicores),
        memory_difference_bytes=_difference(advice.target.memory_bytes, requests.memory_bytes),
    )


def severity_of(resource: Resource, current: int | None, target: int | None) -> Severity:
    """Severity of one value; an unset request where one is recommended is a WARNING, since the scheduler then reserves nothing."""
    if target is None:
        return Severity.UNKNOWN
    if current is None:
        return Severity.WARNING
    difference = abs(target - current)
    if difference <= _NEGLIGIBLE[resource]:
        return Severity.GOOD
    share = difference / max(target, current)
    return next((severity for least, severity in _SHARES if share >= least), Severity.GOOD)


def _difference(target: int | None, current: int | None) -> int | None:
    return None if target is None or current is None else target - current


def _impact(row: Row) -> tuple[object, ...]:
    """Sort key: severity, then the cores and GiB that a change would move over all replicas, then the name."""
    cores = abs(row.cpu_difference_millicores or 0) / 1000
    gibibytes = abs(row.memory_difference_bytes or 0) / 2**30
    workload = row.advice.workload
    return (
        list(Severity).index(row.severity),
        -(cores + gibibytes / 4) * row.replicas,
        workload.namespace,
        workload.kind,
        workload.name,
        row.advice.container,
    )


def _totals(rows: Sequence[Row]) -> Totals:
    def total(difference: str, resource: Resource) -> tuple[int | None, int | None]:
        known = [row for row in rows if getattr(row, difference) is not None and row.current is not None]
        if not known:
            return None, None
        requested = sum((row.current.resources.requests.get(resource) or 0) * row.replicas for row in known if row.current)
        return requested, sum((row.advice.target.get(resource) or 0) * row.replicas for row in known)

    cpu = total("cpu_difference_millicores", Resource.CPU)
    memory = total("memory_difference_bytes", Resource.MEMORY)
    return Totals(len(rows), Amounts(cpu[0], memory[0]), Amounts(cpu[1], memory[1]))
