"""The forms in which objects leave the server: as they are, as another version, as metadata only, or as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from vpa_ippr.sandbox.custom import CustomTypes
from vpa_ippr.sandbox.requestinfo import Request
from vpa_ippr.sandbox.resources import Resource
from vpa_ippr.sandbox.status import StatusError
from vpa_ippr.sandbox.store import Record
from vpa_ippr.sandbox.tables import layout, partial_metadata, row, table

Json = dict[str, Any]

_JSON_TYPES = ("application/json", "application/*", "*/*", "")
# core/v1 Event field -> events.k8s.io/v1 field
_EVENT_FIELDS = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_EVENT_FIELDS_BACK = {new: old for old, new in _EVENT_FIELDS.items()}


@dataclass(frozen=True, slots=True)
class Presenter:
    """Encodes the objects of one resource in the form that a request asks for: ``object``, ``table`` or ``partial``."""

    resource: Resource
    form: str
    include: str
    custom: CustomTypes
    now: float

    def one(self, record: Record) -> bytes:
        """A single object, in a response or in a watch event."""
        if self.form == "object":
            if record.obj["apiVersion"] == self.resource.api_version:
                return record.raw
            return msgspec.json.encode(to_version(self.resource, record.obj))
        if self.form == "table":
            metadata = {"resourceVersion": str(record.version)}
            return msgspec.json.encode(self._table([record], metadata))
        return msgspec.json.encode(partial_metadata(record.obj))

    def many(self, records: Sequence[Record], metadata: Json) -> bytes:
        """A list."""
        if self.form == "table":
            return msgspec.json.encode(self._table(records, metadata))
        if self.form == "partial":
            items = [partial_metadata(record.obj) for record in records]
            head = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
            return msgspec.json.encode({**head, "items": items})
        head = {"kind": f"{self.resource.kind}List", "apiVersion": self.resource.api_version, "metadata": metadata}
        return msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(self._item(record) for record in records) + b"]}"

    def _item(self, record: Record) -> bytes:
        same = record.obj["apiVersion"] == self.resource.api_version
        return record.item if same and not self.resource.custom else self.one(record)

    def _table(self, records: Sequence[Record], metadata: Json) -> Json:
        columns, cells = layout(self.resource, self.custom.columns(self.resource))
        rows = [row(to_version(self.resource, r.obj), cells(r.obj, self.now), self.include) for r in records]
        return table(rows, columns, metadata)


def presenter_for(request: Request, resource: Resource, custom: CustomTypes, now: float) -> Presenter:
    """The presenter that the ``Accept`` header asks for; StatusError 406 when there is none."""
    include = request.query.get("includeObject", "Metadata")
    for accepted in request.headers.get("accept", "").split(","):
        media, *parameters = (part.strip() for part in accepted.split(";"))
        if media not in _JSON_TYPES:
            continue
        wanted = dict(p.split("=", 1) for p in parameters if "=" in p).get("as", "")
        forms = {"": "object", "Table": "table", "PartialObjectMetadata": "partial", "PartialObjectMetadataList": "partial"}
        if wanted in forms:
            return Presenter(resource, forms[wanted], include, custom, now)
    message = "only the following media types are accepted: application/json, application/json;as=Table;v=v1;g=meta.k8s.io"
    raise StatusError(406, "NotAcceptable", message)


def to_version(resource: Resource, obj: Json) -> Json:
    """A stored object as an object of ``resource``'s group and version."""
    if obj["apiVersion"] == resource.api_version:
        return obj
    converted = _renamed(obj, _EVENT_FIELDS) if resource.storage == "events" else obj
    return {**converted, "apiVersion": resource.api_version}


def from_version(resource: Resource, obj: Json) -> Json:
    """An object of ``resource``'s group and version as it is stored."""
    return _renamed(obj, _EVENT_FIELDS_BACK) if resource.storage == "events" else obj


def _renamed(obj: Json, names: dict[str, str]) -> Json:
    return {names.get(key, key): value for key, value in obj.items()}
