"""What a usage source hands over: series of one container instance, out-of-memory kills, owners and findings on the data.

The types live here because both the room that reads them (metrics) and the rooms that use them may know only api.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.resources import Resource as Resource  # lives there so that readers of pods need no numpy

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, order=True)
class WorkloadRef:
    """The topmost owner of a pod; a bare pod is its own workload of kind ``Pod``.

    ``part``: which of its pods, where these are told apart by their nodes: ``label=value``; empty for all of them.
    """

    namespace: str
    kind: str
    name: str
    part: str = ""


@dataclass(frozen=True, slots=True, order=True)
class ContainerRef:
    """One container of one pod."""

    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class UsageSeries:
    """Usage of one container instance.

    ``timestamps``: seconds since the epoch, strictly increasing, shape (n,). ``values``: cores (cpu) or bytes (memory), finite
    and not negative, shape (n,). A gap is a missing row, never a zero.
    """

    container: ContainerRef
    resource: Resource
    timestamps: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class OomKill:
    """A container was killed for memory at ``at`` (seconds); ``memory_request_bytes`` was its request then, ``limit`` if known."""

    container: ContainerRef
    at: float
    memory_request_bytes: int
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing noticed about the data: a reason code, what it concerns, how often, and a line for a person."""

    reason: str
    subject: str
    count: int
    message: str


@dataclass(frozen=True, slots=True)
class QueryCosts:
    """What reading cost: queries sent, samples and bytes received, seconds spent waiting."""

    queries: int = 0
    samples: int = 0
    received_bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Everything a source knows of a time window; ``failures`` holds one finding for each namespace or file that could not be read."""

    series: tuple[UsageSeries, ...]
    ooms: tuple[OomKill, ...] = ()
    owners: Mapping[tuple[str, str], WorkloadRef] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    failures: tuple[Finding, ...] = ()
    costs: QueryCosts = QueryCosts()


@dataclass(frozen=True, slots=True)
class PodNodes:
    """The node of each pod (namespace and name) of a time window; ``failures`` holds one finding for each namespace not read."""

    nodes: Mapping[tuple[str, str], str]
    failures: tuple[Finding, ...] = ()


class EvidenceKind(enum.StrEnum):
    """What tells use from need: each value says how a number of ``UsageSeries`` is to be taken."""

    CPU_THROTTLED = "cpu-throttled"
    """Share of the CFS periods in which the container was stopped at its CPU limit, 0 to 1; none in a step without a period."""
    CPU_PRESSURE = "cpu-pressure"
    """Share of the time in which some task waited for a CPU (PSI "some"), 0 to 1."""
    MEMORY_PRESSURE = "memory-pressure"
    """Share of the time in which some task waited for memory (PSI "some"), 0 to 1."""
    RSS = "rss"
    """Anonymous memory, bytes; the largest of the step."""
    MAPPED_FILE = "mapped-file"
    """File pages mapped by the processes, bytes; the largest of the step."""
    ACTIVE_FILE = "active-file"
    """Page cache on the active list, the part of the cache that counts as working set, bytes; the smallest of the step."""
    FILE_REFAULTS = "file-refaults"
    """Pages a second that were read again soon after they had been reclaimed."""
    RECLAIMED = "reclaimed"
    """Pages a second that were reclaimed."""


@dataclass(frozen=True, slots=True)
class EvidenceSeries:
    """One kind of evidence on one container instance, on the same grid as its usage; otherwise as ``UsageSeries``."""

    container: ContainerRef
    kind: EvidenceKind
    timestamps: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class Evidence:
    """All evidence of a time window; ``failures`` holds one finding for each namespace that could not be read."""

    series: tuple[EvidenceSeries, ...]
    findings: tuple[Finding, ...] = ()
    failures: tuple[Finding, ...] = ()
    costs: QueryCosts = QueryCosts()


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of history that is asked for: samples with ``start < t <= end``, ``step`` seconds apart."""

    start: float
    end: float
    step_seconds: float
