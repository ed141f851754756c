"""Is a resize of this pod due? The rules of upstream's updater, without what does not fit an in-place change.

As upstream: outside the bounds at once; after a quick out-of-memory kill when the recommendation differs; else only for pods of a minimum
age and for a change of 10 %. Differently: a growing CPU request does not wait for the age, since it costs nothing in place; changes in
opposite directions do not cancel each other out; what differs only in notation or below the kernel's grain is no change; what was refused
or reverted lately is left alone until its hold-off is over. A pause, a closed maintenance window, an HPA and a startup boost keep changes
back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vpa_ippr.api.pod import POD_LEVEL, Pod
from vpa_ippr.api.resources import Resource
from vpa_ippr.api.timestamps import parse_time
from vpa_ippr.api.vpa import Vpa
from vpa_ippr.recommend.limit_ranges import UNLIMITED, NamespaceLimits
from vpa_ippr.resize.circumstances import ORDINARY, Circumstances
from vpa_ippr.resize.ledger import History, Scope, hold_off_for
from vpa_ippr.resize.reasons import DueReason, NotDueReason
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.targets import Target, targets_of
from vpa_ippr.resize.windows import format_moment

IN_PLACE_MODES = frozenset({"InPlaceOrRecreate", "InPlace"})
_EVICTING_MODES = frozenset({"Recreate", "Auto"})
_IDLE_MODES = {"Off": NotDueReason.MODE_OFF, "Initial": NotDueReason.MODE_INITIAL}


@dataclass(frozen=True, slots=True)
class Part:
    """The smallest thing that is resized or left alone: one resource of one container, its request and its limit together."""

    container: str
    resource: Resource


@dataclass(frozen=True, slots=True)
class Due:
    """A resize is due. ``change`` is upstream's measure: the sum over both resources of the change relative to the requests.

    ``by_eviction``: the mode wants the pod made anew; else it is changed in place. ``kept_limits``: the containers whose memory limit stays
    while their request grows, since it would come down below what is known to be needed.
    """

    reasons: tuple[DueReason, ...]
    parts: tuple[Part, ...]
    change: float
    by_eviction: bool = False
    kept_limits: frozenset[str] = frozenset()

    @property
    def containers(self) -> tuple[str, ...]:
        """The containers that are to change, each once."""
        return tuple(dict.fromkeys(part.container for part in self.parts))


@dataclass(frozen=True, slots=True)
class NotDue:
    """No resize is due."""

    reason: NotDueReason
    message: str = ""


def decide(
    pod: Pod,
    vpa: Vpa,
    now: float,
    settings: Settings,
    history: History,
    limits: NamespaceLimits = UNLIMITED,
    circumstances: Circumstances = ORDINARY,
) -> Due | NotDue:
    """Whether, why and in which parts the pod is to be resized, in a namespace with these ``limits``.

    Raises:
        QuantityError: a quantity of the pod or of the VPA cannot be read.
        ValidationError: a time of the pod cannot be read.
    """
    unfit = _unfit(pod, vpa)
    if unfit is not None:
        return unfit
    targets = {target.container: target for target in targets_of(pod, vpa, history.ledger, limits)}
    if not targets:
        return NotDue(NotDueReason.NO_RECOMMENDATION, f"vpa {vpa.key} recommends nothing for the containers of this pod")
    kept = frozenset(name for name, target in targets.items() if _must_keep_limit(target, now, history))
    targets |= {name: targets[name].keeping_limit(Resource.MEMORY) for name in kept}
    open_parts, blocked = _open_parts(targets, now, history, circumstances)
    if not open_parts:
        return blocked or NotDue(NotDueReason.UP_TO_DATE)
    verdict = _in_circumstances(
        _verdict(pod, vpa, targets, open_parts, now, settings), pod, vpa, targets, open_parts, circumstances, settings
    )
    return replace(verdict, kept_limits=kept) if isinstance(verdict, Due) else verdict


def _must_keep_limit(target: Target, now: float, history: History) -> bool:
    """True when more memory is requested and a lower limit wanted, below what is known to be needed: the request alone may move."""
    if not (target.lowers_limit(Resource.MEMORY) and target.grows(Resource.MEMORY)):
        return False
    hold_off, limit = hold_off_for(history.ledger, target.container, Resource.MEMORY, now, grows=False), target.desired.limits.memory_bytes
    return hold_off is not None and (hold_off.floor_bytes is None or (limit or 0) < hold_off.floor_bytes)


def _in_circumstances(
    verdict: Due | NotDue,
    pod: Pod,
    vpa: Vpa,
    targets: dict[str, Target],
    open_parts: tuple[Part, ...],
    circumstances: Circumstances,
    settings: Settings,
) -> Due | NotDue:
    if isinstance(verdict, Due) and circumstances.closed_until is not None:
        verdict = _urgent_growth(pod, vpa, targets, open_parts, settings) or _outside_window(verdict, circumstances.closed_until)
    if isinstance(verdict, Due) and circumstances.paused:
        return NotDue(NotDueReason.PAUSED, f"due ({', '.join(verdict.reasons)}), but changes are paused")
    return verdict


def _unfit(pod: Pod, vpa: Vpa) -> NotDue | None:
    mode = vpa.update_mode
    if mode in _IDLE_MODES:
        return NotDue(_IDLE_MODES[mode])
    if mode not in IN_PLACE_MODES | _EVICTING_MODES:
        return NotDue(NotDueReason.MODE_UNKNOWN, f"vpa {vpa.key} has updateMode {mode!r}, which is not known")
    if pod.metadata.deletion_timestamp is not None:
        return NotDue(NotDueReason.POD_DELETING)
    if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
        return NotDue(NotDueReason.POD_NOT_RUNNING)
    return None


def _open_parts(
    targets: dict[str, Target], now: float, history: History, circumstances: Circumstances
) -> tuple[tuple[Part, ...], NotDue | None]:
    """The parts that differ and may be touched now; with the first reason that keeps another one back."""
    open_parts: list[Part] = []
    blocked: NotDue | None = None
    for target in targets.values():
        for resource in Resource:
            if target.changes(resource):
                obstacle = _shared(target, resource, circumstances) or _obstacle(target, resource, now, history)
                if obstacle is None:
                    open_parts.append(Part(target.container, resource))
                blocked = blocked or obstacle
    return tuple(open_parts), blocked


def _shared(target: Target, resource: Resource, circumstances: Circumstances) -> NotDue | None:
    """Why a resource is somebody else's to set."""
    # A boosted container may be what the pod's own CPU makes room for.
    if resource is Resource.CPU and circumstances.boosted and target.container in (*circumstances.boosted, POD_LEVEL):
        return NotDue(NotDueReason.BOOSTED, f"the startup boost of {', '.join(sorted(circumstances.boosted))} is not over")
    if circumstances.sharing.forbids(target, resource):
        return NotDue(NotDueReason.HPA, f"a HorizontalPodAutoscaler scales on {resource} of {target.container} relative to its request")
    return None


def _obstacle(target: Target, resource: Resource, now: float, history: History) -> NotDue | None:
    grows = target.grows(resource)
    if resource is Resource.MEMORY and not grows and target.container in history.shrinking:
        return NotDue(NotDueReason.SHRINK_ACTIVE, f"memory of {target.container} is being brought down")
    hold_off = hold_off_for(history.ledger, target.container, resource, now, grows=grows)
    if hold_off is None:
        return None
    if hold_off.scope is Scope.SHRINK and hold_off.floor_bytes is not None:
        limit = target.desired.limits.memory_bytes
        if limit is None or limit >= hold_off.floor_bytes:
            return None
        return NotDue(
            NotDueReason.LEARNED_FLOOR,
            f"{target.container} needs {hold_off.floor_bytes} bytes ({hold_off.reason}): {limit} is not tried before {hold_off.until:.0f}",
        )
    return NotDue(NotDueReason.HOLD_OFF, f"{target.container} is left alone until {hold_off.until:.0f} after {hold_off.reason}")


def _verdict(pod: Pod, vpa: Vpa, targets: dict[str, Target], parts: tuple[Part, ...], now: float, settings: Settings) -> Due | NotDue:
    change, by_eviction = _change(targets, parts), _by_eviction(vpa)
    urgent = _urgent_reasons(pod, vpa, targets, parts, settings)
    if urgent:
        return Due(urgent, parts, change, by_eviction)
    is_old = now - _started_at(pod, now) >= settings.min_pod_age_seconds
    if is_old and change >= settings.min_change:
        return Due((DueReason.SIGNIFICANT_CHANGE,), parts, change, by_eviction)
    short = tuple(part for part in parts if _short_of_cpu(targets[part.container], part, settings))
    if short and not by_eviction:  # what costs nothing in place costs a restart otherwise
        return Due((DueReason.CPU_SHORTAGE,), short, _change(targets, short))
    if change < settings.min_change:
        return NotDue(NotDueReason.CHANGE_TOO_SMALL, f"change of {change:.1%} inside the bounds")
    return NotDue(NotDueReason.POD_TOO_YOUNG, f"inside the bounds, younger than {settings.min_pod_age_seconds:.0f} s")


def _by_eviction(vpa: Vpa) -> bool:
    return vpa.update_mode in _EVICTING_MODES


def _urgent_growth(pod: Pod, vpa: Vpa, targets: dict[str, Target], parts: tuple[Part, ...], settings: Settings) -> Due | None:
    """What cannot wait for a maintenance window: growth from below the lower bound, and of memory after a quick out-of-memory kill."""
    found = {part: reasons for part in parts if (reasons := _growth_reasons(pod, vpa, targets[part.container], part.resource, settings))}
    if not found:
        return None
    urgent = tuple(dict.fromkeys(reason for reasons in found.values() for reason in reasons))
    return Due(urgent, tuple(found), _change(targets, tuple(found)), _by_eviction(vpa))


def _growth_reasons(pod: Pod, vpa: Vpa, target: Target, resource: Resource, settings: Settings) -> tuple[DueReason, ...]:
    if not target.grows(resource):
        return ()
    request, lower = target.current.requests.get(resource), target.lower.get(resource)
    below = request is not None and lower is not None and request < lower
    # A container without a request of its own lives on the pod's.
    names = [one.name for one in pod.spec.containers] if target.container == POD_LEVEL else [target.container]
    killed = resource is Resource.MEMORY and any(_quick_oom(pod, name, vpa, settings) for name in names)
    return (DueReason.OUTSIDE_BOUNDS,) * below + (DueReason.QUICK_OOM,) * killed


def _outside_window(due: Due, opens_at: float) -> NotDue:
    return NotDue(NotDueReason.OUTSIDE_WINDOW, f"due ({', '.join(due.reasons)}), waits for the window of {format_moment(opens_at)}")


def _change(targets: dict[str, Target], parts: tuple[Part, ...]) -> float:
    """The sum over resources of what changes, relative to what all containers with a target request of it."""
    total = 0.0
    for resource in Resource:
        requested = sum(target.current.requests.get(resource) or 0 for target in targets.values())
        changing = [targets[part.container] for part in parts if part.resource is resource]
        total += sum(_distance(target, resource) for target in changing) / max(requested, 1)
    return total


def _distance(target: Target, resource: Resource) -> int:
    """How far the request moves; how far the limit does where it alone is out of place."""
    request = abs((target.desired.requests.get(resource) or 0) - (target.current.requests.get(resource) or 0))
    return request or abs((target.desired.limits.get(resource) or 0) - (target.current.limits.get(resource) or 0))


def _urgent_reasons(pod: Pod, vpa: Vpa, targets: dict[str, Target], parts: tuple[Part, ...], settings: Settings) -> tuple[DueReason, ...]:
    reasons: list[DueReason] = []
    for part in parts:
        target = targets[part.container]
        request = target.current.requests.get(part.resource)
        if request is None:
            reasons.append(DueReason.REQUEST_MISSING)
        elif _outside(request, target.lower.get(part.resource), target.upper.get(part.resource)):
            reasons.append(DueReason.OUTSIDE_BOUNDS)
    if any(_quick_oom(pod, name, vpa, settings) for name in targets):
        reasons.append(DueReason.QUICK_OOM)
    return tuple(dict.fromkeys(reasons))


def _outside(request: int, lower: int | None, upper: int | None) -> bool:
    return (lower is not None and request < lower) or (upper is not None and request > upper)


def _quick_oom(pod: Pod, container: str, vpa: Vpa, settings: Settings) -> bool:
    """True when the container's last end was an out-of-memory kill soon after its start."""
    policy, status = vpa.spec.update_policy, pod.container_status(container)
    threshold_seconds = (policy.evict_after_oom_seconds if policy else None) or settings.quick_oom_seconds
    ended = (status.state.terminated or status.last_state.terminated) if status else None
    if ended is None or ended.reason != "OOMKilled" or not ended.started_at or not ended.finished_at:
        return False
    return parse_time(ended.finished_at) - parse_time(ended.started_at) < threshold_seconds


def _short_of_cpu(target: Target, part: Part, settings: Settings) -> bool:
    if part.resource is not Resource.CPU:
        return False
    old, new = target.current.requests.cpu_millicores or 0, target.desired.requests.cpu_millicores or 0
    return new > old and (new - old) / max(old, 1) >= settings.min_change


def _started_at(pod: Pod, now: float) -> float:
    return parse_time(pod.status.start_time) if pod.status.start_time else now
