"""Whether a quota leaves room for a resize; the texts are those of real API servers (upstream's e2e test of resize and quota)."""

import functools

import msgspec
import pytest
from fit_support import AMOUNTS, MIB, as_json, carried_out, sized, to
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.quantity import parse_bytes, parse_millicores
from vpa_ippr.api.quota import ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus, ScopeRule, ScopeSelector
from vpa_ippr.resize.quota_fit import NO_QUOTA, QuotaRoom, quota_rooms
from vpa_ippr.sandbox.quota import check_quotas, quota_usage
from vpa_ippr.sandbox.status import StatusError


def a_quota(hard, used=None, *, name="resize-quota", namespace="shop", scopes=(), rules=()):
    status = ResourceQuotaStatus(hard, used) if used is not None else ResourceQuotaStatus()
    spec = ResourceQuotaSpec(hard, list(scopes), ScopeSelector(list(rules)))
    return ResourceQuota(ObjectMeta(name, namespace), spec, status)


FULL = a_quota({"cpu": "800m", "memory": "800Mi"}, {"cpu": "600m", "memory": "600Mi"})
POD = sized(desired=(300, 300), limits=(300, 300))


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ((600, 400), "exceeded quota: resize-quota, requested: cpu=300m, used: cpu=600m, limited: cpu=800m"),
        ((250, 750), "exceeded quota: resize-quota, requested: memory=450Mi, used: memory=600Mi, limited: memory=800Mi"),
        (
            (600, 750),
            "exceeded quota: resize-quota, requested: cpu=300m,memory=450Mi, used: cpu=600m,memory=600Mi, limited: cpu=800m,memory=800Mi",
        ),
        ((350, 300), None),
        ((350, 350), None),
        ((500, 500), None),
    ],
    ids=["cpu", "memory though cpu shrinks", "both", "cpu fits", "both fit", "just fits"],
)
def test_the_difference_to_the_usage_before_has_to_fit(requests, text):
    assert QuotaRoom.of([FULL]).refusal(to(POD, requests)) == text


@pytest.mark.parametrize(
    ("name", "limits", "refused"),
    [
        ("requests.cpu", (300, 300), True),
        ("cpu", (300, 300), True),
        ("limits.cpu", (300, 300), False),
        ("limits.cpu", (301, 300), True),
        ("limits.memory", (900, 300), False),
        ("pods", (900, 900), False),
        ("requests.memory", (900, 900), False),
    ],
)
def test_each_name_limits_its_own_resource(name, limits, refused):
    amount = "1" if name == "pods" else "300m" if name.endswith("cpu") else "300Mi"
    room = QuotaRoom.of([a_quota({name: amount}, {name: amount})])
    assert (room.refusal(to(POD, (301, 300), limits)) is not None) is refused


@pytest.mark.parametrize(
    ("pod", "requests", "refused"),
    [
        (sized(desired=(500, 100), allocated=(500, 100), actual=(500, 100)), (600, 100), True),
        (sized(desired=(300, 100), allocated=(500, 100), actual=(500, 100)), (500, 100), False),
        (sized(desired=(300, 100), allocated=(300, 100), actual=(600, 100)), (600, 100), False),
        (sized(desired=(900, 100), allocated=(300, 100), pending="Deferred"), (900, 100), False),
        (sized(desired=(900, 100), allocated=(300, 100), pending="Infeasible"), (400, 100), True),
    ],
    ids=["grows", "back to allocated", "back to actual", "deferred is charged", "infeasible is not"],
)
def test_what_the_pod_still_occupies_is_charged_already(pod, requests, refused):
    room = QuotaRoom.of([a_quota({"cpu": "1"}, {"cpu": "1"})])
    assert (room.refusal(to(pod, requests)) is not None) is refused


def test_a_shrink_is_admitted_even_where_the_quota_is_exceeded():
    room = QuotaRoom.of([a_quota({"cpu": "100m", "memory": "1Gi"}, {"cpu": "900m", "memory": "0"})])
    assert room.refusal(to(POD, (200, 300))) is None
    assert room.refusal(to(POD, (300, 500))) is None
    assert room.refusal(to(POD, (301, 300))) is not None


def test_a_quota_without_a_status_limits_by_its_spec():
    assert QuotaRoom.of([a_quota({"cpu": "10m"})]).refusal(to(POD, (311, 300))) is not None
    assert QuotaRoom.of([a_quota({"cpu": "10m"})]).refusal(to(POD, (310, 300))) is None


def test_what_is_enforced_is_the_status_however_the_spec_has_changed_since():
    quota = msgspec.structs.replace(a_quota({"cpu": "9"}), status=ResourceQuotaStatus({"cpu": "10m"}, {"cpu": "0"}))
    assert QuotaRoom.of([quota]).refusal(to(POD, (311, 300))).endswith("limited: cpu=10m")


def test_the_first_quota_by_name_that_refuses_is_told():
    tight = {"cpu": "0"}
    room = QuotaRoom.of([a_quota(tight, {}, name="b"), a_quota(tight, {}, name="a"), a_quota({"cpu": "9"}, {}, name="0")])
    assert room.refusal(to(POD, (301, 300))).startswith("exceeded quota: a,")


def test_no_quota_refuses_nothing():
    assert NO_QUOTA.refusal(to(POD, (10**6, 10**6))) is None
    assert NO_QUOTA.taking(to(POD, (10**6, 10**6))) == NO_QUOTA


PRIORITY = functools.partial(ScopeRule, "PriorityClass")


@pytest.mark.parametrize(
    ("scopes", "rules", "spec", "counts"),
    [
        ((), (), {}, True),
        (("BestEffort",), (), {}, False),
        (("NotBestEffort",), (), {}, True),
        (("Terminating",), (), {}, False),
        (("Terminating",), (), {"active_deadline_seconds": 0}, True),
        (("NotTerminating",), (), {}, True),
        (("NotTerminating",), (), {"active_deadline_seconds": 60}, False),
        (("NotBestEffort", "Terminating"), (), {}, False),
        (("PriorityClass",), (), {}, False),
        (("PriorityClass",), (), {"priority_class_name": "high"}, True),
        ((), (PRIORITY("In", ["high", "low"]),), {"priority_class_name": "high"}, True),
        ((), (PRIORITY("In", ["low"]),), {"priority_class_name": "high"}, False),
        ((), (PRIORITY("NotIn", ["low"]),), {"priority_class_name": "high"}, True),
        ((), (PRIORITY("NotIn", ["high"]),), {"priority_class_name": "high"}, False),
        ((), (PRIORITY("NotIn", ["high"]),), {}, True),
        ((), (PRIORITY("DoesNotExist"),), {}, True),
        ((), (PRIORITY("DoesNotExist"),), {"priority_class_name": "high"}, False),
        ((), (PRIORITY("Like", ["high"]),), {"priority_class_name": "high"}, False),
        ((), (ScopeRule("Terminating", "Exists"), PRIORITY("Exists")), {"priority_class_name": "high"}, False),
        (("CrossNamespacePodAffinity",), (), {}, False),
    ],
)
def test_scopes(scopes, rules, spec, counts):
    room = QuotaRoom.of([a_quota({"cpu": "0"}, {}, scopes=scopes, rules=rules)])
    wish = to(sized(desired=(300, 300), **spec), (301, 300))
    assert (room.refusal(wish) is not None) is counts
    assert (room.taking(wish) != room) is counts


def test_a_best_effort_pod_is_one_by_its_status_or_else_by_its_spec():
    room = QuotaRoom.of([a_quota({"cpu": "0"}, {}, scopes=["BestEffort"])])
    assert room.refusal(to(sized(desired=(0, 0)), (1, 0))) is not None
    assert room.refusal(to(sized(desired=(0, 0), qos=""), (1, 0))) is not None
    assert room.refusal(to(sized(desired=(0, 0), qos="Burstable"), (1, 0))) is None


def test_those_of_one_cycle_share_what_is_left():
    room = QuotaRoom.of([FULL])
    first, second = to(POD, (420, 300)), to(sized("web-1", (300, 300)), (390, 300))
    assert room.refusal(second) is None
    assert "requested: cpu=90m, used: cpu=720m" in room.taking(first).refusal(second)


def test_what_a_shrink_frees_is_not_given_to_others_in_the_same_cycle():
    room = QuotaRoom.of([FULL])
    shrunk = room.taking(to(POD, (10, 10)))
    assert shrunk.refusal(to(sized("web-1", (300, 300)), (501, 300))) is not None


def test_one_unreadable_quota_stops_its_namespace_alone():
    rooms = quota_rooms([FULL, a_quota({"cpu": "lots"}, name="bad", namespace="bank"), a_quota({"cpu": "1"}, namespace="bank")])
    assert rooms["shop"] == QuotaRoom.of([FULL])
    assert isinstance(rooms["bank"], QuantityError)
    assert "resourcequota bank/bad hard" in str(rooms["bank"])


def test_quotas_are_read_from_their_json():
    document = {
        "metadata": {"name": "q", "namespace": "shop"},
        "spec": {
            "hard": {"cpu": "1", "pods": 5},
            "scopes": ["NotTerminating"],
            "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]},
        },
        "status": {"hard": {"cpu": "1"}, "used": {"cpu": "300m"}},
    }
    quota = msgspec.json.decode(msgspec.json.encode(document), type=ResourceQuota)
    assert quota == a_quota_like(document)
    assert msgspec.json.decode(b'{"metadata": {"name": "q"}, "spec": {}}', type=ResourceQuota).status.used == {}


def a_quota_like(document):
    spec = ResourceQuotaSpec(document["spec"]["hard"], ["NotTerminating"], ScopeSelector([PRIORITY("In", ["high"])]))
    return ResourceQuota(ObjectMeta("q", "shop"), spec, ResourceQuotaStatus(**document["status"]))


STATES = st.tuples(AMOUNTS, AMOUNTS, AMOUNTS, st.sampled_from(["", "Deferred"]))
LEFT = st.integers(0, 600)


@given(st.lists(st.tuples(STATES, AMOUNTS), min_size=1, max_size=5), LEFT, LEFT, LEFT)
def test_an_api_server_admits_what_goes_and_refuses_what_does_not(changes, cpu, memory, limit):
    """The sandbox's quota admission decides on each resize in turn, and recounts after each as slowly as it may: never."""
    pods = [
        sized(f"web-{i}", desired, allocated=allocated, actual=actual, limits=(900, 900), pending=pending)
        for i, ((desired, allocated, actual, pending), _) in enumerate(changes)
    ]
    hard = {"requests.cpu": "0", "memory": "0", "limits.memory": "0"}
    used = quota_usage([as_json(pod) for pod in pods], {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    left = dict(zip(hard, (cpu, memory * MIB, limit * MIB), strict=True))
    quota = a_quota({name: _text(name, _amount(name, used[name]) + left[name]) for name in hard}, used, name="q")
    room = QuotaRoom.of([quota])
    server = _as_json(quota)
    for pod, (_, requests) in zip(pods, changes, strict=True):
        wish = to(pod, requests, (1000, 1000))
        before, after = as_json(pod), as_json(carried_out(wish))
        try:
            check_quotas(after, [server], old=before)
        except StatusError:
            assert room.refusal(wish) is not None
        else:
            assert room.refusal(wish) is None
            room = room.taking(wish)
            server = _charged(server, before, after)


def _as_json(quota):
    return {"metadata": {"name": "q"}, "spec": {"hard": quota.spec.hard}, "status": {"hard": quota.status.hard, "used": quota.status.used}}


def _charged(server, before, after):
    """What is charged is growth alone."""
    uses = [quota_usage([pod], server) for pod in (before, after)]
    grown = {name: max(0, _amount(name, uses[1][name]) - _amount(name, uses[0][name])) for name in uses[0]}
    used = {name: _text(name, _amount(name, text) + grown[name]) for name, text in server["status"]["used"].items()}
    return {**server, "status": {**server["status"], "used": used}}


def _amount(name, text):
    return parse_millicores(text) if name.endswith("cpu") else parse_bytes(text)


def _text(name, amount):
    return f"{amount}m" if name.endswith("cpu") else str(amount)
