"""Throttling, pressure and page cache: what they say of need, and that silence says nothing."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vpa_ippr.usage.evidence import (
    CPU_CENSORED,
    DEFAULT_CPU_EVIDENCE_RULES,
    DEFAULT_MEMORY_EVIDENCE_RULES,
    MEMORY_TIGHT,
    MemoryParts,
    NeedReason,
    broken_cpu_evidence_rules,
    broken_memory_evidence_rules,
    judge_cpu,
    judge_need,
    judge_pressure,
)

MIB = 1024.0 * 1024.0
NAN = float("nan")
STEP = 300.0


def row(*values: float) -> np.ndarray:
    return np.array([values])


class TestCpu:
    @pytest.mark.parametrize(
        ("cores", "throttled", "pressure", "expected"),
        [
            (0.5, NAN, NAN, NAN),
            (0.5, 0.0, NAN, 1.0),
            (0.5, 0.1, 0.1, 1.0),
            (0.5, 0.25, NAN, 4 / 3),
            (0.5, 0.9, NAN, 2.0),
            (0.5, 1.0, NAN, 2.0),
            (1.0, NAN, 0.3, 1.3),
            (0.1, 0.0, 0.5, 2.0),
            (4.0, 0.2, 0.4, 1.25),
            (1.0, 0.2, 0.4, 1.4),
            (0.0, NAN, 0.5, 2.0),
            (NAN, 0.25, 0.5, 4 / 3),
        ],
        ids=[
            "no-evidence",
            "never-throttled",
            "within-bounds",
            "a-quarter-of-periods",
            "bounded",
            "always-throttled",
            "waiting",
            "waiting-bounded",
            "throttling-says-more",
            "pressure-says-more",
            "starved",
            "use-unknown",
        ],
    )
    def test_uplift(self, cores, throttled, pressure, expected) -> None:
        found = judge_cpu(row(cores), row(throttled), row(pressure))

        assert found.uplift == pytest.approx(row(expected), nan_ok=True)
        assert found.censored[0, 0] == (expected > 1)

    def test_an_exponential_demand_behind_a_quota_is_estimated_right(self) -> None:
        demand = np.random.default_rng(1).exponential(0.1, 200_000)
        used = np.minimum(demand, 0.15)
        found = judge_cpu(row(used.mean()), row(float(np.mean(demand > 0.15))), row(NAN))

        assert used.mean() < 0.08
        assert used.mean() * found.uplift[0, 0] == pytest.approx(0.1, rel=0.01)

    @given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2).map(sorted), st.floats(0.001, 64.0), st.floats(0.0, 1.0))
    def test_more_throttling_or_pressure_never_means_less_demand(self, shares, cores, other) -> None:
        both = row(cores, cores)
        for found in (judge_cpu(both, row(*shares), row(other, other)), judge_cpu(both, row(other, other), row(*shares))):
            low, high = found.uplift[0]
            assert 1.0 <= low <= high <= DEFAULT_CPU_EVIDENCE_RULES.max_uplift

    def test_the_finding_says_how_often_why_and_by_how_much(self) -> None:
        found = judge_cpu(np.ones((2, 3)), np.array([[0.5, 0.0, 0.2], [0.0, 0.0, NAN]]), np.array([[0.0, 0.3, NAN], [0.0, 0.0, NAN]]))
        finding = found.finding(0, "shop/web/app")

        assert (finding.reason, finding.count) == (CPU_CENSORED, 3)
        assert finding.message == (
            "shop/web/app: CPU use is less than demand (throttled in 2 and waiting for a CPU in 1 of 3 steps); counted up to 2.00 times"
        )
        assert found.finding(1, "shop/db/app") is None


def parts(**changed: float) -> MemoryParts:
    """A container of 1000 MiB, 400 of them active cache that reclaim has turned over without anybody missing it."""
    measured = {
        "working_set": 1000 * MIB,
        "rss": 500 * MIB,
        "mapped_file": 20 * MIB,
        "active_file": 420 * MIB,
        "refaulted_pages_per_second": 0.0,
        "reclaimed_pages_per_second": 100.0,
        "pressure_share": 0.0,
        **changed,
    }
    return MemoryParts(**{name: row(value) for name, value in measured.items()})


class TestMemoryNeed:
    @pytest.mark.parametrize(
        ("changed", "mebibytes", "reason"),
        [
            ({}, 900, NeedReason.NOT_REUSED),
            ({"refaulted_pages_per_second": 1.0}, 900, NeedReason.NOT_REUSED),
            ({"refaulted_pages_per_second": 5.5}, 950, NeedReason.PARTLY_REUSED),
            ({"refaulted_pages_per_second": 10.0}, 1000, NeedReason.REUSED),
            ({"refaulted_pages_per_second": 200.0}, 1000, NeedReason.REUSED),
            ({"reclaimed_pages_per_second": 0.0}, 1000, NeedReason.NOT_RECLAIMED),
            ({"reclaimed_pages_per_second": 1.0}, 1000, NeedReason.NOT_RECLAIMED),
            ({"pressure_share": 0.02}, 1000, NeedReason.UNDER_PRESSURE),
            ({"pressure_share": NAN}, 900, NeedReason.NOT_REUSED),
            ({"active_file": 210 * MIB}, 1000, NeedReason.LITTLE_CACHE),
            ({"mapped_file": 300 * MIB}, 1000, NeedReason.LITTLE_CACHE),
            ({"rss": 890 * MIB}, 979, NeedReason.NOT_REUSED),
            ({"rss": 990 * MIB}, 1000, NeedReason.NOT_REUSED),
            ({"rss": NAN}, 1000, NeedReason.NO_EVIDENCE),
            ({"mapped_file": NAN}, 1000, NeedReason.NO_EVIDENCE),
            ({"active_file": NAN}, 1000, NeedReason.NO_EVIDENCE),
            ({"refaulted_pages_per_second": NAN}, 1000, NeedReason.NO_EVIDENCE),
            ({"reclaimed_pages_per_second": NAN}, 1000, NeedReason.NO_EVIDENCE),
            ({"working_set": NAN}, NAN, NeedReason.NOT_MEASURED),
        ],
        ids=str,
    )
    def test_need(self, changed, mebibytes, reason) -> None:
        found = judge_need(parts(**changed), STEP)

        assert found.need_bytes / MIB == pytest.approx(row(mebibytes), nan_ok=True)
        assert found.reason[0, 0] == reason

    @given(
        st.fixed_dictionaries(
            {
                "working_set": st.floats(MIB, 1e12),
                "rss": st.floats(0, 1e12),
                "mapped_file": st.floats(0, 1e12),
                "active_file": st.floats(0, 1e12),
                "refaulted_pages_per_second": st.just(NAN) | st.floats(0, 1e6),
                "reclaimed_pages_per_second": st.just(NAN) | st.floats(0, 1e6),
                "pressure_share": st.just(NAN) | st.floats(0, 1),
            }
        )
    )
    def test_need_lies_between_anonymous_memory_and_the_working_set(self, measured) -> None:
        (need,) = judge_need(parts(**measured), STEP).need_bytes[0]

        assert need <= measured["working_set"]
        assert need >= min(measured["working_set"], DEFAULT_MEMORY_EVIDENCE_RULES.rss_margin * measured["rss"]) * (1 - 1e-12)
        assert need >= measured["working_set"] - (1 - DEFAULT_MEMORY_EVIDENCE_RULES.kept_share) * measured["active_file"] - 1

    @given(st.lists(st.floats(0.0, 300.0), min_size=2, max_size=2).map(sorted))
    def test_more_refaults_never_mean_less_need(self, refaults) -> None:
        few, many = (judge_need(parts(refaulted_pages_per_second=one), STEP).need_bytes[0, 0] for one in refaults)

        assert few <= many

    def test_it_is_explained_in_words(self) -> None:
        assert judge_need(parts(), STEP).words(0) == (
            "part of the page cache does not count: what was reclaimed was not read again (900 of 1000 MiB)"
        )
        assert judge_need(parts(working_set=NAN), STEP).words(0) == "no working set was measured"


class TestMemoryPressure:
    def test_pressure_above_the_bound_is_tight_and_said(self) -> None:
        found = judge_pressure(np.array([[0.0, 0.05, NAN], [0.0, 0.01, NAN]]))
        finding = found.finding(0, "shop/web/app")

        assert found.tight.tolist() == [[False, True, False], [False, False, False]]
        assert (finding.reason, finding.count) == (MEMORY_TIGHT, 1)
        assert finding.message == (
            "shop/web/app: tasks waited for memory in 1 of 3 steps, up to 5.0% of the time: the limit is tight and is not lowered"
        )
        assert found.finding(1, "shop/db/app") is None


def test_rules_that_work_are_not_broken() -> None:
    assert list(broken_cpu_evidence_rules(DEFAULT_CPU_EVIDENCE_RULES)) == []
    assert list(broken_memory_evidence_rules(DEFAULT_MEMORY_EVIDENCE_RULES)) == []


@pytest.mark.parametrize(("key", "value"), [("throttled_share_bound", 1.5), ("pressure_share_bound", -0.1), ("max_uplift", 0.9)], ids=str)
def test_cpu_rules_that_cannot_work_are_named(key, value) -> None:
    rules = msgspec.structs.replace(DEFAULT_CPU_EVIDENCE_RULES, **{key: value})

    assert [broken for broken, _ in broken_cpu_evidence_rules(rules)] == [key]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pressure_share_bound", 2.0),
        ("min_cache_share", -0.1),
        ("kept_share", 1.1),
        ("min_turnover_share", 0.0),
        ("low_reuse", 0.1),
        ("rss_margin", 0.5),
    ],
    ids=str,
)
def test_memory_rules_that_cannot_work_are_named(key, value) -> None:
    rules = msgspec.structs.replace(DEFAULT_MEMORY_EVIDENCE_RULES, **{key: value})

    assert [broken for broken, _ in broken_memory_evidence_rules(rules)] == [key]
