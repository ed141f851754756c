"""Whether a container that presses against its memory limit gets more at once, and what its pod is to have then.

The node's agent tells of it (``NodeMemory``); what it tells is believed only as long as it is fresh and still fits the pod. A relief is the
limit alone where the QoS class lets it be, so it needs no room on the node: a limit is no promise. A pause stops it, a closed maintenance
window and a hold-off do not. Nothing is ever lowered by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.meta import ObjectKey
from vpa_ippr.api.node_memory import NodeMemory, PressingContainer, PressingReason
from vpa_ippr.api.pod import ContainerStatus, Pod
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.limit_ranges import UNLIMITED
from vpa_ippr.recommend.policy import read_policy
from vpa_ippr.resize.due import IN_PLACE_MODES
from vpa_ippr.resize.follow import revert_target
from vpa_ippr.resize.footprint import Wish
from vpa_ippr.resize.ledger import Scope, spec_is
from vpa_ippr.resize.limit_policy import LimitKind, LimitRule, limit_policy_of
from vpa_ippr.resize.patch import changes_to, describe, format_amount, restarts
from vpa_ippr.resize.prechecks import container_obstacle, node_obstacle, pod_obstacle
from vpa_ippr.resize.qos import QosClass, desired_resources, qos_class
from vpa_ippr.resize.reasons import NotDueReason, RefusalReason, ReliefReason
from vpa_ippr.resize.relief_size import Cap, Ground, caps_of, lowest, node_cap, quota_cap, wanted_bytes, worthwhile_bytes
from vpa_ippr.resize.rules import VersionRules, rules_for_pod
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.state import Pending, Unsupported
from vpa_ippr.resize.targets import Target
from vpa_ippr.resize.view import View
from vpa_ippr.resize.windows import is_paused

# ``memory.max`` is the limit in whole pages, which may be as large as this.
_LARGEST_PAGE_BYTES = 65_536
_FLOOR_SHARE = 1.1
_NOT_IN_PLACE = {
    "Off": NotDueReason.MODE_OFF,
    "Initial": NotDueReason.MODE_INITIAL,
    "Recreate": NotDueReason.MODE_NEEDS_EVICTION,
    "Auto": NotDueReason.MODE_NEEDS_EVICTION,
}


@dataclass(frozen=True, slots=True)
class Plea:
    """What the agent of a node tells of one container; ``beat`` is when it last wrote."""

    node: str
    beat: str | None
    entry: PressingContainer

    @property
    def pod(self) -> ObjectKey:
        """The pod that it is about."""
        return ObjectKey(self.entry.namespace, self.entry.pod_name)

    @property
    def text(self) -> str:
        """Such as ``NearLimit: 950Mi of 1Gi in use, 3Mi/s more``."""
        entry = self.entry
        used, limit, growth = (_size(n) for n in (entry.usage_bytes, entry.limit_bytes, entry.growth_bytes_per_second))
        more = f", {growth}/s more" if entry.growth_bytes_per_second > 0 else ""
        return f"{entry.reason}: {used} of {limit} in use{more}"


@dataclass(frozen=True, slots=True)
class Relief:
    """What the pod is to have: whole resources by container.

    ``floor_bytes``: nothing below is tried for a while. ``restarts``: a container is restarted by it, so the budget has to allow it.
    ``takes_back``: it takes the place of a resize of ours that waits in the kubelet. ``message`` says what changes, and what kept it from
    being more.
    """

    container: str
    after: dict[str, ContainerResources]
    floor_bytes: int
    restarts: bool
    takes_back: bool
    message: str


@dataclass(frozen=True, slots=True)
class Unrelieved:
    """The container gets no more, or not now; ``reason`` is a code."""

    reason: str
    message: str = ""


def pleas_of(memories: Iterable[NodeMemory]) -> Iterator[Plea]:
    """All that the agents tell, the most urgent of each node first."""
    urgency = {reason.value: number for number, reason in enumerate(PressingReason)}
    for memory in memories:
        for entry in sorted(memory.status.pressing, key=lambda one: urgency.get(one.reason, len(urgency))):
            yield Plea(memory.node_name, memory.status.last_beat_time, entry)


def is_fresh(plea: Plea, now: float, settings: Settings) -> bool:
    """True when both the agent and what it saw are of now, give or take; a clock that is far off is not believed either."""
    try:
        moments = [parse_time(text) for text in (plea.beat or "", plea.entry.observed_time)]
    except ValidationError:
        return False
    return all(abs(now - moment) <= settings.relief_fresh_seconds for moment in moments)


def relief_of(plea: Plea, view: View, rules: VersionRules, ground: Ground, settings: Settings) -> Relief | Unrelieved:
    """What the pod in ``view`` is to get, or why it gets nothing; ``rules`` are the API server's.

    Raises:
        QuantityError, ValidationError: the pod or the VPA cannot be read.
    """
    unbelieved = _not_believed(plea, view, settings)
    if unbelieved is not None:
        return unbelieved
    vpa, own_rules = view.vpa, rules_for_pod(rules, view.node)
    if vpa is None:
        return Unrelieved(NotDueReason.NO_VPA)
    rule = _limit_rule(view, vpa, plea.entry.container_name, settings)
    if isinstance(rule, Unrelieved):
        return rule
    start = _impossible(view, plea.entry.container_name, own_rules) or _start(plea, view, own_rules)
    if isinstance(start, Unrelieved):
        return start
    too_often = _too_often(view, plea.entry.container_name, settings)
    return too_often or _sized(_Case(plea, view, vpa, rule, start), ground, settings)


# -- whether


def _not_believed(plea: Plea, view: View, settings: Settings) -> Unrelieved | None:
    pod, entry = view.pod, plea.entry
    if not is_fresh(plea, view.now, settings):
        return Unrelieved(ReliefReason.STALE, f"told at {entry.observed_time}, the agent of node {plea.node} last wrote at {plea.beat}")
    if (pod.metadata.uid, pod.spec.node_name) != (entry.pod_uid, plea.node):
        return Unrelieved(ReliefReason.OTHER_POD, f"the report of node {plea.node} is of another pod of that name")
    status = pod.container_status(entry.container_name)
    if status is None or status.container_id != entry.container_id:
        return Unrelieved(ReliefReason.OTHER_CONTAINER, f"the report is of another container {entry.container_name}")
    if pod.metadata.deletion_timestamp is not None:
        return Unrelieved(NotDueReason.POD_DELETING)
    return None if status.state.running is not None or _was_killed(status) else Unrelieved(NotDueReason.POD_NOT_RUNNING)


def _was_killed(status: ContainerStatus) -> bool:
    ended = status.state.terminated or status.last_state.terminated
    return ended is not None and ended.reason == "OOMKilled"


def _limit_rule(view: View, vpa: Vpa, container: str, settings: Settings) -> LimitRule | Unrelieved:
    """How the container's memory limit is ours to set."""
    mode = vpa.update_mode
    if mode not in IN_PLACE_MODES:
        return Unrelieved(_NOT_IN_PLACE.get(mode, NotDueReason.MODE_UNKNOWN), f"mode {mode} changes no pod in place")
    if settings.paused or is_paused(vpa):
        return Unrelieved(NotDueReason.PAUSED, "changes are paused")
    policy = read_policy(vpa.policy_for(container), f"vpa {vpa.key} policy of {container}")
    if policy.off or Resource.MEMORY not in policy.controlled:
        return Unrelieved(ReliefReason.NOT_CONTROLLED, f"vpa {vpa.key} does not control the memory of {container}")
    guaranteed = _qos(view.pod, {}) == QosClass.GUARANTEED
    rule = limit_policy_of(vpa).rules(guaranteed=guaranteed, requests_only=policy.requests_only)[Resource.MEMORY]
    if rule.kind is LimitKind.NONE:
        return Unrelieved(ReliefReason.LIMIT_NOT_CONTROLLED, f"vpa {vpa.key} leaves the memory limit of {container} as it is")
    return rule


def _impossible(view: View, container: str, rules: VersionRules) -> Unrelieved | None:
    pod, known = view.pod, view.ledger.infeasible
    if isinstance(view.state, Unsupported):
        return Unrelieved(view.state.why)
    limits = UNLIMITED if isinstance(view.namespace_limits, QuantityError) else view.namespace_limits
    obstacle = pod_obstacle(pod, view.node, rules, limits) or container_obstacle(pod, container, rules)
    if obstacle is None and known is not None:
        obstacle = node_obstacle(pod, container, Resource.MEMORY, known.cause, rules)
    return Unrelieved(obstacle.reason, obstacle.message) if obstacle is not None else None


def _too_often(view: View, container: str, settings: Settings) -> Unrelieved | None:
    # What this very round has noted is an attempt that met another writer.
    times = [moment for moment in view.ledger.reliefs.get(container, []) if moment != view.now]
    if times and view.now - max(times) < settings.relief_pause_seconds:
        return Unrelieved(ReliefReason.TOO_SOON, f"{container} got more {view.now - max(times):.0f} s ago")
    if len(times) >= settings.reliefs_an_hour:
        text = (
            f"{container} got more memory {len(times)} times within an hour and is at its limit again: only the recommendation counts now"
        )
        return Unrelieved(ReliefReason.LEAK_SUSPECTED, text)
    refused = [one for one in view.ledger.hold_offs if (one.container, one.scope) == (container, Scope.GROW) and view.now < one.until]
    if refused:  # only a relief that was refused leaves such a note
        return Unrelieved(refused[0].reason, f"refused a short while ago, not tried before {refused[0].until:.0f}")
    return None


# -- how much


@dataclass(frozen=True, slots=True)
class _Start:
    """The limit that the container presses against, and the resources on which the relief comes, where they are not those of the spec."""

    limit_bytes: int
    resources: Mapping[str, ContainerResources]
    takes_back: bool = False


@dataclass(frozen=True, slots=True)
class _Case:
    plea: Plea
    view: View
    vpa: Vpa
    rule: LimitRule
    start: _Start

    @property
    def container(self) -> str:
        return self.plea.entry.container_name

    def raised(self, limit_bytes: int, *, request: bool) -> dict[str, ContainerResources]:
        """The pod's resources with that limit, and with ``request`` the request as much.

        Where 1.33 forbids that a limit in the spec comes down, what is taken back keeps it.
        """
        base = self.start.resources.get(self.container) or self.view.pod.desired(self.container)
        limit_bytes = max(limit_bytes, base.limits.memory_bytes or 0)
        requests = base.requests.having(Resource.MEMORY, limit_bytes) if request else base.requests
        return {**self.start.resources, self.container: ContainerResources(requests, base.limits.having(Resource.MEMORY, limit_bytes))}


def _start(plea: Plea, view: View, rules: VersionRules) -> _Start | Unrelieved:
    pod, name, told = view.pod, plea.entry.container_name, plea.entry.limit_bytes
    spec, actual = pod.desired(name).limits.memory_bytes, pod.actual(name)
    in_force = actual.limits.memory_bytes if actual is not None else spec
    limit = next((known for known in (spec, in_force) if known and abs(known - told) < _LARGEST_PAGE_BYTES), None)
    if not spec or limit is None:
        text = f"the report is of a limit of {_size(told)}, the pod's is {_size(spec) if spec else 'not set'}"
        return Unrelieved(ReliefReason.OTHER_LIMIT, text)
    if isinstance(view.state, Pending):
        # The kubelet takes a pod's spec as a whole or not at all: with what waits in it, the relief would wait too.
        back = _taken_back(view, rules)
        return _Start(limit, back, takes_back=True) if back is not None else Unrelieved(ReliefReason.UNDER_WAY, view.state.message)
    if limit < spec:
        return Unrelieved(ReliefReason.UNDER_WAY, f"the limit is being raised to {_size(spec)}")
    return _Start(limit, {})


def _taken_back(view: View, rules: VersionRules) -> dict[str, ContainerResources] | None:
    """What takes the pod back from a resize of ours that the kubelet has not admitted; None when it cannot be, or is another's."""
    record = view.ledger.last
    if record is None or record.reverting or not spec_is(view.pod, record.after):
        return None
    return revert_target(view.pod, record.before, rules)


def _sized(case: _Case, ground: Ground, settings: Settings) -> Relief | Unrelieved:
    pod, name, old = case.view.pod, case.container, case.start.limit_bytes
    caps = list(caps_of(case.view, case.vpa, name, case.rule))
    limit = wanted_bytes(case.plea.entry, old, case.vpa.policy_for(name), settings.relief_ahead_seconds)
    # A Guaranteed pod's request goes along.
    request = _qos(pod, case.raised(limit, request=False)) != _qos(pod, {})
    if request and _qos(pod, case.raised(limit, request=True)) != _qos(pod, {}):
        return Unrelieved(RefusalReason.QOS_WOULD_CHANGE, f"the pod would no longer be {_qos(pod, {})}")
    caps += quota_cap(case.view, ground.quota(pod.metadata.namespace), pod.desired(name).limits.memory_bytes or 0, requests=request)
    limit, cap = _beneath(limit, caps, None)
    if request and case.view.node is not None:
        after = case.raised(limit, request=True)
        limit, cap = _beneath(limit, node_cap(case.view, ground.node_room(case.view.node), after, limit), cap)
    if cap is not None and limit - old < worthwhile_bytes(old):
        return Unrelieved(cap.reason, f"{name} is at {_size(old)}, and {cap.what} is {_size(max(cap.limit_bytes, 0))}")
    return _checked(case, case.raised(limit, request=request), ground, cap)


def _beneath(limit_bytes: int, caps: Iterable[Cap], known: Cap | None) -> tuple[int, Cap | None]:
    cap = lowest(caps)
    return (limit_bytes, known) if cap is None or cap.limit_bytes >= limit_bytes else (cap.limit_bytes, cap)


def _checked(case: _Case, after: dict[str, ContainerResources], ground: Ground, cap: Cap | None) -> Relief | Unrelieved:
    pod, name, entry = case.view.pod, case.container, case.plea.entry
    refusal = ground.quota(pod.metadata.namespace).refusal(Wish(pod, after))
    if refusal is not None:
        return Unrelieved(RefusalReason.QUOTA_WOULD_EXCEED, refusal)
    target = Target(name, pod.desired(name), after[name], Amounts(), Amounts())
    moved = target.current.requests.memory_bytes != target.desired.requests.memory_bytes
    if moved and case.view.circumstances.sharing.forbids(target, Resource.MEMORY):
        return Unrelieved(NotDueReason.HPA, f"a HorizontalPodAutoscaler scales on the memory of {name} relative to its request")
    changes = changes_to(pod, after)
    restarting, status = restarts(pod, changes), pod.container_status(name)
    if restarting and status is not None and status.state.running is not None and entry.reason != PressingReason.OOM_KILLED:
        return Unrelieved(ReliefReason.WOULD_RESTART, f"the resizePolicy of {name} restarts it for more memory")
    return Relief(
        container=name,
        after=after,
        floor_bytes=math.ceil(entry.usage_bytes * _FLOOR_SHARE),
        restarts=restarting,
        takes_back=case.start.takes_back,
        message=describe(changes) + (f", no more than {cap.what}" if cap is not None else ""),
    )


def _qos(pod: Pod, changed: Mapping[str, ContainerResources]) -> str:
    return (not changed and pod.status.qos_class) or qos_class(pod, desired_resources(pod, changed))


def _size(amount_bytes: int) -> str:
    return format_amount(Resource.MEMORY, amount_bytes)
