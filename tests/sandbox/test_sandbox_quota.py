import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.quantity import parse_quantity
from vpa_ippr.sandbox.podresize import admit_create
from vpa_ippr.sandbox.quota import charge_quotas, check_quotas, quota_usage
from vpa_ippr.sandbox.status import StatusError


def a_quota(hard, used=None, **spec):
    status = {"status": {"hard": hard, "used": used}} if used is not None else {}
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, **status}


def a_pod(requests=None, limits=None, name="p", phase="Running", **spec):
    resources = {"requests": requests or {}, "limits": limits or {}}
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i:1", "resources": resources}], **spec},
        "status": {"phase": phase},
    }


def refusal(pod, quota, old=None):
    with pytest.raises(StatusError) as caught:
        check_quotas(pod, [quota], old=old)
    assert caught.value.code == 403
    return caught.value.message.removeprefix('pods "p" is forbidden: ')


HARD = {"requests.cpu": "1", "limits.memory": "1Gi", "pods": "2"}
FULL = {"cpu": "600m", "memory": "600Mi"}


class TestUsage:
    @pytest.mark.parametrize(
        ("hard", "expected"),
        [
            (["cpu", "requests.cpu"], {"cpu": "300m", "requests.cpu": "300m"}),
            (["limits.memory", "memory"], {"limits.memory": "2Mi", "memory": "1Mi"}),
            (["pods", "count/pods"], {"pods": "1", "count/pods": "2"}),
            (["requests.example.com/gpu"], {"requests.example.com/gpu": "1"}),
            (["limits.cpu"], {"limits.cpu": "0"}),
            (["services", "count/secrets"], {}),
        ],
    )
    def test_counts_what_it_limits(self, hard, expected):
        gpu = "example.com/gpu"
        pod = a_pod({"cpu": "300m", "memory": "1Mi", gpu: "1"}, {"memory": "2Mi", gpu: "1"})
        done = a_pod({"cpu": "5"}, phase="Succeeded")
        assert quota_usage([pod, done], a_quota(dict.fromkeys(hard, "10"))) == expected

    def test_a_shrinking_pod_counts_until_it_has_shrunk(self):
        pod = a_pod({"cpu": "100m"})
        pod["status"]["containerStatuses"] = [
            {"name": "c", "allocatedResources": {"cpu": "100m"}, "resources": {"requests": {"cpu": "400m"}}}
        ]
        assert quota_usage([pod], a_quota({"cpu": "1"})) == {"cpu": "400m"}

    @pytest.mark.parametrize(
        ("scopes", "expected"),
        [
            (["BestEffort"], "1"),
            (["NotBestEffort"], "2"),
            (["Terminating"], "1"),
            (["NotTerminating"], "2"),
            (["NotBestEffort", "Terminating"], "1"),
            (["PriorityClass"], "1"),
        ],
        ids=" and ".join,
    )
    def test_scopes(self, scopes, expected):
        pods = [a_pod(), a_pod({"cpu": "1"}, priorityClassName="high"), a_pod({"cpu": "1"}, activeDeadlineSeconds=5)]
        assert quota_usage(pods, a_quota({"pods": "9"}, scopes=scopes)) == {"pods": expected}

    @pytest.mark.parametrize(
        ("rule", "expected"),
        [
            ({"operator": "In", "values": ["high"]}, "1"),
            ({"operator": "NotIn", "values": ["high"]}, "2"),
            ({"operator": "Exists"}, "2"),
            ({"operator": "DoesNotExist"}, "1"),
        ],
        ids=lambda value: value["operator"] if isinstance(value, dict) else None,
    )
    def test_scope_selector(self, rule, expected):
        pods = [a_pod(), a_pod(priorityClassName="high"), a_pod(priorityClassName="low")]
        selector = {"matchExpressions": [{"scopeName": "PriorityClass", **rule}]}
        assert quota_usage(pods, a_quota({"pods": "9"}, scopeSelector=selector)) == {"pods": expected}


class TestAdmission:
    def test_what_is_left_may_be_taken(self):
        check_quotas(a_pod(FULL, FULL), [a_quota(HARD, {"requests.cpu": "400m", "limits.memory": "0", "pods": "1"})])

    def test_more_than_is_left(self):
        quota = a_quota(HARD, {"requests.cpu": "500m", "limits.memory": "600Mi", "pods": "1"})
        assert refusal(a_pod(FULL, FULL), quota) == (
            "exceeded quota: q, requested: limits.memory=600Mi,requests.cpu=600m, used: limits.memory=600Mi,requests.cpu=500m, "
            "limited: limits.memory=1Gi,requests.cpu=1"
        )

    def test_one_pod_too_many(self):
        quota = a_quota({"pods": "1"}, {"pods": "1"})
        assert refusal(a_pod(), quota) == "exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"

    def test_amounts_must_be_stated(self):
        pod = a_pod({"cpu": "1m"})
        pod["spec"]["initContainers"] = [{"name": "a", "image": "i:1", "resources": {}}]
        assert refusal(pod, a_quota(HARD, {})) == "failed quota: q: must specify limits.memory for: a,c; requests.cpu for: a"

    def test_pod_level_resources_state_them_for_all(self):
        pod = a_pod(resources={"requests": {"cpu": "1m", "memory": "1"}, "limits": {"memory": "1"}})
        check_quotas(pod, [a_quota(HARD, {})])

    def test_a_resize_asks_for_the_difference(self):
        old, new = a_pod(FULL, FULL), a_pod({"cpu": "900m", "memory": "600Mi"}, {"cpu": "900m", "memory": "600Mi"})
        check_quotas(new, [a_quota(HARD, {"requests.cpu": "700m"})], old=old)
        assert refusal(new, a_quota(HARD, {"requests.cpu": "800m"}), old) == (
            "exceeded quota: q, requested: requests.cpu=300m, used: requests.cpu=800m, limited: requests.cpu=1"
        )

    def test_a_resize_within_a_quota_that_is_overdrawn_elsewhere(self):
        old, new = a_pod(FULL, FULL), a_pod({"cpu": "700m", "memory": "600Mi"}, {"cpu": "700m", "memory": "600Mi"})
        check_quotas(new, [a_quota(HARD, {"limits.memory": "9Gi"})], old=old)

    def test_a_quota_of_another_scope_says_nothing(self):
        check_quotas(a_pod(FULL, FULL), [a_quota({"pods": "0"}, {"pods": "0"}, scopes=["BestEffort"])])

    def test_without_a_status_the_spec_counts(self):
        quota = a_quota({"pods": "0"})
        assert refusal(a_pod(), quota) == "exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0"

    def test_creation_goes_through_it(self):
        with pytest.raises(StatusError, match="exceeded quota: q"):
            admit_create(a_pod(), quotas=[a_quota({"pods": "0"})])


class TestCharge:
    def test_the_status_gets_what_was_admitted(self):
        quota = a_quota(HARD, {"requests.cpu": "100m", "limits.memory": "0", "pods": "0"})
        before = copy.deepcopy(quota)
        (charged,) = charge_quotas(a_pod(FULL, FULL), [quota])
        assert quota == before
        assert charged["status"] == {"hard": HARD, "used": {"requests.cpu": "700m", "limits.memory": "600Mi", "pods": "1"}}

    def test_a_first_status_is_made(self):
        (charged,) = charge_quotas(a_pod(FULL, FULL), [a_quota(HARD)])
        assert charged["status"] == {"hard": HARD, "used": {"requests.cpu": "600m", "limits.memory": "600Mi", "pods": "1"}}

    def test_nothing_used_nothing_written(self):
        assert charge_quotas(a_pod(FULL, FULL), [a_quota({"services": "1"}, {})]) == []
        assert charge_quotas(a_pod(FULL, FULL), [a_quota(HARD, {})], old=a_pod(FULL, FULL)) == []


AMOUNTS = st.integers(0, 4000)
PODS = st.lists(st.tuples(AMOUNTS, AMOUNTS), max_size=6)


def sized(cpu_millicores, memory_mib):
    amounts = {"cpu": f"{cpu_millicores}m", "memory": f"{memory_mib}Mi"}
    return a_pod(amounts, amounts)


@given(PODS, st.integers(1, 8000), st.integers(1, 8000), st.integers(0, 4))
def test_admitting_and_charging_never_passes_the_quota_and_equals_the_recount(sizes, cpu, memory, count):
    quota = a_quota({"requests.cpu": f"{cpu}m", "limits.memory": f"{memory}Mi", "pods": str(count)}, {})
    admitted = []
    for size in sizes:
        pod = sized(*size)
        try:
            check_quotas(pod, [quota])
        except StatusError:
            continue
        admitted.append(pod)
        for charged in charge_quotas(pod, [quota]):
            quota = charged
    used = {name: parse_quantity(text).value for name, text in quota["status"]["used"].items()}
    recount = {name: parse_quantity(text).value for name, text in quota_usage(admitted, quota).items()}
    assert {**dict.fromkeys(recount, 0), **used} == recount
    assert all(amount <= parse_quantity(quota["spec"]["hard"][name]).value for name, amount in used.items())


@given(st.tuples(AMOUNTS, AMOUNTS), st.tuples(AMOUNTS, AMOUNTS))
def test_a_resize_charges_what_it_adds_and_gives_back_nothing(before, after):
    """Only the quota controller's recount lets the usage fall."""
    old, new = sized(*before), sized(*after)
    quota = a_quota({"requests.cpu": "1", "limits.memory": "1Gi"}, quota_usage([old], a_quota(HARD)))
    there = (charge_quotas(new, [quota], old=old) or [quota])[0]
    recount = quota_usage([new], quota)
    for name, text in recount.items():
        used, known = (parse_quantity(q["status"]["used"][name]).value for q in (there, quota))
        assert used == max(known, parse_quantity(text).value)
