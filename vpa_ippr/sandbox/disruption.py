"""The disruption controller: how many pods of a PodDisruptionBudget may be disrupted now.

The figures are those of ``pkg/controller/disruption``: a percentage and ``maxUnavailable`` count against the scale of the pods'
controllers, ``minAvailable`` as a number against nothing; percentages are rounded up. Pods that an eviction has been granted for, and
that have not gone yet, count as disrupted for two minutes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vpa_ippr.api.timestamps import format_time, parse_time
from vpa_ippr.sandbox.agenda import Agenda
from vpa_ippr.sandbox.eviction import BUDGETS
from vpa_ippr.sandbox.mirror import Mirror, controller_uid
from vpa_ippr.sandbox.owners import is_active, is_ready
from vpa_ippr.sandbox.selectors import LabelPredicate, label_selector_of
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.store import Store

Json = dict[str, Any]
SYNC_SECONDS = 0.1
GRANTED_SECONDS = 120.0
"""``DeletionTimeout``: a granted eviction whose pod is still there counts no more."""


@dataclass(frozen=True, slots=True)
class Count:
    """What a budget asks for: ``desired`` of ``expected`` pods healthy. ``expected`` None: a controller of the pods has no scale."""

    expected: int | None
    desired: int


class Disruptions:
    """Follows pods and budgets, and keeps the budgets' status. The scale of controllers is looked up: a change of it changes pods."""

    def __init__(self, store: Store, agenda: Agenda, pods: Mirror, owners: Mapping[str, Mirror]) -> None:
        self._store = store
        self._agenda = agenda
        self._pods = pods
        self._owners = owners
        self._planned: set[tuple[str, str]] = set()
        self._selectors: defaultdict[str, dict[str, LabelPredicate]] = defaultdict(dict)
        self._budgets = Mirror(store, agenda, BUDGETS)
        self._budgets.on_change(self._on_budget)
        pods.on_change(self._on_pod)

    def start(self) -> None:
        """Begin to follow the budgets; the other mirrors are started by whoever made them."""
        self._budgets.start()

    def _on_budget(self, event: str, budget: Json) -> None:
        namespace, name = budget["metadata"]["namespace"], budget["metadata"]["name"]
        if event == "DELETED":
            self._selectors[namespace].pop(name, None)
        else:
            self._selectors[namespace][name] = label_selector_of(budget["spec"].get("selector"))
            self._plan(namespace, name)

    def _on_pod(self, _event: str, pod: Json) -> None:
        namespace, labels = pod["metadata"]["namespace"], pod["metadata"].get("labels") or {}
        for name, covers in self._selectors[namespace].items():
            if covers(labels):
                self._plan(namespace, name)

    def _plan(self, namespace: str, name: str) -> None:
        if (namespace, name) not in self._planned:
            self._planned.add((namespace, name))
            self._agenda.after(SYNC_SECONDS, lambda: self._write(namespace, name))

    def _write(self, namespace: str, name: str) -> None:
        self._planned.discard((namespace, name))
        now = self._agenda.now()

        def mutate(budget: Json) -> Json:
            return {**budget, "status": self._status(budget, now)}

        try:
            written = self._store.update(BUDGETS, namespace, name, mutate, subresource="status")
        except StatusError as error:
            if error.code != 404:
                raise
            return
        if written["status"].get("disruptedPods"):
            self._agenda.after(GRANTED_SECONDS, lambda: self._plan(namespace, name))

    def _status(self, budget: Json, now: float) -> Json:
        namespace, known = budget["metadata"]["namespace"], budget.get("status") or {}
        covers = label_selector_of(budget["spec"].get("selector"))
        pods = {
            key[1]: pod
            for key, pod in sorted(self._pods.objects.items())
            if key[0] == namespace and covers(pod["metadata"].get("labels") or {}) and is_active(pod)
        }
        granted = {
            name: moment
            for name, moment in (known.get("disruptedPods") or {}).items()
            if name in pods and now - parse_time(moment) < GRANTED_SECONDS
        }
        healthy = sum(is_ready(pod) for name, pod in pods.items() if name not in granted)
        count = self._count(budget["spec"], list(pods.values()))
        allowed = max(0, healthy - count.desired) if count.expected else 0
        status: Json = {
            "observedGeneration": budget["metadata"].get("generation", 1),
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": count.desired,
            "expectedPods": count.expected or 0,
            "conditions": _conditions(known.get("conditions") or [], budget, count, allowed, format_time(now)),
        }
        return {**status, "disruptedPods": granted} if granted else status

    def _count(self, spec: Json, pods: list[Json]) -> Count:
        minimum, maximum = spec.get("minAvailable"), spec.get("maxUnavailable")
        if maximum is None and isinstance(minimum, int):
            return Count(len(pods), minimum)
        expected = self._expected(pods)
        if expected is None:
            return Count(None, 0)
        if maximum is not None:
            return Count(expected, max(0, expected - _of(maximum, expected)))
        return Count(expected, _of(minimum if minimum is not None else 1, expected))

    def _expected(self, pods: list[Json]) -> int | None:
        """The scale of all controllers of the pods; pods without one count for nothing, a controller without a scale makes it unknown."""
        scales: dict[str, int] = {}
        for pod in pods:
            if controller_uid(pod) is None:
                continue
            owner = self._topmost(pod)
            if owner is None:
                return None
            scales[owner["metadata"]["uid"]] = int(owner["spec"].get("replicas", 1))
        return sum(scales.values())

    def _topmost(self, pod: Json) -> Json | None:
        """The Deployment, ReplicaSet or StatefulSet that decides how many there are."""
        found = self._owner(pod, ("ReplicaSet", "StatefulSet"))
        return (self._owner(found, ("Deployment",)) or found) if found is not None else None

    def _owner(self, obj: Json, kinds: tuple[str, ...]) -> Json | None:
        namespace = obj["metadata"]["namespace"]
        for reference in obj["metadata"].get("ownerReferences") or []:
            if reference.get("controller") and reference["kind"] in kinds:
                return self._owners[reference["kind"]].objects.get((namespace, reference["name"]))
        return None


def _of(amount: int | str, expected: int) -> int:
    """A number as it is, a percentage of the pods that are expected, rounded up."""
    if isinstance(amount, int):
        return amount
    return math.ceil(int(amount.rstrip("%")) * expected / 100)


def _conditions(known: list[Json], budget: Json, count: Count, allowed: int, moment: str) -> list[Json]:
    reason = "SyncFailed" if count.expected is None else "SufficientPods" if allowed else "InsufficientPods"
    status = "True" if allowed else "False"
    before = next((c for c in known if c["type"] == "DisruptionAllowed"), None)
    since = before["lastTransitionTime"] if before is not None and before["status"] == status else moment
    condition = {
        "type": "DisruptionAllowed",
        "status": status,
        "reason": reason,
        "message": "" if count.expected is not None else "the pods' controller does not implement the scale subresource",
        "observedGeneration": budget["metadata"].get("generation", 1),
        "lastTransitionTime": since,
    }
    return [condition, *(c for c in known if c["type"] != "DisruptionAllowed")]
