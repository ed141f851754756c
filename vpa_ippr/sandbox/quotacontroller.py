"""The quota controller: recounts what the pods of a namespace use, some time after something has changed.

Admission charges growth at once (``quota.charge_quotas``); only this recount lets the usage of a quota fall, when a pod has gone or when
its status says that it has become smaller. Until then a resize can be refused for room that is already there (kubernetes#127132).
"""

from __future__ import annotations

from typing import Any

from vpa_ippr.sandbox.agenda import Agenda
from vpa_ippr.sandbox.mirror import Mirror
from vpa_ippr.sandbox.quota import quota_usage
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.store import Store

Json = dict[str, Any]
QUOTAS = "resourcequotas"
DEFAULT_LAG_SECONDS = 1.0


class QuotaController:
    """Follows pods and quotas. ``lag_seconds`` is the time from a change to the recount, and may be changed at any time."""

    def __init__(self, store: Store, agenda: Agenda, pods: Mirror, *, lag_seconds: float = DEFAULT_LAG_SECONDS) -> None:
        self.lag_seconds = lag_seconds
        self._store = store
        self._agenda = agenda
        self._pods = pods
        self._planned: set[str] = set()
        self._quotas = Mirror(store, agenda, QUOTAS)
        self._quotas.on_change(self._on_quota)
        self._counted: dict[str, Json] = {}
        pods.on_change(lambda _event, pod: self._plan(pod["metadata"]["namespace"]))

    def start(self) -> None:
        """Begin to follow the quotas; the pods' mirror is started by whoever made it."""
        self._quotas.start()

    def _on_quota(self, event: str, quota: Json) -> None:
        """A change of its status alone needs no recount."""
        metadata, spec = quota["metadata"], quota["spec"]
        if event == "DELETED":
            self._counted.pop(metadata["uid"], None)
        elif self._counted.get(metadata["uid"]) != spec:
            self._counted[metadata["uid"]] = spec
            self._plan(metadata["namespace"])

    def _plan(self, namespace: str) -> None:
        if namespace not in self._planned and any(key[0] == namespace for key in self._quotas.objects):
            self._planned.add(namespace)
            self._agenda.after(self.lag_seconds, lambda: self._recount(namespace))

    def _recount(self, namespace: str) -> None:
        self._planned.discard(namespace)
        pods = [pod for key, pod in self._pods.objects.items() if key[0] == namespace]
        for key, quota in sorted(self._quotas.objects.items()):
            status = {"hard": quota["spec"].get("hard") or {}, "used": quota_usage(pods, quota)}
            if key[0] == namespace and quota.get("status") != status:
                self._write(key[1], namespace, status)

    def _write(self, name: str, namespace: str, status: Json) -> None:
        try:
            self._store.update(QUOTAS, namespace, name, lambda stored: {**stored, "status": status}, subresource="status")
        except StatusError as error:
            if error.code != 404:
                raise
