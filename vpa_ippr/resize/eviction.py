"""When a pod is evicted so that it comes back with what is recommended, and when it is kept.

By upstream's rules (Recreate and Auto evict; InPlaceOrRecreate does where a change in place has come to nothing; the other modes never do),
without its defects: each resize is judged by its own times, and a pod is not evicted where that cannot help: nobody makes it again, no
admission controller gives the new one its resources, its quota or LimitRange refuses the new one too, or no node is large enough for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from vpa_ippr.api.cluster import Node
from vpa_ippr.api.pod import Pod
from vpa_ippr.api.resources import Amounts, Resource
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import EvictionRequirement, Vpa
from vpa_ippr.recommend.limit_ranges import UNLIMITED, NamespaceLimits
from vpa_ippr.resize.circumstances import Circumstances
from vpa_ippr.resize.due import Due
from vpa_ippr.resize.ledger import Ledger
from vpa_ippr.resize.qos import desired_resources, pod_requests
from vpa_ippr.resize.reasons import DueReason, KeepReason, RefusalReason, RevertReason
from vpa_ippr.resize.rollout_state import Failure
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import UnsupportedWhy
from vpa_ippr.resize.targets import Target, targets_of
from vpa_ippr.resize.windows import format_moment

MODES_THAT_EVICT: Final = frozenset({"Recreate", "Auto", "InPlaceOrRecreate"})

# What stands in the way in place, and not in the way of a new pod. A quota, a LimitRange or an admission webhook would refuse that too.
_HELPED: Final = frozenset(
    {
        RefusalReason.BEST_EFFORT,
        RefusalReason.WINDOWS,
        RefusalReason.RESOURCE_CLAIMS,
        RefusalReason.POD_LEVEL_RESOURCES,
        RefusalReason.POD_LEVEL_MEMORY_DECREASE,
        RefusalReason.QOS_WOULD_CHANGE,
        RefusalReason.VERSION_FORBIDS_DECREASE,
        RefusalReason.VERSION_FORBIDS_LIMIT,
        RefusalReason.VERSION_FORBIDS_CONTAINER,
        RefusalReason.NODE_CAPACITY,
        RefusalReason.KNOWN_INFEASIBLE,
        RefusalReason.STATIC_CPU_MANAGER,
        RefusalReason.STATIC_MEMORY_MANAGER,
        RefusalReason.SWAP,
        RefusalReason.NODE_UNSUPPORTED,
        RefusalReason.INVALID,
    }
)


class EvictionBudget(Protocol):
    """Knows how many pods of the group may be missing."""

    def allows(self, pod: Pod) -> str | None:
        """Why the pod may not be disrupted now; None when it may."""
        ...


@dataclass(frozen=True, slots=True)
class Hindrance:
    """What keeps a change from being made in place: why we take it back, do not ask for it, or cannot; ``since`` when, where known."""

    reason: RevertReason | RefusalReason | UnsupportedWhy
    message: str = ""
    since: float | None = None


@dataclass(frozen=True, slots=True)
class EvictionRate:
    """A bucket of evictions that may be made at once; ``tokens`` as of ``at``."""

    tokens: float
    at: float

    @property
    def is_empty(self) -> bool:
        """True when no pod may be evicted now."""
        return self.tokens < 1

    def taking(self) -> EvictionRate:
        """After one eviction."""
        return EvictionRate(self.tokens - 1, self.at)


@dataclass(frozen=True, slots=True)
class Occasion:
    """What an eviction would be for: a change that is due, one that is hindered in place, or both.

    A resize under way that has come to nothing is a hindrance without ``due``: its spec holds already what is wanted.
    """

    due: Due | None
    hindrance: Hindrance | None
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What an eviction depends on besides the pod.

    ``admission_renewed_at``: when an admission controller has renewed its lease last, None when there is none, or it cannot be told
    (``admission_problem``). ``live_pods``: how many the group has. ``rate``: None for no limit. ``nodes``: those of the cluster; none are
    not checked. ``limits``: of the pod's namespace. ``failure``: the change of the workload that did harm, and is not to be made now.
    """

    admission_renewed_at: float | None
    live_pods: int
    budget: EvictionBudget
    rate: EvictionRate | None = None
    nodes: Sequence[Node] = ()
    limits: NamespaceLimits = UNLIMITED
    admission_problem: str = ""
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict the pod; ``reasons`` are codes of why the change is due and of what hinders it in place."""

    pod: Pod
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Do not evict the pod, at least not now."""

    reason: KeepReason
    message: str


def refilled(rate: EvictionRate | None, now: float, settings: Settings) -> EvictionRate | None:
    """The bucket as of ``now``, a full one where there was none; None when evictions are not limited."""
    if settings.eviction_rate_per_second is None:
        return None
    if rate is None:
        return EvictionRate(settings.eviction_burst, now)
    gained = max(now - rate.at, 0.0) * settings.eviction_rate_per_second
    return EvictionRate(min(rate.tokens + gained, settings.eviction_burst), now)


def judge_eviction(
    pod: Pod, vpa: Vpa, occasion: Occasion, circumstances: Circumstances, surroundings: Surroundings, now: float, settings: Settings
) -> Evict | Keep:
    """Whether to evict the pod on this occasion. A PodDisruptionBudget has the last word, when the API server is asked.

    Raises:
        QuantityError: a quantity of the pod or of the VPA cannot be read.
    """
    return (
        _unwanted(vpa, occasion, now, settings)
        or _unfit(pod)
        or _kept_back(occasion, circumstances, surroundings)
        or _useless(pod, vpa, occasion, surroundings, now, settings)
        or _harmful(pod, vpa, surroundings, settings)
        or Evict(pod, _reasons(occasion))
    )


def _reasons(occasion: Occasion) -> tuple[str, ...]:
    due = occasion.due.reasons if occasion.due else ()
    return (*due, *((occasion.hindrance.reason,) if occasion.hindrance else ()))


def _unwanted(vpa: Vpa, occasion: Occasion, now: float, settings: Settings) -> Keep | None:
    """The mode does without evictions, as such or for this."""
    if vpa.update_mode not in MODES_THAT_EVICT:
        return Keep(KeepReason.MODE_FORBIDS, f"mode {vpa.update_mode} does not evict")
    due, hindrance = occasion.due, occasion.hindrance
    if due is not None and due.by_eviction:
        return None
    if hindrance is None:
        return Keep(KeepReason.IN_PLACE, "the change is made in place")
    if not _helps_against(hindrance, occasion.ledger, now, settings):
        return Keep(KeepReason.NOT_HELPED, f"an eviction does not help against {hindrance.reason}, or not yet: {hindrance.message}")
    if due is not None and due.reasons == (DueReason.CPU_SHORTAGE,):
        return Keep(KeepReason.ONLY_IN_PLACE, "more CPU inside the bounds, before the pod is old enough, is not worth a restart")
    return None


def _helps_against(hindrance: Hindrance, ledger: Ledger, now: float, settings: Settings) -> bool:
    match hindrance.reason:
        case RevertReason():
            # A memory limit that cannot come down in place is left where it is rather than forced upon a new pod.
            return ledger.last is None or not ledger.last.shrink
        case UnsupportedWhy():
            return hindrance.reason is UnsupportedWhy.KUBELET_WITHOUT_RESIZE
        case RefusalReason.NODE_FULL:
            return hindrance.since is not None and now - hindrance.since >= settings.deferred_limit_seconds
        case RefusalReason():
            return hindrance.reason in _HELPED


def _unfit(pod: Pod) -> Keep | None:
    controller = pod.metadata.controller
    if pod.is_mirror or (controller is not None and controller.kind == "Node"):
        return Keep(KeepReason.STATIC_POD, "a static pod is its kubelet's")
    if controller is None:
        return Keep(KeepReason.NO_CONTROLLER, "nobody would make the pod again")
    if pod.metadata.deletion_timestamp is not None:
        return Keep(KeepReason.POD_DELETING, "the pod is being deleted already")
    if pod.status.phase in ("Succeeded", "Failed"):
        return Keep(KeepReason.POD_ENDED, "the pod has ended")
    return None


def _kept_back(occasion: Occasion, circumstances: Circumstances, surroundings: Surroundings) -> Keep | None:
    if circumstances.paused:
        return Keep(KeepReason.PAUSED, "changes are paused")
    # What is due while the windows are closed is urgent: all else is not due then.
    if circumstances.closed_until is not None and occasion.due is None:
        return Keep(KeepReason.OUTSIDE_WINDOW, f"waits for the window of {format_moment(circumstances.closed_until)}")
    # A pod that is made anew begins its boost anew; one that is killed for memory loses nothing by that.
    urgent = occasion.due is not None and DueReason.QUICK_OOM in occasion.due.reasons
    if circumstances.boosted and not urgent:
        return Keep(KeepReason.BOOSTED, f"the startup boost of {', '.join(sorted(circumstances.boosted))} is not over")
    # The new pod would have all that is recommended, and with it the change that did harm.
    if surroundings.failure is not None and not urgent:
        return Keep(KeepReason.DEGRADED, f"not before {format_time(surroundings.failure.until)}: {surroundings.failure.message}")
    return None


def _useless(pod: Pod, vpa: Vpa, occasion: Occasion, surroundings: Surroundings, now: float, settings: Settings) -> Keep | None:
    """The new pod would be no better, or is not wanted to be."""
    renewed_at = surroundings.admission_renewed_at
    if renewed_at is None or now - renewed_at > settings.admission_fresh_seconds:
        last = surroundings.admission_problem or (
            "no lease of one was found" if renewed_at is None else f"its lease was renewed {now - renewed_at:.0f} s ago"
        )
        return Keep(KeepReason.NO_ADMISSION, f"no admission controller would give the new pod its resources: {last}")
    targets = targets_of(pod, vpa, occasion.ledger, surroundings.limits)
    if not any(_asks_otherwise(pod, target) for target in targets):
        # Not every admission controller knows our limit policies: a pod evicted for its limits alone could come back as it was, for ever.
        return Keep(KeepReason.NOT_HELPED, "only limits would change, which is not worth a new pod")
    requirements = vpa.spec.update_policy.eviction_requirements if vpa.spec.update_policy else []
    if requirements and not any(_meets(pod, target, requirements) for target in targets):
        return Keep(KeepReason.REQUIREMENTS, "no container meets all evictionRequirements of the VPA")
    needed = pod_requests(pod, desired_resources(pod, {target.container: target.desired for target in targets}))
    if surroundings.nodes and not any(_fits(needed, node) for node in _candidates(pod, surroundings.nodes)):
        text = ", ".join(f"{resource} {quantity}" for resource, quantity in needed.to_quantities().items())
        return Keep(KeepReason.NO_NODE, f"the new pod would request {text}: no node that it may go to is that large")
    return None


def _asks_otherwise(pod: Pod, target: Target) -> bool:
    return target.desired.requests != (pod.actual(target.container) or target.current).requests


def _meets(pod: Pod, target: Target, requirements: Iterable[EvictionRequirement]) -> bool:
    """Every requirement holds for one of its resources at least; a container without a request always passes, as upstream."""
    requests = (pod.actual(target.container) or target.current).requests
    if any(not requests.get(resource) for resource in Resource):
        return True
    return all(any(_moves(requests, target, name, one.change_requirement) for name in one.resources) for one in requirements)


def _moves(requests: Amounts, target: Target, name: str, direction: str) -> bool:
    if name not in tuple(Resource):
        return False
    before, after = requests.get(Resource(name)) or 0, target.desired.requests.get(Resource(name)) or 0
    return _DIRECTIONS.get(direction, 0) * (after - before) > 0


_DIRECTIONS: Final[Mapping[str, int]] = {"TargetHigherThanRequests": 1, "TargetLowerThanRequests": -1}


def _candidates(pod: Pod, nodes: Sequence[Node]) -> Iterable[Node]:
    """Where the new pod may be placed, as far as sizes tell: a DaemonSet makes it for the same node."""
    controller = pod.metadata.controller
    if controller is not None and controller.kind == "DaemonSet":
        return (node for node in nodes if node.name == pod.spec.node_name)
    return nodes


def _fits(needed: Amounts, node: Node) -> bool:
    limits = ((needed.get(resource) or 0, node.allocatable.get(resource)) for resource in Resource)
    return all(allocatable is None or amount <= allocatable for amount, allocatable in limits)


def _harmful(pod: Pod, vpa: Vpa, surroundings: Surroundings, settings: Settings) -> Keep | None:
    """Too many pods would be missing."""
    policy = vpa.spec.update_policy
    least = (policy.min_replicas if policy else None) or settings.min_replicas
    if surroundings.live_pods < least:
        return Keep(KeepReason.TOO_FEW_REPLICAS, f"{surroundings.live_pods} live pods, fewer than minReplicas {least}")
    # A pod that has not started serves nobody yet.
    forbidden = None if pod.status.phase == "Pending" else surroundings.budget.allows(pod)
    if forbidden is not None:
        return Keep(KeepReason.DISRUPTION_BUDGET, forbidden)
    if surroundings.rate is not None and surroundings.rate.is_empty:
        return Keep(KeepReason.RATE, f"evictions are limited to {settings.eviction_rate_per_second} a second")
    return None
