"""The ``/eviction`` subresource: a deletion that PodDisruptionBudgets may refuse."""

from __future__ import annotations

from typing import Any

from vpa_ippr.api.timestamps import format_time
from vpa_ippr.sandbox.selectors import label_selector_of
from vpa_ippr.sandbox.status import Cause, StatusError, too_many_requests
from vpa_ippr.sandbox.store import DeleteOptions, Store

Json = dict[str, Any]

BUDGETS = "poddisruptionbudgets.policy"
_VIOLATED = "Cannot evict pod as it would violate the pod's disruption budget."
_RETRY_SECONDS = 10


def evict(store: Store, namespace: str, name: str, options: DeleteOptions) -> None:
    """Delete the pod, or raise StatusError 404, 409 or 429 as the real server does."""
    pod = store.get("pods", namespace, name)
    if _needs_no_budget(pod):
        store.remove("pods", namespace, name, options)
        return
    budgets = [budget for budget in store.list(BUDGETS, namespace) if _covers(budget, pod)]
    if len(budgets) > 1:
        raise StatusError(
            500, "InternalError", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
        )
    for budget in budgets:
        if not _is_unready_and_free_to_go(pod, budget):
            _take_from(store, budget, name, dry_run=options.dry_run)
    store.remove("pods", namespace, name, options)


def _needs_no_budget(pod: Json) -> bool:
    phase = (pod.get("status") or {}).get("phase")
    return phase in ("Succeeded", "Failed", "Pending") or bool(pod["metadata"].get("deletionTimestamp"))


def _covers(budget: Json, pod: Json) -> bool:
    return label_selector_of(budget["spec"].get("selector"))(pod["metadata"].get("labels") or {})


def _is_unready_and_free_to_go(pod: Json, budget: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
        return False
    status = budget.get("status") or {}
    if budget["spec"].get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    return bool(status.get("currentHealthy", 0) >= status.get("desiredHealthy", 0) > 0)


def _take_from(store: Store, budget: Json, pod_name: str, *, dry_run: bool) -> None:
    """Reserve one disruption, as ``checkAndDecrement`` does."""
    name, namespace = budget["metadata"]["name"], budget["metadata"]["namespace"]
    now = format_time(store.clock.now())

    def reserve(current: Json) -> Json:
        status = current.get("status") or {}
        generation = current["metadata"].get("generation", 0)
        if status.get("observedGeneration", 0) < generation:
            detail = f"The disruption budget {name} is still being processed by the server."
            raise too_many_requests(_VIOLATED, _RETRY_SECONDS, [Cause("DisruptionBudget", detail)])
        allowed = status.get("disruptionsAllowed", 0)
        if allowed <= 0:
            detail = (
                f"The disruption budget {name} needs {status.get('desiredHealthy', 0)} healthy pods "
                f"and has {status.get('currentHealthy', 0)} currently"
            )
            raise too_many_requests(_VIOLATED, 0, [Cause("DisruptionBudget", detail)])
        status["disruptionsAllowed"] = allowed - 1
        status["disruptedPods"] = {**(status.get("disruptedPods") or {}), pod_name: now}
        if allowed == 1:
            status["conditions"] = _insufficient(status.get("conditions") or [], generation, now)
        return {**current, "status": status}

    store.update(BUDGETS, namespace, name, reserve, subresource="status", dry_run=dry_run)


def _insufficient(conditions: list[Json], generation: int, now: str) -> list[Json]:
    condition = {
        "type": "DisruptionAllowed",
        "status": "False",
        "reason": "InsufficientPods",
        "message": "",
        "observedGeneration": generation,
        "lastTransitionTime": now,
    }
    return [condition, *(c for c in conditions if c["type"] != "DisruptionAllowed")]
