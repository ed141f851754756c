"""What becomes of a recommendation in the pods that it is for: LimitRanges bound it there, which the VPA's status does not show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import Resource
from vpa_ippr.api.series import Finding, WorkloadRef
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.limit_ranges import UNLIMITED, NamespaceLimits
from vpa_ippr.report.model import Advice, ContainerKey
from vpa_ippr.report.units import cpu_text, memory_text
from vpa_ippr.resize.ledger import read_ledger
from vpa_ippr.resize.targets import Target, targets_of


@dataclass(slots=True)
class Caps:
    """Notes on the containers whose pods get something else than the recommendation; what could not be read."""

    notes: dict[ContainerKey, tuple[str, ...]] = field(default_factory=dict)
    failures: list[Finding] = field(default_factory=list)

    def on(self, advice: Iterable[Advice]) -> list[Advice]:
        """The advice with the notes added."""
        return [replace(item, notes=item.notes + self.notes.get((item.workload, item.container), ())) for item in advice]


def caps_of(served: Iterable[tuple[WorkloadRef, Pod, Vpa]], limits: Mapping[str, NamespaceLimits | QuantityError]) -> Caps:
    """``served``: the pods of each workload with advice; ``limits`` by namespace. Of several pods the first that is capped counts."""
    caps = Caps()
    for namespace, found in sorted(limits.items(), key=lambda item: item[0]):
        if isinstance(found, QuantityError):
            caps.failures.append(Finding(found.reason, f"namespace {namespace}", 1, f"namespace {namespace}: {found}"))
    for workload, pod, vpa in served:
        bounds = limits.get(pod.metadata.namespace, UNLIMITED)
        if isinstance(bounds, QuantityError):
            continue
        try:
            targets = targets_of(pod, vpa, read_ledger(pod), bounds)
        except (QuantityError, ValidationError) as error:
            caps.failures.append(Finding(error.reason, f"pod {pod.key}", 1, str(error)))
            continue
        for target in targets:
            if target.capped_by:
                caps.notes.setdefault((workload, target.container), _notes(target))
    return caps


def _notes(target: Target) -> tuple[str, ...]:
    texts = {
        Resource.CPU: cpu_text(target.desired.requests.cpu_millicores),
        Resource.MEMORY: memory_text(target.desired.requests.memory_bytes),
    }
    return tuple(f"{note}: {texts[resource]}" for note in target.capped_by for resource in Resource if note.startswith(f"{resource} "))
