"""What an operator's rounding does to results: upstream's own numbers, and that a person's text is the very amount."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.quantity import humanize_bytes, parse_bytes
from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import WorkloadRef
from vpa_ippr.api.vpa import TargetRef, Vpa, VpaSpec
from vpa_ippr.recommend.policy import PolicyRules
from vpa_ippr.recommend.postprocess import postprocess
from vpa_ippr.recommend.result import Estimate, Explanation, Recommendation
from vpa_ippr.recommend.rounding import AS_COMPUTED, Rounding
from vpa_ippr.recommend.status import build_status

MIB = 2**20
VPA = Vpa(ObjectMeta("web", "shop"), VpaSpec(TargetRef("Deployment", "web")))
WHOLE_CORES = msgspec.structs.replace(
    VPA, metadata=ObjectMeta("web", "shop", annotations={"vpa-post-processor.kubernetes.io/app_integerCPU": "true"})
)


def an_estimate(cpu, memory):
    return Estimate(Amounts(cpu, memory), Amounts(cpu - 1, memory - 1), Amounts(cpu + 1, memory + 1), Amounts(cpu, memory))


def a_recommendation(cpu=100, memory=839_500_000):
    found = an_estimate(cpu, memory)
    explanation = Explanation("vpa-classic", "decaying-histogram", (), 0, None, None)
    return Recommendation(
        WorkloadRef("shop", "Deployment", "web"), "app", found.target, found.lower_bound, found.upper_bound, found.uncapped_target, 1.0,
        explanation,
    )  # fmt: skip


def status_texts(recommendation, *, humanize_memory):
    (found,) = build_status(
        VPA, [recommendation], (), 0.0, humanize_memory=humanize_memory
    ).recommendation.container_recommendations  # fmt: skip
    return {name: getattr(found, name)["memory"] for name in ("target", "lower_bound", "upper_bound", "uncapped_target")}


@pytest.mark.parametrize(
    ("rounding", "cpu", "memory", "expected"),
    [
        (AS_COMPUTED, 101, 1001, Amounts(101, 1001)),
        (Rounding(memory_bytes=3), 1, 1000, Amounts(1, 1002)),
        (Rounding(memory_bytes=13), 1, 1231241, Amounts(1, 1231243)),
        (Rounding(memory_bytes=128 * MIB), 1, 839_500_000, Amounts(1, 896 * MIB)),
        (Rounding(cpu_millicores=7), 100, 1, Amounts(105, 1)),
        (Rounding(cpu_millicores=7), None, 1, Amounts(None, 1)),
        (Rounding(humanize_memory=True), 100, 839_500_000, Amounts(100, 839_500_432)),
        (Rounding(memory_bytes=128 * MIB, humanize_memory=True), 100, 839_500_000, Amounts(100, 896 * MIB)),
    ],
    ids=["nothing", "3 B", "13 B", "128 MiB", "7m", "no cpu", "for people", "both"],
)
def test_rounding(rounding, cpu, memory, expected):
    amounts = Amounts(cpu, memory)
    assert rounding.of(Estimate(*[amounts] * 4)) == Estimate(*[expected] * 4)


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (839_500_000, "800.61Mi"),
        (0, "0"),
        (1023, "1023"),
        (1024, "1.00Ki"),
        (262_144_000, "250.00Mi"),
        (3 * 2**29, "1.50Gi"),
        (2**40, "1.00Ti"),
        (5 * 2**50, "5120.00Ti"),
    ],
)
def test_amounts_for_people(amount, text):
    assert humanize_bytes(amount) == text


@given(st.integers(0, 10**14))
def test_rounding_for_people_is_done_once(amount):
    once = Rounding(humanize_memory=True).of(Estimate(*[Amounts(None, amount)] * 4))
    assert Rounding(humanize_memory=True).of(once) == once
    assert abs(once.target.memory_bytes - amount) <= amount * 0.005 + 1


def test_the_status_says_it_for_people_only_where_that_is_the_very_amount():
    rounded = postprocess(a_recommendation(), VPA, PolicyRules(minimum=Amounts(None, 900_000_000)), rounding=Rounding(humanize_memory=True))
    texts = status_texts(rounded, humanize_memory=True)
    assert (texts["uncapped_target"], texts["target"]) == ("800.61Mi", "900M")  # 900M would be 858.31Mi, which is less
    assert all(parse_bytes(text) in (839_500_432, 900_000_000) for text in texts.values())
    assert status_texts(rounded, humanize_memory=False)["uncapped_target"] == "839500432"


def test_whole_cores_come_after_rounding_and_caps_last():
    found = postprocess(
        a_recommendation(cpu=1990), WHOLE_CORES, PolicyRules(maximum=Amounts(1500)), Amounts(None, 10**9), Rounding(cpu_millicores=300)
    )
    assert (found.uncapped_target.cpu_millicores, found.target.cpu_millicores) == (3000, 1500)
    assert found.explanation.capped_by == ("cpu capped to maxAllowed",)


def test_a_cap_is_not_rounded():
    found = postprocess(a_recommendation(), VPA, PolicyRules(), Amounts(33, 10**8), Rounding(cpu_millicores=50, memory_bytes=MIB))
    assert found.target == Amounts(33, 10**8)


def test_nothing_is_left_of_what_the_policy_does_not_control():
    assert postprocess(a_recommendation(), VPA, PolicyRules(controlled=frozenset())) is None
