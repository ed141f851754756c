"""What follows from a deletion: dependents whose last owner went, contents of namespaces and of definitions that go, finalizers of ours.

The real controllers do this a little later and from outside; here it happens in the delivery of the change that causes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from vpa_ippr.sandbox.objects import DEFINITIONS, FINALIZER_FOREGROUND, FINALIZER_ORPHAN
from vpa_ippr.sandbox.resources import Resource
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.store import Change, DeleteOptions, Key, Store

Json = dict[str, Any]
Place = tuple[str, Key]

_AT_ONCE = DeleteOptions()


class GarbageCollector:
    """Follows a store from its construction on; objects that name an owner which never existed are left alone."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dependents: defaultdict[str, set[Place]] = defaultdict(set)
        for resource in store.registry.all():
            if "list" in resource.verbs and not resource.storage:
                records, _ = store.snapshot(resource)
                for key, record in records:
                    self._index((resource.key, key), {}, record.obj)
        store.observe(self._follow)

    def _follow(self, resource_key: str, change: Change) -> None:
        place, obj = (resource_key, change.key), change.new.obj
        before = change.old.obj if change.old else {}
        if change.type == "DELETED":
            self._index(place, before, {})
            self._after_deletion(resource_key, obj)
            return
        self._index(place, before, obj)
        if obj["metadata"].get("deletionTimestamp"):
            self._while_deleting(place, obj)

    def _index(self, place: Place, before: Json, after: Json) -> None:
        old, new = _owners(before), _owners(after)
        for uid in old - new:
            self._dependents[uid].discard(place)
            if not self._dependents[uid]:
                del self._dependents[uid]
        for uid in new - old:
            self._dependents[uid].add(place)

    def _after_deletion(self, resource_key: str, obj: Json) -> None:
        uid = obj["metadata"]["uid"]
        for place in sorted(self._dependents.get(uid, ())):
            self._release(place, uid, delete=True)
        if resource_key == DEFINITIONS:
            self._remove_instances(obj)
        for owner_place in self._foreground_owners(obj):
            self._while_deleting(*owner_place)
        self._finish_namespace(obj["metadata"].get("namespace"))

    def _while_deleting(self, place: Place, obj: Json) -> None:
        finalizers = obj["metadata"].get("finalizers") or []
        uid = obj["metadata"]["uid"]
        if FINALIZER_ORPHAN in finalizers:
            for dependent in sorted(self._dependents.get(uid, ())):
                self._release(dependent, uid, delete=False)
            self._drop_finalizer(place, FINALIZER_ORPHAN)
        elif FINALIZER_FOREGROUND in finalizers:
            for dependent in sorted(self._dependents.get(uid, ())):
                self._delete(dependent)
            if not self._dependents.get(uid):
                self._drop_finalizer(place, FINALIZER_FOREGROUND)
        elif place[0] == "namespaces":
            self._empty_namespace(place[1][1])
            self._finish_namespace(place[1][1])

    def _release(self, place: Place, uid: str, *, delete: bool) -> None:
        """Delete a dependent, or only its reference when another owner is left."""
        resource, (namespace, name) = place
        current = self._store.find(resource, namespace, name)
        if current is None:
            return
        left = [o for o in current["metadata"].get("ownerReferences") or [] if o.get("uid") != uid]
        if delete and not any(self._exists(owner, namespace) for owner in left):
            self._delete(place)
        else:
            self._change(place, lambda obj: _with_owners(obj, left))

    def _exists(self, owner: Json, namespace: str) -> bool:
        resource = self._resource_of(owner)
        if resource is None:
            return False
        found = self._store.find(resource, namespace if resource.namespaced else None, owner.get("name", ""))
        return found is not None and found["metadata"]["uid"] == owner.get("uid")

    def _foreground_owners(self, obj: Json) -> list[tuple[Place, Json]]:
        """The owners that wait in the foreground for their dependents to go."""
        waiting = []
        for owner in obj["metadata"].get("ownerReferences") or []:
            resource = self._resource_of(owner)
            if resource is None:
                continue
            namespace = (obj["metadata"].get("namespace") or "") if resource.namespaced else ""
            found = self._store.find(resource, namespace, owner.get("name", ""))
            if found is not None and FINALIZER_FOREGROUND in (found["metadata"].get("finalizers") or []):
                waiting.append(((resource.key, (namespace, found["metadata"]["name"])), found))
        return waiting

    def _resource_of(self, owner: Json) -> Resource | None:
        wanted = (owner.get("apiVersion", ""), owner.get("kind", ""))
        return next((r for r in self._store.registry.all() if (r.api_version, r.kind) == wanted), None)

    def _drop_finalizer(self, place: Place, finalizer: str) -> None:
        def drop(obj: Json) -> Json:
            obj["metadata"]["finalizers"] = [f for f in obj["metadata"].get("finalizers") or [] if f != finalizer]
            return obj

        self._change(place, drop)

    def _change(self, place: Place, mutate: Callable[[Json], Json]) -> None:
        resource, (namespace, name) = place
        _unless_gone(lambda: self._store.update(resource, namespace, name, mutate))

    def _delete(self, place: Place) -> None:
        resource, (namespace, name) = place
        current = self._store.find(resource, namespace, name)
        if current is not None and not current["metadata"].get("deletionTimestamp"):
            _unless_gone(lambda: self._store.remove(resource, namespace, name, _AT_ONCE))

    # Namespaces and definitions

    def _contents(self, namespace: str) -> list[Place]:
        return [
            (resource.key, key)
            for resource in self._store.registry.all()
            if resource.namespaced and "list" in resource.verbs and not resource.storage
            for key, _ in self._store.snapshot(resource, namespace)[0]
        ]

    def _empty_namespace(self, namespace: str) -> None:
        for place in self._contents(namespace):
            self._delete(place)

    def _finish_namespace(self, name: str | None) -> None:
        """Let a namespace go that is being deleted and has become empty."""
        current = self._store.find("namespaces", None, name) if name else None
        if current is None or not current["metadata"].get("deletionTimestamp") or self._contents(name or ""):
            return
        self._change(("namespaces", ("", current["metadata"]["name"])), lambda obj: {**obj, "spec": {}})

    def _remove_instances(self, definition: Json) -> None:
        """Remove the objects of a definition that is gone; they are no longer served, so nobody sees them go."""
        spec = definition["spec"]
        self._store.clear(f"{spec['names']['plural']}.{spec['group']}")


def _owners(obj: Json) -> set[str]:
    references = (obj.get("metadata") or {}).get("ownerReferences") or []
    return {owner["uid"] for owner in references if owner.get("uid")}


def _with_owners(obj: Json, owners: list[Json]) -> Json:
    obj["metadata"]["ownerReferences"] = owners
    return obj


def _unless_gone(action: Callable[[], object]) -> None:
    try:
        action()
    except StatusError as error:
        if error.code != 404:
            raise
