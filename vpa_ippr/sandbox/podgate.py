"""Where the store's writes to pods meet the pod rules: gathers what they need to know and carries out what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vpa_ippr.sandbox.podresize import ResizeRequest, admit_resize
from vpa_ippr.sandbox.podrules import admit_create, admit_update, decode_pod, default_spec
from vpa_ippr.sandbox.quota import charge_quotas
from vpa_ippr.sandbox.versions import profile

if TYPE_CHECKING:
    from vpa_ippr.sandbox.store import Store

Json = dict[str, Any]

_ADDED_BY_ADMISSION = ("priority", "preemptionPolicy", "tolerations")
# Fields that Go prints even when they are empty.
_CONDITION_FIELDS: Json = {"lastProbeTime": None, "lastTransitionTime": None}
_STATUS_FIELDS: Json = {"ready": False, "restartCount": 0, "image": "", "imageID": "", "state": {}, "lastState": {}}


class PodGate:
    """The rules for pods, bound to one store; called with the store's lock held."""

    def __init__(self, store: Store, version: str) -> None:
        self._store = store
        self._profile = profile(version)

    def prepare_create(self, pod: Json) -> Json:
        """The pod to store; StatusError 400, 403 or 422."""
        namespace = pod["metadata"]["namespace"]
        pod = self._with_priority(pod)
        return admit_create(pod, self._all("limitranges", namespace), self._all("resourcequotas", namespace), self._profile)

    def prepare_update(self, old: Json, new: Json, subresource: str | None) -> Json:
        """The pod to store; StatusError 400, 403 or 422."""
        if subresource == "resize":
            return self._resized(old, new)
        if subresource == "status":
            return _complete_status(new)
        if subresource == "binding":
            return new
        return admit_update(old, new, self._profile)

    def charge(self, pod: Json, old: Json | None = None) -> None:
        """Charge the quotas of the namespace with a new pod, or with what its resize adds."""
        namespace = pod["metadata"]["namespace"]
        for charged in charge_quotas(pod, self._all("resourcequotas", namespace), old=old):
            status = charged["status"]
            self._store.update(
                "resourcequotas",
                namespace,
                charged["metadata"]["name"],
                lambda quota, status=status: {**quota, "status": status},  # type: ignore[misc]
                subresource="status",
            )

    def default_template(self, template: Json) -> Json:
        """A pod template with the defaults of a pod's spec, without what admission adds to pods alone."""
        spec = template.get("spec") or {}
        defaulted = default_spec(decode_pod({"metadata": template.get("metadata") or {}, "spec": spec}), self._profile)
        kept = {k: v for k, v in defaulted["spec"].items() if k in spec or k not in _ADDED_BY_ADMISSION}
        if "tolerations" in spec:
            kept["tolerations"] = spec["tolerations"]
        return {"metadata": defaulted["metadata"], "spec": kept}

    def _with_priority(self, pod: Json) -> Json:
        """Plugin Priority: a class stands for its value; the system's own classes have no object here, ``podrules`` knows them."""
        spec = pod.get("spec")
        if not isinstance(spec, dict) or not isinstance(name := spec.get("priorityClassName"), str):
            return pod
        found = self._store.find("priorityclasses.scheduling.k8s.io", None, name)
        if found is None:
            return pod
        policy = found.get("preemptionPolicy", "PreemptLowerPriority")
        return {**pod, "spec": {**spec, "priority": found["value"], "preemptionPolicy": policy}}

    def _resized(self, old: Json, new: Json) -> Json:
        namespace, node = old["metadata"]["namespace"], old["spec"].get("nodeName")
        request = ResizeRequest(
            old=old,
            new=new,
            limit_ranges=self._all("limitranges", namespace),
            quotas=self._all("resourcequotas", namespace),
            node=self._store.find("nodes", None, node) if node else None,
            profile=self._profile,
        )
        return admit_resize(request)

    def _all(self, resource: str, namespace: str) -> list[Json]:
        records, _ = self._store.snapshot(resource, namespace)
        return [record.obj for _, record in records]


def _complete_status(pod: Json) -> Json:
    status = pod.get("status")
    if not status:
        return pod
    completed = dict(status)
    for field, empty in (
        ("conditions", _CONDITION_FIELDS),
        ("containerStatuses", _STATUS_FIELDS),
        ("initContainerStatuses", _STATUS_FIELDS),
    ):
        if completed.get(field):
            completed[field] = [{**empty, **entry} for entry in completed[field]]
    return {**pod, "status": completed}
