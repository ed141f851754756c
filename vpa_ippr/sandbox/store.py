"""The objects of the cluster: a thread-safe store with resource versions, optimistic locking and a bounded history for watches.

Objects are plain JSON. A stored object is never changed, only replaced, so that its encoded form is made once and shared by every
reader. All rules about what an object may look like lie in ``objects.ObjectRules``; the store knows only metadata.

Locks: ``_lock`` guards the objects and is held for microseconds. Subscribers are called after it is released, in the order of the
changes, under ``_delivery``: they may use the store, but must not wait for a thread that itself writes to it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from vpa_ippr.api.clock import Clock
from vpa_ippr.sandbox.fields import field_readers
from vpa_ippr.sandbox.objects import ObjectRules
from vpa_ippr.sandbox.records import Change, DeleteOptions, Deletion, EventType, Key, Record, Table
from vpa_ippr.sandbox.resources import Registry, Resource, built_in_registry
from vpa_ippr.sandbox.selectors import parse_field_selector, parse_label_selector
from vpa_ippr.sandbox.status import MODIFIED_MEANWHILE, already_exists, conflict, expired, not_found

__all__ = ["Change", "DeleteOptions", "Deletion", "Key", "Record", "Store"]

logger = logging.getLogger(__name__)

Json = dict[str, Any]
Subscriber = Callable[[EventType, Json], None]
Mutation = Callable[[Json], Json]
Observer = Callable[[str, Change], None]
Objects = list[Json]
Records = list[tuple[Key, Record]]
Changes = list[Change]

INITIAL_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
DEFAULT_HISTORY = 2048
"""Changes kept for each resource. A watcher that falls further behind gets 410 and lists again."""


class Store:
    """The cluster's objects; every method may be called from any thread and raises ``StatusError``.

    A resource is a ``Resource`` or its key: ``"pods"``, ``"deployments.apps"``, ``"memoryshrinks.vpa-ippr.io"``. The namespace of a
    cluster-scoped object is None or "". Returned objects are copies.
    """

    def __init__(self, clock: Clock, *, version: str = "1.36", history: int = DEFAULT_HISTORY, registry: Registry | None = None) -> None:
        self.clock = clock
        self.version = version
        self.registry = registry or built_in_registry()
        self.rules = ObjectRules(self, version)
        self._history = history
        self._lock = threading.RLock()
        self._depth = 0
        self._revision = 1
        self._expiries = 0
        self._tables: dict[str, Table] = {}
        self._subscribers: dict[str, list[Subscriber]] = {}
        self._observers: list[Observer] = [self.rules.follow]
        self._delivery = threading.RLock()
        self._delivering = False
        self._undelivered: deque[tuple[str, Change]] = deque()
        for name in INITIAL_NAMESPACES:
            self.create("namespaces", {"metadata": {"name": name}})

    # Reading

    def get(self, resource: Resource | str, namespace: str | None, name: str) -> Json:
        """The object; StatusError 404 when it is not there."""
        return self.record(resource, namespace, name).copy()

    def find(self, resource: Resource | str, namespace: str | None, name: str) -> Json | None:
        """The object, or None."""
        descriptor = self.registry.named(resource)
        with self._lock:
            record = self._table(descriptor).records.get((namespace or "", name))
        return record.copy() if record else None

    def record(self, resource: Resource | str, namespace: str | None, name: str) -> Record:
        """The stored form of the object, to be read only; StatusError 404 when it is not there."""
        descriptor = self.registry.named(resource)
        with self._lock:
            record = self._table(descriptor).records.get((namespace or "", name))
        if record is None:
            raise not_found(descriptor.plural, name, descriptor.group)
        return record

    def list(
        self,
        resource: Resource | str,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> Objects:
        """The objects of one namespace, or of all, that match both selectors, sorted by namespace and name."""
        descriptor = self.registry.named(resource)
        labels_match = parse_label_selector(label_selector)
        fields_match = parse_field_selector(field_selector, field_readers(descriptor))
        records, _ = self.snapshot(descriptor, namespace)
        return [r.copy() for _, r in records if labels_match(r.labels) and fields_match(r.obj)]

    def snapshot(self, resource: Resource | str, namespace: str | None = None, *, at: int | None = None) -> tuple[Records, int]:
        """The sorted records of a namespace (or all) and the revision that they stand for; ``at`` goes back to an earlier one.

        Raises:
            StatusError: 410 when the revision is no longer held.
        """
        descriptor = self.registry.named(resource)
        with self._lock:
            table = self._table(descriptor)
            if at is not None and at < table.floor:
                raise expired(f"The provided resource version is too old: {at} ({table.floor})")
            records = table.records if at is None else table.at(at)
            revision = self._revision if at is None else at
            chosen = [(key, record) for key, record in records.items() if not namespace or key[0] == namespace]
        return sorted(chosen, key=lambda entry: entry[0]), revision

    @property
    def revision(self) -> int:
        """The latest resource version."""
        return self._revision

    # Writing

    def create(self, resource: Resource | str, obj: Json, *, dry_run: bool = False) -> Json:
        """Store a new object as the API server would (defaulted, validated, admitted) and return it.

        Raises:
            StatusError: 404 no such namespace, 409 exists, 422 invalid, 403 refused by an admission check.
        """
        descriptor = self.registry.named(resource)
        with self._writing():
            new = self.rules.prepare_create(descriptor, _copy(obj))
            metadata = new["metadata"]
            key = (metadata.get("namespace") or "", metadata["name"])
            if key in self._table(descriptor).records:
                raise already_exists(descriptor.plural, key[1], descriptor.group)
            if dry_run:
                return new
            self.rules.admit_create(descriptor, new)
            record = self._commit(descriptor, "ADDED", key, None, new)
        return record.copy()

    def update(
        self,
        resource: Resource | str,
        namespace: str | None,
        name: str,
        mutate: Mutation,
        *,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Json:
        """Read, change and write back atomically; ``mutate`` gets a copy and returns the object to store.

        A ``metadata.resourceVersion`` other than the stored one is a conflict. Without ``subresource`` the status stays as it is (for
        types that have ``/status``); with ``"status"`` the spec does. An object that comes out unchanged is not written.

        Raises:
            StatusError: 404, 409 on a lost race, 422 invalid, 403, or whatever ``mutate`` raises.
        """
        descriptor = self.registry.named(resource)
        with self._writing():
            record = self.record(descriptor, namespace, name)
            new = mutate(record.copy())
            self._check_race(descriptor, record, new)
            new = self.rules.prepare_update(descriptor, record.obj, new, subresource)
            if dry_run:
                return new
            self.rules.admit_update(descriptor, record.obj, new, subresource)
            result = self._replace(descriptor, record, new)
        return _copy(result)

    def delete(self, resource: Resource | str, namespace: str | None, name: str, *, grace_period_seconds: int | None = None) -> None:
        """Delete as a client would: a pod on a node stays with a deletionTimestamp until its kubelet deletes it with grace 0."""
        self.remove(resource, namespace, name, DeleteOptions(grace_period_seconds=grace_period_seconds))

    def remove(self, resource: Resource | str, namespace: str | None, name: str, options: DeleteOptions) -> Deletion:
        """Delete with all options and say what became of the object."""
        descriptor = self.registry.named(resource)
        with self._writing():
            record = self.record(descriptor, namespace, name)
            _check_preconditions(descriptor, record, options)
            marked, gone = self.rules.prepare_delete(descriptor, record.copy(), options.grace_period_seconds, options.propagation)
            if options.dry_run:
                return Deletion(marked, gone)
            result = self._mark_deleted(descriptor, record, marked)
            if gone:
                result = self._forget(descriptor, (namespace or "", name), result)
        return Deletion(result.copy(), gone)

    def clear(self, storage_key: str) -> None:
        """Drop all objects of a resource that is no longer served."""
        with self._lock:
            self._tables.pop(storage_key, None)

    # Watching

    def subscribe(self, resource: Resource | str, callback: Subscriber) -> Callable[[], None]:
        """Call ``callback(event_type, obj)`` after each change, in order, before the writing call returns; returns the way out."""
        key = self.registry.named(resource).storage_key
        with self._lock:
            self._subscribers.setdefault(key, []).append(callback)

        def unsubscribe() -> None:
            with self._lock:
                self._subscribers[key] = [c for c in self._subscribers.get(key, []) if c is not callback]

        return unsubscribe

    def observe(self, observer: Observer) -> None:
        """Call ``observer(storage_key, change)`` after each change of any resource; what it gets is shared and to be read only."""
        with self._lock:
            self._observers = [*self._observers, observer]

    def changes_since(self, resource: Resource | str, version: int) -> Changes:
        """The changes after that revision.

        Raises:
            StatusError: 410 when they are no longer all held.
        """
        descriptor = self.registry.named(resource)
        with self._lock:
            table = self._table(descriptor)
            if version < table.floor:
                raise expired(f"too old resource version: {version} ({table.floor})")
            return table.since(version)

    @property
    def expiries(self) -> int:
        """How often ``expire_watches`` was called."""
        return self._expiries

    def expire_watches(self) -> None:
        """Forget the history of everything, as etcd's compaction does: each watch, and each revision up to now, is answered with 410."""
        with self._lock:
            self._expiries += 1
            listeners = [wake for table in self._tables.values() for wake in table.listeners]
            for table in self._tables.values():
                table.changes.clear()
                table.floor = self._revision
        for wake in listeners:
            wake()

    def listen(self, resource: Resource | str, wake: Callable[[], None]) -> Callable[[], None]:
        """Call ``wake()`` (quick, from any thread) whenever the resource has changed; returns the way out."""
        listeners = self._table(self.registry.named(resource)).listeners
        with self._lock:
            listeners.add(wake)

        def unlisten() -> None:
            with self._lock:
                listeners.discard(wake)

        return unlisten

    # Inner workings

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Hold the lock; the outermost writer of a thread delivers what has changed after it has let go."""
        outermost = False
        try:
            with self._lock:
                self._depth += 1
                outermost = self._depth == 1
                try:
                    yield
                finally:
                    self._depth -= 1
        finally:
            if outermost:
                self._deliver()

    def _table(self, descriptor: Resource) -> Table:
        key = descriptor.storage_key
        found = self._tables.get(key)
        if found is None:
            with self._lock:
                found = self._tables.setdefault(key, Table(self._revision, self._history))
        return found

    def _check_race(self, descriptor: Resource, record: Record, new: Json) -> None:
        metadata = new.get("metadata") or {}
        name = record.obj["metadata"]["name"]
        version = metadata.get("resourceVersion")
        if version and version != str(record.version):
            raise conflict(descriptor.plural, name, MODIFIED_MEANWHILE, descriptor.group)
        uid, stored = metadata.get("uid"), record.obj["metadata"]["uid"]
        if uid and uid != stored:
            detail = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {stored}"
            raise conflict(descriptor.plural, name, detail, descriptor.group)

    def _replace(self, descriptor: Resource, record: Record, new: Json) -> Json:
        if new == record.obj:
            return new
        key = (new["metadata"].get("namespace") or "", new["metadata"]["name"])
        stored = self._commit(descriptor, "MODIFIED", key, record, new)
        if self.rules.is_finished(new):
            return self._forget(descriptor, key, stored).obj
        return stored.obj

    def _mark_deleted(self, descriptor: Resource, record: Record, marked: Json) -> Record:
        if marked == record.obj:
            return record
        key = (marked["metadata"].get("namespace") or "", marked["metadata"]["name"])
        return self._commit(descriptor, "MODIFIED", key, record, marked)

    def _forget(self, descriptor: Resource, key: Key, record: Record) -> Record:
        return self._commit(descriptor, "DELETED", key, record, _copy(record.obj))

    def _commit(self, descriptor: Resource, event: EventType, key: Key, old: Record | None, new: Json) -> Record:
        self._revision += 1
        new["metadata"]["resourceVersion"] = str(self._revision)
        # The type comes first, so that a list can leave it out of the encoded form (``Record.item``).
        new = {"apiVersion": new["apiVersion"], "kind": new["kind"], **new}
        record = Record(new, msgspec.json.encode(new), self._revision)
        change = Change(event, key, old, record)
        table = self._table(descriptor)
        table.append(change)
        self._undelivered.append((descriptor.storage_key, change))
        for wake in tuple(table.listeners):
            wake()
        return record

    def _deliver(self) -> None:
        """Hand the changes to the subscribers; a change made by a subscriber is delivered after the one that caused it."""
        with self._delivery:
            if self._delivering:
                return
            self._delivering = True
            try:
                for key, change in self._drain():
                    self._tell(key, change)
            finally:
                self._delivering = False

    def _tell(self, key: str, change: Change) -> None:
        for observer in self._observers:
            observer(key, change)
        for callback in tuple(self._subscribers.get(key, ())):
            try:
                callback(change.type, change.new.copy())
            except Exception:
                logger.exception("a subscriber failed", extra={"resource": key, "event": change.type, "object": "/".join(change.key)})

    def _drain(self) -> Iterator[tuple[str, Change]]:
        while True:
            try:
                yield self._undelivered.popleft()
            except IndexError:
                return


def _check_preconditions(descriptor: Resource, record: Record, options: DeleteOptions) -> None:
    metadata = record.obj["metadata"]
    name, uid = metadata["name"], metadata["uid"]
    if options.uid is not None and options.uid != uid:
        detail = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({uid}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(descriptor.kind, name, detail, descriptor.group)
    if options.resource_version is not None and options.resource_version != str(record.version):
        detail = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match the ResourceVersion in record "
            f"({record.version}). The object might have been modified"
        )
        raise conflict(descriptor.kind, name, detail, descriptor.group)


def _copy(obj: Json) -> Json:
    copied: Json = msgspec.json.decode(msgspec.json.encode(obj))
    return copied
