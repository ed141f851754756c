"""The limit policy: its syntax, and what it does to the limits of a pod."""

import contextlib
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from resize_support import a_container, a_pod, a_recommendation, a_vpa

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.names import ANNOTATION_LIMIT_POLICY
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.api.vpa import ContainerPolicy
from vpa_ippr.recommend.limit_ranges import LimitBounds, NamespaceLimits
from vpa_ippr.resize.ledger import Ledger
from vpa_ippr.resize.limit_policy import RATIO, UNCHANGED, LimitKind, LimitRule, parse_limit_policy
from vpa_ippr.resize.targets import targets_of

MIB = 1 << 20
CPU, MEMORY = Resource.CPU, Resource.MEMORY


def headroom(**more):
    return LimitRule(LimitKind.FIXED_HEADROOM, **more)


@pytest.mark.parametrize(
    ("text", "cpu", "memory"),
    [
        pytest.param("ratio", RATIO, RATIO, id="ratio"),
        pytest.param("none", UNCHANGED, UNCHANGED, id="none-for-both"),
        pytest.param("fixed-headroom:25%", headroom(share=Fraction(1, 4)), headroom(share=Fraction(1, 4)), id="percent-for-both"),
        pytest.param("cpu=none, memory=fixed-headroom:12.5%", UNCHANGED, headroom(share=Fraction(1, 8)), id="one-each"),
        pytest.param("memory=fixed-headroom:64Mi", RATIO, headroom(amount=64 * MIB), id="bytes"),
        pytest.param(
            " cpu = cap:1500m ,memory=cap:1Gi ",
            LimitRule(LimitKind.CAP, amount=1500),
            LimitRule(LimitKind.CAP, amount=1024 * MIB),
            id="spaces-and-caps",
        ),
    ],
)
def test_what_can_be_read(text, cpu, memory):
    rules = parse_limit_policy(text).rules(guaranteed=False, requests_only=False)
    assert rules == {CPU: cpu, MEMORY: memory}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        pytest.param("", "'' is no limit policy: ratio, fixed-headroom, cap, none", id="empty"),
        pytest.param("cpu=none,", "'' is no limit policy", id="trailing-comma"),
        pytest.param("proportional", "'proportional' is no limit policy", id="unknown"),
        pytest.param("disk=none", "'disk' is no resource", id="resource"),
        pytest.param("cpu=none, cpu=ratio", "cpu is named twice", id="twice"),
        pytest.param("none, memory=ratio", "memory is named twice", id="both-and-one"),
        pytest.param("cpu=none:2", "none takes no amount", id="needless-amount"),
        pytest.param("memory=fixed-headroom", "needs an amount, such as fixed-headroom:25%", id="headroom-of-what"),
        pytest.param("cap", "needs an amount, such as cap:512Mi", id="cap-at-what"),
        pytest.param("fixed-headroom:64Mi", "say cpu=fixed-headroom:... or memory=", id="quantity-for-both"),
        pytest.param("memory=fixed-headroom:lots", "memory=fixed-headroom: cannot read 'lots'", id="quantity"),
        pytest.param("memory=fixed-headroom:-5Mi", "memory=fixed-headroom: ", id="negative"),
        pytest.param("cpu=cap:50%", "cpu=cap: cannot read '50%'", id="cap-in-percent"),
        pytest.param("cpu=cap:0", "0 would be no limit", id="cap-at-nothing"),
    ],
)
def test_what_cannot_be_read(text, part):
    with pytest.raises(ValidationError) as caught:
        parse_limit_policy(text)
    message = str(caught.value)
    assert message.startswith("annotation vpa-ippr.io/limit-policy: ")
    assert part in message
    assert message.endswith("for example cpu=none, memory=fixed-headroom:25%")
    assert caught.value.reason == "LimitPolicyInvalid"


@given(st.text(alphabet="cpumery=,: %0123456789nofixdhap-Mi.", max_size=30))
def test_no_other_error_comes_of_any_text(text):
    with contextlib.suppress(ValidationError):
        assert set(parse_limit_policy(text).rules(guaranteed=False, requests_only=False)) == set(Resource)


def a_vpa_with(policy, *recommendations, **more):
    vpa = a_vpa(*recommendations, **more)
    return msgspec.structs.replace(vpa, metadata=msgspec.structs.replace(vpa.metadata, annotations={ANNOTATION_LIMIT_POLICY: policy}))


def desired(policy, pod, *recommendations, limits=None, **more):
    found = targets_of(pod, a_vpa_with(policy, *recommendations, **more), Ledger(), *([limits] if limits else []))
    return {target.container: target.desired for target in found}


def app(**more):
    return a_container(**{"cpu": "200m", "memory": "100Mi", "cpu_limit": "400m", "memory_limit": "200Mi"} | more)


@pytest.mark.parametrize(
    ("policy", "cpu", "memory_mib"),
    [
        pytest.param("ratio", 800, 400, id="ratio"),
        pytest.param("none", 400, 200, id="none"),
        pytest.param("fixed-headroom:25%", 500, 250, id="headroom-share"),
        pytest.param("cpu=fixed-headroom:50m, memory=fixed-headroom:64Mi", 450, 264, id="headroom-amount"),
        pytest.param("cpu=cap:600m, memory=cap:1Gi", 600, 400, id="cap-where-it-is-lower"),
        pytest.param("cpu=cap:300m, memory=cap:150Mi", 400, 200, id="cap-is-never-below-the-request"),
        pytest.param("cpu=none", 400, 400, id="the-other-keeps-its-ratio"),
    ],
)
def test_limits_follow_the_policy(policy, cpu, memory_mib):
    found = desired(policy, a_pod(app()), a_recommendation(cpu="400m", memory="200Mi"))["app"]
    assert found == ContainerResources(Amounts(400, 200 * MIB), Amounts(cpu, memory_mib * MIB))


def test_headroom_is_rounded_up():
    found = desired("fixed-headroom:33.3%", a_pod(app()), a_recommendation(cpu="100m", memory="1001"))["app"]
    assert found.limits == Amounts(134, 1335)


def test_no_limit_stays_no_limit():
    pod = a_pod(a_container(cpu="200m", memory="100Mi"))
    found = desired("fixed-headroom:25%", pod, a_recommendation(cpu="400m", memory="200Mi"))["app"]
    assert found.limits == Amounts()


def test_a_request_may_not_pass_a_limit_that_stays():
    found = desired("none", a_pod(app()), a_recommendation(cpu="900m", memory="900Mi"))["app"]
    assert found == ContainerResources(Amounts(400, 200 * MIB), Amounts(400, 200 * MIB))


@pytest.mark.parametrize("policy", ["none", "fixed-headroom:50%", "cpu=cap:1, memory=cap:1Mi"])
def test_a_guaranteed_pod_keeps_its_limits_equal(policy):
    pod = a_pod(app(cpu="400m", memory="200Mi"))
    assert pod.status.qos_class == "Guaranteed"
    found = desired(policy, pod, a_recommendation(cpu="800m", memory="300Mi"))["app"]
    assert found == ContainerResources(Amounts(800, 300 * MIB), Amounts(800, 300 * MIB))


def test_requests_only_comes_before_the_policy():
    found = desired(
        "fixed-headroom:50%",
        a_pod(app()),
        a_recommendation(cpu="300m", memory="150Mi"),
        policies=(ContainerPolicy("app", controlled_values="RequestsOnly"),),
    )["app"]
    assert found.limits == Amounts(400, 200 * MIB)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        pytest.param(LimitBounds(maximum=Amounts(450)), Amounts(450), id="headroom-gives-way"),
        pytest.param(LimitBounds(maximum=Amounts(350)), Amounts(350), id="then-the-request"),
        pytest.param(LimitBounds(minimum=Amounts(700)), Amounts(1400), id="minimum"),
    ],
)
def test_a_container_limit_range_still_holds(bounds, expected):
    found = desired("fixed-headroom:100%", a_pod(app()), a_recommendation(cpu="400m"), limits=NamespaceLimits(container=bounds))["app"]
    assert found.limits.cpu_millicores == expected.cpu_millicores
    assert found.requests.cpu_millicores <= expected.cpu_millicores


def test_a_pod_limit_range_takes_headroom_in_proportion():
    pod = a_pod(app(name="a"), app(name="b"), app(name="c"))
    limits = NamespaceLimits(pod=LimitBounds(maximum=Amounts(1100)))
    found = desired("fixed-headroom:100%", pod, a_recommendation("a", cpu="300m"), a_recommendation("b", cpu="100m"), limits=limits)
    assert {name: one.requests.cpu_millicores for name, one in found.items()} == {"a": 300, "b": 100}
    # c has no recommendation and keeps its 400m, so 700m are left for 400m of requests and 400m of headroom.
    assert {name: one.limits.cpu_millicores for name, one in found.items()} == {"a": 525, "b": 175}


def test_a_policy_that_cannot_be_read_is_told():
    with pytest.raises(ValidationError):
        desired("half", a_pod(app()), a_recommendation(cpu="400m"))


policies = st.sampled_from(["ratio", "none", "fixed-headroom:10%", "cpu=fixed-headroom:7m", "cpu=cap:333m", "memory=cap:77Mi, cpu=none"])


@given(
    policy=policies,
    cpu=st.integers(1, 3000),
    memory=st.integers(1, 900 * MIB),
    highest=st.none() | st.integers(410, 2000),
    of_pod=st.none() | st.integers(1000, 3000),
)
def test_limits_are_never_below_requests_nor_above_the_limit_range(policy, cpu, memory, highest, of_pod):
    pod = a_pod(app(name="a"), app(name="b"))
    limits = NamespaceLimits(LimitBounds(maximum=Amounts(highest)), LimitBounds(maximum=Amounts(of_pod)))
    found = desired(policy, pod, *(a_recommendation(name, cpu=f"{cpu}m", memory=str(memory)) for name in "ab"), limits=limits)
    for one in found.values():
        for resource in Resource:
            assert one.requests.get(resource) <= one.limits.get(resource)
        assert highest is None or one.limits.cpu_millicores <= highest
    if of_pod is not None:
        # An amount equal in effect to the present one stays, up to a step of 10m each.
        assert sum(one.limits.cpu_millicores for one in found.values()) <= of_pod + 20
