"""What the API server does to an object on its way into the store: defaults, validation, admission, and what an update may touch.

Pods have rules of their own (``podgate``); custom resources follow their schema (``customschema``); the rest is here.
"""

from __future__ import annotations

import json
import re
import secrets
import uuid
from typing import TYPE_CHECKING, Any

from vpa_ippr.api.timestamps import format_time, parse_time
from vpa_ippr.sandbox import customschema
from vpa_ippr.sandbox.custom import CustomTypes, default_definition, definition_causes
from vpa_ippr.sandbox.defaults import fill_defaults, prepare_status
from vpa_ippr.sandbox.limits import default_limit_range
from vpa_ippr.sandbox.podgate import PodGate
from vpa_ippr.sandbox.podvalidation import metadata_causes
from vpa_ippr.sandbox.resources import Resource
from vpa_ippr.sandbox.status import Cause, StatusError, bad_request, forbidden, invalid

if TYPE_CHECKING:
    from vpa_ippr.sandbox.store import Change, Store

Json = dict[str, Any]

PODS = "pods"
LIMIT_RANGES = "limitranges"
DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
FINALIZER_ORPHAN = "orphan"
FINALIZER_FOREGROUND = "foregroundDeletion"
_SELECTING = {"deployments.apps", "replicasets.apps", "statefulsets.apps", "daemonsets.apps"}
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_BAD_LABEL_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_RBAC_GROUP = "rbac.authorization.k8s.io"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_SYSTEM_FIELDS = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "namespace", "name")


class ObjectRules:
    """The rules of one store; all methods are called with the store's lock held."""

    def __init__(self, store: Store, version: str) -> None:
        self._store = store
        self.custom = CustomTypes(store.registry)
        self.pods = PodGate(store, version)

    # Create

    def prepare_create(self, resource: Resource, obj: Json) -> Json:
        """The complete new object.

        Raises:
            StatusError: 404 for the namespace, 403 by admission, 422 for broken rules.
        """
        obj["apiVersion"], obj["kind"] = resource.api_version, resource.kind
        metadata = obj.get("metadata") or {}
        obj["metadata"] = self._system_fields(resource, metadata)
        self._check_namespace(resource, obj)
        if resource.custom:
            return self._prepare_custom(resource, obj, None)
        if resource.key == PODS:
            return self.pods.prepare_create(obj)
        prepare_if_status(resource, obj)
        if resource.key == DEFINITIONS:
            default_definition(obj, obj["metadata"]["creationTimestamp"])
        fill_defaults(resource.storage_key, obj, self.pods.default_template)
        self._refuse(resource, obj, _create_causes(resource, obj))
        return default_limit_range(obj) if resource.key == LIMIT_RANGES else obj

    def _system_fields(self, resource: Resource, metadata: Json) -> Json:
        if metadata.get("resourceVersion"):
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        for name in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "generation", "resourceVersion"):
            metadata.pop(name, None)
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + "".join(secrets.choice(_ALPHABET) for _ in range(5))
        if resource.namespaced:
            metadata["namespace"] = metadata.get("namespace") or "default"
        else:
            metadata.pop("namespace", None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = format_time(self._store.clock.now())
        if resource.has_generation:
            metadata["generation"] = 1
        return metadata

    def _check_namespace(self, resource: Resource, obj: Json) -> None:
        if not resource.namespaced:
            return
        name = obj["metadata"]["namespace"]
        namespace = self._store.record("namespaces", None, name).obj
        if namespace["metadata"].get("deletionTimestamp"):
            detail = f"unable to create new content in namespace {name} because it is being terminated"
            cause = Cause("NamespaceTerminating", f"namespace {name} is being terminated", "metadata.namespace")
            raise forbidden(resource.plural, obj["metadata"].get("name", ""), detail, resource.group, [cause])

    def admit_create(self, resource: Resource, obj: Json) -> None:
        """The last step before a new object is stored: what it uses is charged to quotas."""
        if resource.key == PODS:
            self.pods.charge(obj)

    def admit_update(self, resource: Resource, old: Json, new: Json, subresource: str | None) -> None:
        """The last step before a changed object is stored: what a resize adds is charged to quotas."""
        if resource.key == PODS and subresource == "resize":
            self.pods.charge(new, old)

    # Update

    def prepare_update(self, resource: Resource, old: Json, new: Json, subresource: str | None) -> Json:
        """The object to store: only what this endpoint may change differs from ``old``.

        Raises:
            StatusError: 403 or 422.
        """
        new["apiVersion"], new["kind"] = resource.api_version, resource.kind
        new["metadata"] = _kept_system_fields(old["metadata"], new.get("metadata") or {})
        if subresource == "status":
            new = self._with_status(resource, old, new)
        elif resource.has_status and resource.key != DEFINITIONS and subresource != "binding":
            _put_back(new, old, "status")
        if resource.custom:
            new = self._prepare_custom(resource, new, old)
        elif resource.key == PODS:
            new = self.pods.prepare_update(old, new, subresource)
        elif subresource is None:
            self._prepare_built_in(resource, old, new)
        if resource.has_generation and resource.key != PODS and _counts_as_change(resource, old, new):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return new

    def _prepare_built_in(self, resource: Resource, old: Json, new: Json) -> None:
        if resource.key == DEFINITIONS:
            default_definition(new, old["metadata"]["creationTimestamp"])
        fill_defaults(resource.storage_key, new, self.pods.default_template)
        self._refuse(resource, new, _create_causes(resource, new) + _update_causes(resource, old, new))

    def _with_status(self, resource: Resource, old: Json, new: Json) -> Json:
        """What a write to ``/status`` changes: the status, and for pods and nodes the labels and annotations."""
        result = dict(old) if resource.custom else {**new, "spec": old.get("spec")}
        if result.get("spec") is None:
            result.pop("spec", None)
        _put_back(result, new, "status")
        result["metadata"] = dict(new["metadata"])
        if resource.key not in (PODS, "nodes"):
            result["metadata"] = {**old["metadata"]}
            _put_back(result["metadata"], new["metadata"], "managedFields")
        return result

    def _prepare_custom(self, resource: Resource, new: Json, old: Json | None) -> Json:
        schema = self.custom.schema(resource)
        if old is None and resource.has_status:
            new.pop("status", None)
        pruned, _ = customschema.prune(new, schema)
        filled: Json = customschema.fill_defaults(pruned, schema)
        causes = metadata_causes(filled) + _label_causes(filled) + customschema.validate(filled, schema, old)
        self._refuse(resource, filled, causes)
        return filled

    def _refuse(self, resource: Resource, obj: Json, causes: list[Cause]) -> None:
        if causes:
            raise invalid(resource.kind, obj["metadata"].get("name", ""), causes, resource.group)

    # Delete

    def prepare_delete(self, resource: Resource, obj: Json, grace_seconds: int | None, propagation: str) -> tuple[Json, bool]:
        """The object as the request leaves it, and whether it can go at once."""
        metadata = obj["metadata"]
        extra = {"Orphan": FINALIZER_ORPHAN, "Foreground": FINALIZER_FOREGROUND}.get(propagation)
        if extra and extra not in (metadata.get("finalizers") or []):
            metadata["finalizers"] = [*(metadata.get("finalizers") or []), extra]
        if resource.key == PODS:
            self._mark_graceful(metadata, _grace_period(obj, grace_seconds))
        elif metadata.get("finalizers") or (obj.get("spec") or {}).get("finalizers"):
            self._mark_graceful(metadata, 0)
            if resource.key == "namespaces":
                obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
        else:
            return obj, True
        return obj, self.is_finished(obj)

    def _mark_graceful(self, metadata: Json, seconds: int) -> None:
        now = self._store.clock.now()
        if metadata.get("deletionTimestamp") is None:
            metadata["deletionTimestamp"] = format_time(now + seconds)
            metadata["deletionGracePeriodSeconds"] = seconds
            if metadata.get("generation"):
                metadata["generation"] += 1
        elif seconds < metadata.get("deletionGracePeriodSeconds", 0):
            # A later request may shorten the wait, counted from the first one, and never lengthen it.
            asked = parse_time(metadata["deletionTimestamp"]) - metadata["deletionGracePeriodSeconds"]
            metadata["deletionTimestamp"] = format_time(asked + seconds)
            metadata["deletionGracePeriodSeconds"] = seconds

    def is_finished(self, obj: Json) -> bool:
        """True for an object that is being deleted and that nothing holds back any more."""
        metadata = obj["metadata"]
        held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
        if obj["kind"] == "Namespace":
            held = held or (obj.get("spec") or {}).get("finalizers")
        return metadata.get("deletionTimestamp") is not None and not held

    # Consequences

    def follow(self, key: str, change: Change) -> None:
        """Serve the custom resources of a definition that was made or changed, and stop serving those of one that went."""
        if key != DEFINITIONS:
            return
        if change.type == "DELETED":
            self.custom.withdraw(change.new.obj)
        elif change.old is None or change.old.obj["spec"] != change.new.obj["spec"]:
            self.custom.serve(change.new.obj)


def prepare_if_status(resource: Resource, obj: Json) -> None:
    """Reset the status of a new object whose type writes it through ``/status`` alone."""
    if resource.has_status:
        prepare_status(resource.key, obj, None)


def _kept_system_fields(old: Json, new: Json) -> Json:
    kept = {**new}
    for name in _SYSTEM_FIELDS:
        _put_back(kept, old, name)
    kept["resourceVersion"] = old["resourceVersion"]
    kept.pop("selfLink", None)
    for name in ("labels", "annotations", "ownerReferences", "finalizers"):
        if not kept.get(name):
            kept.pop(name, None)
    if old.get("deletionTimestamp"):
        added = set(kept.get("finalizers") or []) - set(old.get("finalizers") or [])
        if added:
            shown = json.dumps(sorted(added))
            raise bad_request(f"metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted: {shown}")
    return kept


def _put_back(target: Json, source: Json, name: str) -> None:
    if source.get(name) is None:
        target.pop(name, None)
    else:
        target[name] = source[name]


def _counts_as_change(resource: Resource, old: Json, new: Json) -> bool:
    if not resource.custom:
        return bool(old.get("spec") != new.get("spec"))
    ignored = {"metadata", "status"} if resource.has_status else {"metadata"}
    return {k: v for k, v in old.items() if k not in ignored} != {k: v for k, v in new.items() if k not in ignored}


def _grace_period(pod: Json, asked: int | None) -> int:
    if not pod["spec"].get("nodeName") or (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
        return 0
    seconds = asked if asked is not None else pod["spec"].get("terminationGracePeriodSeconds", 30)
    return 1 if seconds < 0 else int(seconds)


# Validation of built-in types


def _create_causes(resource: Resource, obj: Json) -> list[Cause]:
    causes = [] if resource.group == _RBAC_GROUP and obj["metadata"].get("name") else metadata_causes(obj)
    causes += _label_causes(obj)
    if resource.key == DEFINITIONS:
        causes += definition_causes(obj)
    if resource.key in _SELECTING:
        causes += _selector_causes(obj)
    replicas = (obj.get("spec") or {}).get("replicas")
    if isinstance(replicas, int) and replicas < 0:
        causes.append(Cause("FieldValueInvalid", f"Invalid value: {replicas}: must be greater than or equal to 0", "spec.replicas"))
    return causes


def _label_causes(obj: Json) -> list[Cause]:
    labels = obj["metadata"].get("labels") or {}
    return [
        Cause("FieldValueInvalid", f"Invalid value: {json.dumps(value)}: {_BAD_LABEL_VALUE}", "metadata.labels")
        for value in labels.values()
        if not isinstance(value, str) or len(value) > 63 or not _LABEL_VALUE.fullmatch(value)
    ]


def _selector_causes(obj: Json) -> list[Cause]:
    spec = obj["spec"]
    if not isinstance(spec.get("selector"), dict):
        return [Cause("FieldValueRequired", "Required value", "spec.selector")]
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    wanted = spec["selector"].get("matchLabels") or {}
    if all(labels.get(key) == value for key, value in wanted.items()):
        return []
    shown = json.dumps(labels, separators=(",", ":"))
    detail = f"Invalid value: {shown}: `selector` does not match template `labels`"
    return [Cause("FieldValueInvalid", detail, "spec.template.metadata.labels")]


def _update_causes(resource: Resource, old: Json, new: Json) -> list[Cause]:
    causes: list[Cause] = []
    if resource.key in _SELECTING and old["spec"].get("selector") != new["spec"].get("selector"):
        shown = json.dumps(new["spec"].get("selector"), separators=(",", ":"))
        causes.append(Cause("FieldValueInvalid", f"Invalid value: {shown}: field is immutable", "spec.selector"))
    if resource.key == "jobs.batch" and old["spec"].get("template") != new["spec"].get("template"):
        causes.append(Cause("FieldValueInvalid", "Invalid value: field is immutable", "spec.template"))
    if resource.group == _RBAC_GROUP and old.get("roleRef") != new.get("roleRef"):
        shown = json.dumps(new.get("roleRef"), separators=(",", ":"))
        causes.append(Cause("FieldValueInvalid", f"Invalid value: {shown}: cannot change roleRef", "roleRef"))
    return causes
