"""Events: repeats are counted up in one object, and no failure to write one stops the work that it tells of."""

import json
import logging

import pytest

from support.http import Answer, scripted_server
from vpa_ippr.api.cluster import ObjectRef
from vpa_ippr.cluster.events import EventRecorder
from vpa_ippr.cluster.rest import Connection, Rest


class Clock:
    moment = 1_767_225_600.0

    def now(self):
        return self.moment


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def recorder(cluster, clock):
    return EventRecorder(cluster.rest, clock, "vpa-ippr-updater")


def pod(namespace, name="web-0", uid="uid-1"):
    return ObjectRef("v1", "Pod", namespace, name, uid)


def test_an_event_has_what_kubectl_shows(cluster, recorder, namespace):
    recorder.record(pod(namespace), "Warning", "ResizeRefused", "no room")
    (event,) = cluster.store.list("events", namespace)
    shown = {key: event[key] for key in ("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp", "reportingComponent")}
    assert shown == {
        "type": "Warning",
        "reason": "ResizeRefused",
        "message": "no room",
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "reportingComponent": "vpa-ippr-updater",
    }


def test_the_same_again_counts_up(cluster, recorder, clock, namespace):
    for _ in range(3):
        recorder.record(pod(namespace), "Normal", "Resized", "cpu 100m -> 200m")
        clock.moment += 60
    (event,) = cluster.store.list("events", namespace)
    assert (event["count"], event["firstTimestamp"], event["lastTimestamp"]) == (3, "2026-01-01T00:00:00Z", "2026-01-01T00:02:00Z")


@pytest.mark.parametrize(
    "other",
    [
        {"about": {"uid": "uid-2"}},
        {"event_type": "Warning"},
        {"reason": "Deferred"},
        {"message": "cpu 100m -> 300m"},
    ],
    ids=["another-pod-of-that-name", "type", "reason", "message"],
)
def test_another_event_is_another_object(cluster, recorder, namespace, other):
    same = {"event_type": "Normal", "reason": "Resized", "message": "cpu 100m -> 200m"}
    recorder.record(pod(namespace), **same)
    recorder.record(pod(namespace, **other.get("about", {})), **(same | {key: value for key, value in other.items() if key != "about"}))
    assert [event["count"] for event in cluster.store.list("events", namespace)] == [1, 1]


def test_long_names_and_messages_still_make_an_event(cluster, recorder, namespace):
    recorder.record(pod(namespace, name="n" * 253), "Normal", "Resized", "m" * 5000)
    (event,) = cluster.store.list("events", namespace)
    assert (len(event["message"]), event["involvedObject"]["name"]) == (1024, "n" * 253)


@pytest.mark.parametrize(
    "answers",
    [
        [Answer(403, b'{"reason": "Forbidden", "message": "namespace is being terminated"}')],
        [
            Answer(409, b'{"reason": "AlreadyExists", "message": "there is one"}'),
            Answer(404, b'{"reason": "NotFound", "message": "expired"}'),
        ],
        [Answer(409, b'{"reason": "Conflict", "message": "changed meanwhile"}')],
    ],
    ids=["forbidden", "gone-between", "conflict"],
)
def test_an_event_that_cannot_be_written_is_logged_and_raises_nothing(caplog, clock, answers):
    left = list(answers)
    with scripted_server(lambda _: left.pop(0)) as server, caplog.at_level(logging.WARNING):
        EventRecorder(Rest(Connection(server.url)), clock, "test").record(pod("shop"), "Normal", "Resized", "m")
    (record,) = caplog.records
    assert (record.object, record.event) == ("shop/web-0", "Resized")
    assert record.error == json.loads(answers[-1].body)["message"]
