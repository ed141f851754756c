from __future__ import annotations

import pytest

from vpa_ippr.sandbox.fields import field_readers
from vpa_ippr.sandbox.resources import built_in_registry
from vpa_ippr.sandbox.selectors import label_selector_of, parse_field_selector, parse_label_selector
from vpa_ippr.sandbox.status import StatusError

LABELS = {"app": "web", "tier": "front", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web", True),
        ("app = web , tier=front", True),
        ("app=db", False),
        ("app!=db", True),
        ("app!=web", False),
        ("missing!=x", True),
        ("app", True),
        ("missing", False),
        ("!missing", True),
        ("!app", False),
        ("app in (web, db)", True),
        ("app in (db)", False),
        ("app notin (db)", True),
        ("missing notin (db)", True),
        ("empty=", True),
        ("app=web,tier in (back)", False),
        ("a.b/c-d=x", False),
    ],
)
def test_label_selectors(selector: str, matches: bool) -> None:
    assert parse_label_selector(selector)(LABELS) is matches


@pytest.mark.parametrize("selector", ["!!", "app in", "app in (a", "=x", "app web", "app,,tier"])
def test_what_is_no_label_selector_is_refused(selector: str) -> None:
    with pytest.raises(StatusError) as caught:
        parse_label_selector(selector)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_selector_objects(selector: dict | None, matches: bool) -> None:
    assert label_selector_of(selector)(LABELS) is matches


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("metadata.name=p", True),
        ("metadata.name!=p", False),
        ("spec.nodeName=", True),
        ("status.phase=Running,metadata.namespace=default", True),
        ("status.phase==Pending", False),
    ],
)
def test_field_selectors_of_pods(selector: str, matches: bool) -> None:
    pod = {"metadata": {"name": "p", "namespace": "default"}, "spec": {}, "status": {"phase": "Running"}}
    readers = field_readers(built_in_registry().named("pods"))
    assert parse_field_selector(selector, readers)(pod) is matches


@pytest.mark.parametrize(
    ("selector", "message"), [("status.nope=x", "field label not supported: status.nope"), ("metadata.name", "invalid selector")]
)
def test_field_selectors_that_are_refused(selector: str, message: str) -> None:
    with pytest.raises(StatusError, match=message):
        parse_field_selector(selector, field_readers(built_in_registry().named("pods")))
