"""Current resources of workloads from what is known of their containers one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from vpa_ippr.api.resources import ContainerResources
from vpa_ippr.api.series import ContainerRef, WorkloadRef
from vpa_ippr.report.model import ContainerKey, Current


def current_by_workload(
    resources: Mapping[ContainerRef, ContainerResources], owners: Mapping[tuple[str, str], WorkloadRef]
) -> dict[ContainerKey, Current]:
    """What each workload's containers have; where its pods differ the most common counts, of equals the largest request."""
    seen: dict[ContainerKey, Counter[ContainerResources]] = {}
    for container, found in resources.items():
        workload = owners.get((container.namespace, container.pod)) or WorkloadRef(container.namespace, "Pod", container.pod)
        seen.setdefault((workload, container.container), Counter())[found] += 1
    return {key: Current(most_common(counts), counts.total()) for key, counts in seen.items()}


def most_common(counts: Mapping[ContainerResources, int]) -> ContainerResources:
    """The resources that most pods have; of equals the largest memory request, then CPU request."""
    return max(counts, key=lambda r: (counts[r], r.requests.memory_bytes or 0, r.requests.cpu_millicores or 0))
