"""A report from what stands in the cluster: the recommendations in VPAs' status, and the resources of their pods."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.meta import find_condition
from vpa_ippr.api.names import CONDITION_LOW_CONFIDENCE
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import ContainerResources, parse_amounts
from vpa_ippr.api.series import ContainerRef, Finding, WorkloadRef
from vpa_ippr.api.vpa import ContainerRecommendation, Vpa
from vpa_ippr.report.model import Advice, ContainerKey, Current
from vpa_ippr.report.usage import current_by_workload


def advice_of(vpas: Iterable[Vpa]) -> tuple[list[Advice], list[Finding], list[Finding]]:
    """The advice of every VPA that has some; one finding for each that has none; one for each container's that cannot be read."""
    advice: list[Advice] = []
    without: list[Finding] = []
    unreadable: list[Finding] = []
    for vpa in sorted(vpas, key=lambda vpa: vpa.key):
        if vpa.spec.target_ref is None or vpa.status.recommendation is None:
            without.append(_without_advice(vpa))
            continue
        workload = WorkloadRef(vpa.metadata.namespace, vpa.spec.target_ref.kind, vpa.spec.target_ref.name)
        for recommendation in vpa.status.recommendation.container_recommendations:
            try:
                advice.append(_advice(vpa, workload, recommendation))
            except QuantityError as error:
                unreadable.append(Finding(error.reason, f"vpa {vpa.key}", 1, str(error)))
    return advice, without, unreadable


def _without_advice(vpa: Vpa) -> Finding:
    known = next((c for c in vpa.status.conditions if c.status == "True" and c.reason), None)
    why = known.message or known.reason if known else "its recommender has written no recommendation yet"
    return Finding(known.reason if known else "NoRecommendation", f"vpa {vpa.key}", 1, why)


def _advice(vpa: Vpa, workload: WorkloadRef, found: ContainerRecommendation) -> Advice:
    where = f"vpa {vpa.key} status.recommendation[{found.container_name}]"
    low = find_condition(vpa.status.conditions, CONDITION_LOW_CONFIDENCE)
    return Advice(
        workload=workload,
        container=found.container_name,
        target=parse_amounts(found.target, f"{where}.target"),
        lower_bound=parse_amounts(found.lower_bound, f"{where}.lowerBound"),
        upper_bound=parse_amounts(found.upper_bound, f"{where}.upperBound"),
        why=f"from vpa {vpa.metadata.name}, mode {vpa.update_mode}",
        notes=(low.message,) if low and low.status == "True" else (),
    )


def current_of(pods: Iterable[Pod], workload_of: Callable[[Pod], WorkloadRef]) -> tuple[dict[ContainerKey, Current], list[Finding]]:
    """What the containers of each workload have now, and one finding for each container that cannot be read."""
    resources: dict[ContainerRef, ContainerResources] = {}
    owners: dict[tuple[str, str], WorkloadRef] = {}
    findings: list[Finding] = []
    for pod in pods:
        owners[pod.key.namespace, pod.key.name] = workload_of(pod)
        for container in pod.spec.containers:
            try:
                resources[ContainerRef(pod.key.namespace, pod.key.name, container.name)] = pod.desired(container.name)
            except QuantityError as error:
                findings.append(Finding(error.reason, f"pod {pod.key}", 1, str(error)))
    return current_by_workload(resources, owners), findings
