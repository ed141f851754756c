"""Policy, LimitRange and limits: upstream's own numeric cases, and that caps hold whatever comes in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.errors import QuantityError
from vpa_ippr.api.limit_range import LimitRange, LimitRangeItem, LimitRangeSpec
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.quantity import MAX_INT64
from vpa_ippr.api.resources import Amounts, ContainerResources
from vpa_ippr.api.series import Resource
from vpa_ippr.api.vpa import ContainerPolicy
from vpa_ippr.recommend.capping import Wanted, cap_for_pod, cap_to_container_range, cap_to_limit, cap_to_policy, controlled_only
from vpa_ippr.recommend.limit_ranges import LimitBounds, NamespaceLimits, beside, fit_pod_range, limits_by_namespace, read_limit_ranges
from vpa_ippr.recommend.limits import proportional_limits
from vpa_ippr.recommend.policy import PolicyRules, read_policy, with_overrides
from vpa_ippr.recommend.result import Estimate
from vpa_ippr.usage.container import UsageRules

M, G = 10**6, 10**9
MIB = 2**20


def same(cpu, memory):
    return Estimate(*[Amounts(cpu, memory)] * 4)


def values(estimate, resource):
    return tuple(amounts.get(resource) for amounts in (estimate.lower_bound, estimate.target, estimate.upper_bound))


RISING = Estimate(
    target=Amounts(42, 42 * MIB),
    lower_bound=Amounts(31, 31 * MIB),
    upper_bound=Amounts(53, 53 * MIB),
    uncapped_target=Amounts(42, 42 * MIB),
)


def both(amount):
    return Amounts(amount, amount * MIB)


@pytest.mark.parametrize(
    ("minimum", "maximum", "max_allowed", "cpu", "memory"),
    [
        (both(50), Amounts(), Amounts(), (50, 50, 53), (50, 50, 53)),
        (Amounts(), both(40), Amounts(), (31, 40, 40), (31, 40, 40)),
        (Amounts(), Amounts(), both(40), (31, 40, 40), (31, 40, 40)),
        (both(35), Amounts(), both(50), (35, 42, 50), (35, 42, 50)),
        (Amounts(), Amounts(40), Amounts(None, 40 * MIB), (31, 40, 40), (31, 40, 40)),
        (Amounts(), Amounts(40), both(30), (31, 40, 40), (30, 30, 30)),
        (both(50), both(40), Amounts(), (40, 40, 40), (40, 40, 40)),
    ],
    ids=["min", "max", "global max", "min and global max", "each max its resource", "policy max before global", "max wins over min"],
)
def test_policy(minimum, maximum, max_allowed, cpu, memory):
    capped = cap_to_policy(RISING, PolicyRules(minimum=minimum, maximum=maximum), max_allowed).estimate
    assert values(capped, Resource.CPU) == cpu
    assert values(capped, Resource.MEMORY) == tuple(amount * MIB for amount in memory)
    assert capped.uncapped_target == RISING.uncapped_target


def test_policy_notes_tell_what_moved_the_target():
    estimate = Estimate(Amounts(300, 50000), Amounts(200, 43000), Amounts(500, 55000), Amounts(300, 50000))
    capped = cap_to_policy(estimate, PolicyRules(minimum=Amounts(400, 40000), maximum=Amounts(450, 45000)))
    assert capped.estimate.target == Amounts(400, 45000)
    assert capped.estimate.lower_bound == Amounts(400, 43000)
    assert capped.estimate.upper_bound == Amounts(450, 45000)
    assert capped.notes == ("cpu capped to minAllowed", "memory capped to maxAllowed")


def test_requests_stay_at_or_below_the_limit():
    estimate = Estimate(Amounts(20, 80000), Amounts(10, 60000), Amounts(100, 90000), Amounts(20, 80000))
    capped = cap_to_limit(estimate, Amounts(30, 70000))
    assert (capped.estimate.target, capped.estimate.upper_bound) == (Amounts(20, 70000), Amounts(30, 70000))
    assert capped.notes == ("memory capped to container limit",)


@pytest.mark.parametrize(
    ("controlled", "target"),
    [(None, Amounts(42, 42 * MIB)), (["memory"], Amounts(None, 42 * MIB)), (["cpu"], Amounts(42)), ([], Amounts())],
    ids=["default", "memory", "cpu", "none"],
)
def test_controlled_resources(controlled, target):
    found = controlled_only(RISING, read_policy(ContainerPolicy("app", controlled_resources=controlled), "policy"))
    assert found.target == found.uncapped_target == target


def test_a_policy_that_cannot_be_read_names_its_place():
    with pytest.raises(QuantityError, match=r"policy of app\.maxAllowed: cannot read 'much'"):
        read_policy(ContainerPolicy("app", max_allowed={"cpu": "much"}), "policy of app")


def test_policy_overrides_rules_for_samples():
    policy = ContainerPolicy(
        "app",
        oom_bump_up_ratio="1500m",
        oom_min_bump_up="200M",
        memory_aggregation_interval_seconds=3600,
        memory_aggregation_interval_count=4,
    )
    rules = with_overrides(UsageRules(), policy)
    assert (rules.oom_bump_up_ratio, rules.oom_min_bump_up_bytes) == (1.5, 200 * M)
    assert (rules.aggregation_interval_seconds, rules.expiry_seconds) == (3600, 4 * 3600)
    assert with_overrides(UsageRules(), ContainerPolicy("app")) == UsageRules()


def test_container_limit_range():
    bounds = LimitBounds(minimum=Amounts(None, 500 * M), maximum=Amounts(1000))
    pod = ContainerResources(Amounts(1000, G), Amounts(1000, G))
    capped = cap_to_container_range(same(2000, 200 * M), pod, bounds)
    assert capped.estimate.target == Amounts(1000, 500 * M)
    assert capped.notes == ("cpu capped to fit Max in container LimitRange", "memory capped to fit Min in container LimitRange")


def test_container_limit_range_leaves_a_container_without_a_limit():
    capped = cap_to_container_range(same(2000, G), ContainerResources(Amounts(1000, G)), LimitBounds(maximum=Amounts(1000, M)))
    assert capped.estimate == same(2000, G)


def test_container_limit_range_counts_the_limit_in_proportion():
    half = ContainerResources(Amounts(1000), Amounts(2000))
    capped = cap_to_container_range(Estimate(*[Amounts(2000)] * 4), half, LimitBounds(maximum=Amounts(2000)))
    assert capped.estimate.target == Amounts(1000)


def equal(cpu, memory):
    return ContainerResources(Amounts(cpu, memory), Amounts(cpu, memory))


def fit(estimates, originals, **bounds):
    fitted = fit_pod_range(estimates, originals, LimitBounds(**bounds))
    return {name: one.target for name, one in fitted.items()}


TWO = {"a": equal(1000, G), "b": equal(1000, G)}
HALF = {name: ContainerResources(Amounts(1000, G), Amounts(2000, 2 * G)) for name in "ab"}


@pytest.mark.parametrize(
    ("originals", "estimates", "bounds", "expected"),
    [
        (TWO, {n: same(1000, G) for n in "ab"}, {"maximum": Amounts(1000)}, {n: Amounts(500, G) for n in "ab"}),
        (TWO, {n: same(1000, G) for n in "ab"}, {"minimum": Amounts(None, 4 * G)}, {n: Amounts(1000, 2 * G) for n in "ab"}),
        (HALF, {n: same(1000, G) for n in "ab"}, {"minimum": Amounts(None, 4 * G)}, {n: Amounts(1000, 2 * G) for n in "ab"}),
        (TWO, {"a": same(1000, G)}, {"minimum": Amounts(None, 4 * G)}, {"a": Amounts(1000, 2 * G)}),
        (
            {"a": equal(1000, G)},
            {n: same(1000, G) for n in "ab"},
            {"minimum": Amounts(None, 4 * G)},
            {"a": Amounts(1000, 4 * G), "b": Amounts(1000, G)},
        ),
        (
            {"a": equal(15, G), "b": equal(100, G)},
            {"a": same(15, G), "b": same(100, G)},
            {"minimum": Amounts(150)},
            {"a": Amounts(20, G), "b": Amounts(131, G)},
        ),
        (
            {"a": equal(15, G), "b": equal(100, G)},
            {"a": same(15, G), "b": same(100, G)},
            {"maximum": Amounts(90)},
            {"a": Amounts(11, G), "b": Amounts(78, G)},
        ),
        (TWO, {n: same(1000, G) for n in "ab"}, {"minimum": Amounts(2000), "maximum": Amounts(2000)}, {n: Amounts(1000, G) for n in "ab"}),
        (
            {n: ContainerResources(Amounts(1000, G)) for n in "ab"},
            {n: same(1000, G) for n in "ab"},
            {"maximum": Amounts(1000)},
            {n: Amounts(1000, G) for n in "ab"},
        ),
    ],
    ids=[
        "max",
        "min",
        "min with limits twice the requests",
        "one container recommended",
        "one recommended that the pod has not",
        "min rounds up",
        "max rounds down",
        "nothing to do",
        "no limits",
    ],
)
def test_pod_limit_range(originals, estimates, bounds, expected):
    assert fit(estimates, originals, **bounds) == expected


MIN_500M = LimitBounds(minimum=Amounts(None, 500 * M))


def cap(estimate, original, namespace, limits=Amounts(), others=None, **policy):
    return cap_for_pod({"app": Wanted(estimate, PolicyRules(**policy), original, limits)}, others or {}, namespace)["app"]


@pytest.mark.parametrize(
    ("limit", "requests_only", "namespace", "target"),
    [
        (600 * M, False, NamespaceLimits(container=MIN_500M), 500 * M),
        (100 * M, True, NamespaceLimits(container=MIN_500M), 100 * M),
        (600 * M, True, NamespaceLimits(pod=MIN_500M), 500 * M),
        (100 * M, True, NamespaceLimits(pod=MIN_500M), 100 * M),
    ],
    ids=["container", "container, limit lower", "pod", "pod, limit lower"],
)
def test_least_request_and_the_limit(limit, requests_only, namespace, target):
    original = ContainerResources(Amounts(None, 200 * M), Amounts(None, limit))
    found = cap(Estimate(*[Amounts(None, 200 * M)] * 4), original, namespace, original.limits if requests_only else Amounts())
    assert found.estimate.target.memory_bytes == target


def test_limits_that_stay_are_capped_to_last():
    bounds = NamespaceLimits(container=LimitBounds(minimum=Amounts(2000, 500 * M)))
    original = ContainerResources(Amounts(5000, 500 * M), Amounts(10_000, G))
    found = cap(same(1000, 200 * M), original, bounds, limits=Amounts(5, 100 * M))
    assert found.estimate.target == Amounts(5, 100 * M)
    assert found.notes == (
        "cpu capped to fit Min in container LimitRange",
        "memory capped to fit Min in container LimitRange",
        "cpu capped to container limit",
        "memory capped to container limit",
    )


def test_the_policy_wins_over_a_limit_range_and_is_named_first():
    bounds = NamespaceLimits(container=LimitBounds(maximum=Amounts(1000)))
    found = cap(same(2000, G), equal(1000, G), bounds, minimum=Amounts(1500))
    assert found.estimate.target == Amounts(1500, G)
    assert found.notes == ("cpu capped to minAllowed", "cpu capped to fit Max in container LimitRange")


def test_the_bounds_on_a_pod_are_told():
    bounds = NamespaceLimits(pod=LimitBounds(minimum=Amounts(None, 4 * G), maximum=Amounts(1000)))
    found = cap(same(1000, G), equal(1000, G), bounds, others={"b": equal(1000, G)})
    assert found.estimate.target == Amounts(500, 2 * G)
    assert found.notes == ("cpu capped to fit Max in pod LimitRange", "memory capped to fit Min in pod LimitRange")


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([], LimitBounds(Amounts(500), Amounts(2000, G), Amounts(300))),
        ([equal(200, G // 4)], LimitBounds(Amounts(300), Amounts(1800, 3 * G // 4), Amounts(300))),
        ([ContainerResources(Amounts(100))], LimitBounds(Amounts(400), Amounts(1700, G), Amounts(300))),
        ([equal(3000, 2 * G)], LimitBounds(Amounts(0), Amounts(1, 1), Amounts(300))),
    ],
    ids=["none", "one", "the default where it has no limit", "nothing left"],
)
def test_what_other_containers_leave(others, expected):
    assert beside(LimitBounds(Amounts(500), Amounts(2000, G), Amounts(300)), others) == expected


def test_several_limit_ranges_hold_together():
    def limit_range(name, **bounds):
        return LimitRange(
            ObjectMeta(name), LimitRangeSpec([LimitRangeItem("Container", **bounds), LimitRangeItem("PersistentVolumeClaim")])
        )

    found = read_limit_ranges(
        [
            limit_range("a", max={"cpu": "2"}, min={"memory": "100M"}, default={"cpu": "1"}),
            limit_range("b", max={"cpu": "1", "memory": "1G"}, min={"memory": "50M"}, default={"cpu": "2"}),
        ]
    )
    assert found.container == LimitBounds(Amounts(None, 100 * M), Amounts(1000, G), Amounts(2000))
    assert found.pod == LimitBounds(default=Amounts(2000))


def test_an_unreadable_limit_range_is_named():
    broken = LimitRange(ObjectMeta("tight"), LimitRangeSpec([LimitRangeItem("Pod", max={"cpu": "x"})]))
    with pytest.raises(QuantityError, match="limitrange tight max: cannot read 'x'"):
        read_limit_ranges([broken])


def in_namespace(namespace, name, **bounds):
    return LimitRange(ObjectMeta(name, namespace), LimitRangeSpec([LimitRangeItem("Container", **bounds)]))


def test_one_unreadable_limit_range_spoils_its_namespace_only():
    found = limits_by_namespace(
        [
            in_namespace("shop", "b", default={"cpu": "2"}),
            in_namespace("shop", "a", default={"cpu": "1"}, max={"cpu": "3"}),
            in_namespace("bank", "fine", max={"cpu": "1"}),
            in_namespace("bank", "tight", max={"cpu": "x"}),
        ]
    )
    assert found["shop"].container == LimitBounds(maximum=Amounts(3000), default=Amounts(2000))
    assert "limitrange tight" in str(found["bank"])
    assert found.keys() == {"shop", "bank"}


@pytest.mark.parametrize(
    ("request_amount", "limit", "recommended", "default", "expected"),
    [
        (1000, 2000, 10_000, None, 20_000),
        (1500, 2000, 1000, None, 1333),
        (150, 200, 100, None, 133),
        (None, 2000, 10_000, None, 10_000),
        (2000, 2000, 10_000, None, 10_000),
        (1000, None, 10_000, None, None),
        (1000, None, 10_000, 2000, 20_000),
        (1000, 2000, None, None, None),
    ],
    ids=["ratio", "rounds down", "rounds down in milli", "no request", "equal", "no limit", "default limit", "no recommendation"],
)
def test_limits_in_proportion(request_amount, limit, recommended, default, expected):
    original = ContainerResources(Amounts(request_amount), Amounts(limit))
    assert proportional_limits(original, Amounts(recommended), Amounts(default)).amounts == Amounts(expected)


def test_limits_beyond_an_int64_are_clamped_with_a_note():
    original = ContainerResources(Amounts(1000, M), Amounts(10_000, 10 * M))
    found = proportional_limits(original, Amounts(1000, 2**60))
    assert found.amounts == Amounts(10_000, MAX_INT64)
    assert found.notes == ("memory: failed to keep limit to request ratio; capping limit to int64",)


AMOUNT = st.integers(1, 10**13)
AMOUNTS = st.builds(Amounts, AMOUNT, AMOUNT)
OPTIONAL = st.builds(Amounts, st.none() | AMOUNT, st.none() | AMOUNT)


@given(st.lists(AMOUNTS, min_size=3, max_size=3), OPTIONAL, OPTIONAL, OPTIONAL)
def test_caps_hold_and_keep_the_order(three, minimum, maximum, max_allowed):
    ordered = {resource: sorted(amounts.get(resource) for amounts in three) for resource in Resource}
    lower, target, upper = (Amounts(ordered[Resource.CPU][i], ordered[Resource.MEMORY][i]) for i in range(3))
    capped = cap_to_policy(Estimate(target, lower, upper, target), PolicyRules(minimum=minimum, maximum=maximum), max_allowed).estimate
    for resource in Resource:
        bounded = values(capped, resource)
        assert list(bounded) == sorted(bounded)
        highest = maximum.get(resource) or max_allowed.get(resource)
        if highest is not None:
            assert bounded[2] <= highest
        if minimum.get(resource) is not None and (highest is None or highest >= minimum.get(resource)):
            assert bounded[0] >= minimum.get(resource)


@given(AMOUNT, AMOUNT, AMOUNT)
def test_a_limit_keeps_its_ratio_to_within_one_unit(request_amount, limit, recommended):
    original = ContainerResources(Amounts(None, request_amount), Amounts(None, limit))
    found = proportional_limits(original, Amounts(None, recommended)).amounts.memory_bytes
    assert found is not None
    if found < MAX_INT64:
        assert found * request_amount <= limit * recommended < (found + 1) * request_amount
