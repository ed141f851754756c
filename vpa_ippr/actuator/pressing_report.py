"""What a node tells of its pressing containers, and when that is worth a write. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vpa_ippr.actuator.pressing import Pressing
from vpa_ippr.actuator.pressing_policy import PressingPolicy
from vpa_ippr.api.node_memory import MAX_PRESSING, NodeMemoryStatus, PressingContainer, PressingReason
from vpa_ippr.api.timestamps import format_micro_time


@dataclass(frozen=True, slots=True)
class Subject:
    """Whose cgroup it is; all names as in the pod."""

    namespace: str
    pod_name: str
    pod_uid: str
    qos_class: str
    container_name: str
    container_id: str

    @property
    def key(self) -> tuple[str, str, str]:
        """For logs and for order."""
        return self.namespace, self.pod_name, self.container_name


@dataclass(frozen=True, slots=True)
class Written:
    """What the API has, and since when."""

    status: NodeMemoryStatus
    at: float


def status_of(found: Iterable[tuple[Subject, Pressing]], now: float) -> NodeMemoryStatus:
    """The status to write; of too many the ones that began last are named, for the others have been seen."""
    everything = sorted(found, key=lambda pair: (-pair[1].since, pair[0].key))
    named = sorted(everything[:MAX_PRESSING], key=lambda pair: pair[0].key)
    return NodeMemoryStatus([_entry(subject, pressing) for subject, pressing in named], len(everything), format_micro_time(now))


def is_due(status: NodeMemoryStatus, written: Written | None, now: float, policy: PressingPolicy) -> bool:
    """Whether the API must be told: at once of what matters, of figures now and then, and each minute that we live."""
    if written is None or not 0 <= now - written.at < policy.beat_seconds:
        return True
    known = {entry.container_id: entry for entry in written.status.pressing}
    if known.keys() != {entry.container_id for entry in status.pressing} or written.status.pressing_count != status.pressing_count:
        return True
    pairs = [(known[entry.container_id], entry) for entry in status.pressing]
    if any(_matters(before, entry) for before, entry in pairs):
        return True
    return now - written.at >= policy.figures_seconds and any(_differs(before, entry, policy) for before, entry in pairs)


def _entry(subject: Subject, pressing: Pressing) -> PressingContainer:
    return PressingContainer(
        namespace=subject.namespace,
        pod_name=subject.pod_name,
        pod_uid=subject.pod_uid,
        container_name=subject.container_name,
        container_id=subject.container_id,
        usage_bytes=pressing.usage_bytes,
        limit_bytes=pressing.limit_bytes,
        reason=pressing.reason,
        message=pressing.message,
        growth_bytes_per_second=round(pressing.growth_bytes_per_second),
        since=format_micro_time(pressing.since),
        observed_time=format_micro_time(pressing.at),
    )


def _matters(before: PressingContainer, after: PressingContainer) -> bool:
    """The updater acts on an entry only while it names the limit in force."""
    is_new_kill = after.reason == PressingReason.OOM_KILLED != before.reason
    return is_new_kill or after.limit_bytes != before.limit_bytes


def _differs(before: PressingContainer, after: PressingContainer, policy: PressingPolicy) -> bool:
    change = abs(after.usage_bytes - before.usage_bytes)
    return after.reason != before.reason or change > policy.change_ratio * before.usage_bytes
