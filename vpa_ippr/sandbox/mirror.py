"""What a controller of the sandbox knows of the API objects: a copy that follows the store, one change at a time, on the agenda.

As with a real informer the copy lags behind the store: by the changes that are still on the agenda.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vpa_ippr.sandbox.agenda import Agenda
from vpa_ippr.sandbox.store import Store

Json = dict[str, Any]
Handler = Callable[[str, Json], None]


class Mirror:
    """The objects of one resource. ``objects`` and the handlers' arguments are to be read only.

    Handlers run on the agenda, once for each object at the start and then for each change, with ``ADDED``, ``MODIFIED`` or ``DELETED``.
    """

    def __init__(self, store: Store, agenda: Agenda, resource: str) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self._store = store
        self._agenda = agenda
        self._resource = resource
        self._handlers: list[Handler] = []
        self._unsubscribe: Callable[[], None] = lambda: None

    def on_change(self, handler: Handler) -> None:
        """Call ``handler`` for each change; before ``start``."""
        self._handlers.append(handler)

    def start(self) -> None:
        """Begin to follow the store."""
        self._unsubscribe = self._store.subscribe(self._resource, self._enqueue)
        for obj in self._store.list(self._resource):
            self._enqueue("ADDED", obj)

    def stop(self) -> None:
        """Follow it no longer."""
        self._unsubscribe()

    def owned_by(self, uid: str) -> list[Json]:
        """The objects whose controller is the one with that UID, sorted by name."""
        return [obj for _, obj in sorted(self.objects.items()) if controller_uid(obj) == uid]

    def touch(self, namespace: str, name: str) -> None:
        """Call the handlers as if the object had changed; nothing when it is gone."""
        obj = self.objects.get((namespace, name))
        if obj is not None:
            for handler in self._handlers:
                handler("MODIFIED", obj)

    def _enqueue(self, event_type: str, obj: Json) -> None:
        self._agenda.soon(lambda: self._apply(event_type, obj))

    def _apply(self, event_type: str, obj: Json) -> None:
        metadata = obj["metadata"]
        key = (metadata.get("namespace", ""), metadata["name"])
        if event_type == "DELETED":
            known = self.objects.get(key)
            if known is not None and known["metadata"]["uid"] == metadata["uid"]:
                del self.objects[key]
        else:
            self.objects[key] = obj
        for handler in self._handlers:
            handler(event_type, obj)


def controller_uid(obj: Json) -> str | None:
    """The UID of the managing owner."""
    owners = obj["metadata"].get("ownerReferences") or []
    return next((owner["uid"] for owner in owners if owner.get("controller")), None)
