"""Evidence in steps: which step a point tells of, what counts of it, that parts make the whole, and what is kept to say why."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ensembles import an_ensemble_profile
from vpa_ippr.api.series import ContainerRef, EvidenceKind, EvidenceSeries, Resource, UsageSeries
from vpa_ippr.forecast.rules import broken_rules
from vpa_ippr.usage import feeding
from vpa_ippr.usage.evidence import CpuEvidenceRules, EvidenceRules, MemoryEvidenceRules, NeedReason
from vpa_ippr.usage.feeding import Fresh, feed, feed_all
from vpa_ippr.usage.steps import STEP_SECONDS, STEPS_PER_DAY, ContainerSteps, StepRules

T = 1_767_225_600.0  # a midnight
BEGIN = int(T // STEP_SECONDS)
EVIDENCE = EvidenceRules()
RULES = StepRules(steps=2 * STEPS_PER_DAY, startup_seconds=0.0, evidence=EVIDENCE)
MIB = 2.0**20

# A reader of what it never reads again, beside 50 MiB of its own: 300 MiB are cache, and a page that is reclaimed is not missed.
LOGS = {
    EvidenceKind.RSS: 50 * MIB,
    EvidenceKind.MAPPED_FILE: 0.0,
    EvidenceKind.ACTIVE_FILE: 300 * MIB,
    EvidenceKind.FILE_REFAULTS: 0.0,
    EvidenceKind.RECLAIMED: 1000.0,
    EvidenceKind.MEMORY_PRESSURE: 0.0,
}
SCALES = ((Resource.CPU, 1.0), (Resource.MEMORY, 200 * MIB))


def a_ref(pod="web-1"):
    return ContainerRef("shop", pod, "app")


def use(resource, value, minutes=60, pod="web-1", start=T):
    times = start + 60.0 * np.arange(minutes)
    return UsageSeries(a_ref(pod), resource, times, np.broadcast_to(np.asarray(value, np.float64), times.shape).copy())


def points(kind, values, pod="web-1", first=T + STEP_SECONDS):
    """One a step, the first at the end of the first step."""
    values = np.atleast_1d(np.asarray(values, np.float64))
    return EvidenceSeries(a_ref(pod), kind, first + STEP_SECONDS * np.arange(len(values)), values)


def throttled(*shares, **where):
    return points(EvidenceKind.CPU_THROTTLED, shares, **where)


def reading_logs(steps, pod="web-1", **changes):
    return [points(kind, [value] * steps, pod) for kind, value in (LOGS | changes).items()]


def fed(series, evidence, until=T + 3600.0, rules=RULES):
    return feed(ContainerSteps.empty(rules, T), series, evidence, until=until)


def cpu_of(steps, count):
    return steps.cpu.before(BEGIN + count, count).tolist()


def test_a_point_tells_of_the_step_that_ends_then():
    steps = fed([use(Resource.CPU, 1.0)], [throttled(0.0, 0.5, 0.05)])
    assert cpu_of(steps, 4) == [1.0, 2.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("evidence", "counted"),
    [
        ([], 1.0),
        ([throttled(0.1)], 1.0),
        ([throttled(0.2)], 1.25),
        ([throttled(0.9)], 2.0),
        ([points(EvidenceKind.CPU_PRESSURE, 0.3)], 1.3),
    ],
    ids=["no evidence", "hardly throttled", "throttled", "at most double", "waiting"],
)
def test_throttled_use_counts_as_demand(evidence, counted):
    assert cpu_of(fed([use(Resource.CPU, 1.0)], evidence), 1) == pytest.approx([counted])


def test_peaks_of_days_are_of_demand():
    assert fed([use(Resource.CPU, 1.0)], [throttled(0.0, 0.5)]).cpu.peak(BEGIN + 12).value == 2.0


def test_without_rules_no_evidence_counts():
    rules = StepRules(steps=STEPS_PER_DAY, startup_seconds=0.0)
    steps = fed([use(Resource.CPU, 1.0), use(Resource.MEMORY, 400 * MIB)], [throttled(0.9), *reading_logs(12)], rules=rules)
    assert cpu_of(steps, 1) == [1.0]
    assert steps.memory.values.max() == 400 * MIB
    assert (steps.cpu_notes, steps.memory_notes) == (None, None)


def test_page_cache_that_nobody_misses_does_not_count():
    steps = fed([use(Resource.MEMORY, 400 * MIB)], reading_logs(6))
    values = steps.memory.before(BEGIN + 12, 12)
    assert values[:6] == pytest.approx([325 * MIB] * 6)
    assert values[6:] == pytest.approx([400 * MIB] * 6), "no evidence: the working set"
    need = steps.memory_notes.need
    assert need.reason[0, 0] == NeedReason.NOT_REUSED
    assert need.words(0).endswith("(325 of 400 MiB)")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({EvidenceKind.FILE_REFAULTS: 200.0}, NeedReason.REUSED),
        ({EvidenceKind.RECLAIMED: 0.0}, NeedReason.NOT_RECLAIMED),
        ({EvidenceKind.MEMORY_PRESSURE: 0.05}, NeedReason.UNDER_PRESSURE),
        ({EvidenceKind.RSS: math.nan}, NeedReason.NO_EVIDENCE),
    ],
    ids=["read again", "nothing reclaimed", "pressure", "a kind is missing"],
)
def test_page_cache_that_may_be_needed_counts(changes, reason):
    steps = fed([use(Resource.MEMORY, 400 * MIB)], reading_logs(12, **changes))
    assert steps.memory.values.tolist() == [400 * MIB] * 12
    assert steps.memory_notes.need.reason[0, 0] == reason


def test_each_instance_is_judged_by_its_own_evidence():
    use_of_both = [use(Resource.CPU, 1.0), use(Resource.CPU, 1.5, pod="web-2")]
    steps = fed(use_of_both, [throttled(0.5, 0.2), throttled(0.0, 0.0, pod="web-2")])
    assert cpu_of(steps, 3) == [2.0, 1.5, 1.5]
    assert steps.cpu_notes.uplifted_share == 0.5, "of the steps of the instance that counted"
    assert steps.cpu_notes.throttled_share == 0.5
    assert steps.cpu_notes.censoring.censored[0].tolist() == [True, True, *[False] * 10], "whosever it was"


def test_what_is_told_of_a_censored_container():
    steps = fed([use(Resource.CPU, 1.0)], [throttled(*[0.5] * 3, *[0.0] * 9)])
    finding = steps.cpu_notes.censoring.finding(0, "shop/web/app")
    assert (finding.reason, finding.count) == ("CpuCensored", 3)
    assert steps.cpu_notes.uplifted_share == 0.25


@pytest.mark.parametrize(("minutes", "present"), [(60, True), (75, False)], ids=["within the hour", "an hour later"])
@pytest.mark.parametrize("kind", [EvidenceKind.CPU_THROTTLED, EvidenceKind.MEMORY_PRESSURE])
def test_shortage_is_present_for_an_hour(kind, minutes, present):
    series = [use(Resource.CPU, 1.0, minutes), use(Resource.MEMORY, 400 * MIB, minutes)]
    steps = fed(series, [points(kind, [0.5] * 3)], until=T + 60.0 * minutes)
    resource, other = (Resource.CPU, Resource.MEMORY) if kind is EvidenceKind.CPU_THROTTLED else (Resource.MEMORY, Resource.CPU)
    assert steps.short_of(resource) == ({"web-1"} if present else set())
    assert steps.short_of(other) == set()


def test_memory_is_tight_where_any_instance_is():
    both = [use(Resource.MEMORY, 400 * MIB), use(Resource.MEMORY, 100 * MIB, pod="web-2")]
    pressure = [points(EvidenceKind.MEMORY_PRESSURE, [0.0] * 12), points(EvidenceKind.MEMORY_PRESSURE, [0.05] * 12, pod="web-2")]
    steps = fed(both, pressure)
    found = steps.memory_notes.tightness
    assert found.tight.all()
    assert found.finding(0, "x").count == 12


def test_notes_are_kept_for_a_day():
    minutes = 2 * STEPS_PER_DAY * 5
    steps = fed([use(Resource.CPU, 1.0, minutes)], [throttled(*[0.5] * STEPS_PER_DAY, *[0.0] * STEPS_PER_DAY)], until=T + 60.0 * minutes)
    assert steps.cpu_notes.uplifted_share == 0.0
    assert steps.cpu_notes.throttled_share == 0.0
    assert steps.cpu.values.max() == 2.0, "demand is kept for as long as use"


def test_the_newest_sample_knows_what_of_it_is_spare():
    steps = fed([use(Resource.MEMORY, 400 * MIB)], reading_logs(12))
    assert steps.newest_memory(a_ref()).spare_bytes == pytest.approx(75 * MIB)
    within = feed(steps, [use(Resource.MEMORY, 400 * MIB, 2, start=T + 3600.0)], until=T + 3660.0, after=T + 3600.0)
    assert within.newest_memory(a_ref()).spare_bytes == pytest.approx(75 * MIB), "no step is over"
    later = feed(within, [], until=T + 3900.0, after=T + 3660.0)
    assert later.newest_memory(a_ref()).spare_bytes == 0.0, "a step without evidence"


def in_parts(cuts, series, evidence, end):
    """Fed in parts that end at the cuts, each with the samples and the evidence of its own time alone."""
    steps, after = ContainerSteps.empty(RULES, T), -math.inf
    for until in (*sorted(cuts), end):
        part = [one for one in evidence if ((one.timestamps > after) & (one.timestamps <= until)).any()]
        part = [
            EvidenceSeries(one.container, one.kind, one.timestamps[kept], one.values[kept])
            for one in part
            for kept in [(one.timestamps > after) & (one.timestamps <= until)]
        ]
        steps, after = feed(steps, series, part, after=after, until=until), until
    return steps


@settings(max_examples=40)
@given(st.sets(st.floats(1.0, 7000.0), max_size=6), st.integers(0, 2**16))
def test_parts_make_the_whole(cuts, seed):
    random = np.random.default_rng(seed)
    series = [use(resource, random.gamma(2.0, scale, 120), 120, pod) for resource, scale in SCALES for pod in ("web-1", "web-2")]
    evidence = [throttled(*random.uniform(0, 0.4, 24), pod=pod) for pod in ("web-1", "web-2")]
    evidence += [points(kind, value * random.uniform(0, 1.2, 20), "web-2") for kind, value in LOGS.items()]
    end = T + 7200.0
    whole, parts = fed(series, evidence, until=end), in_parts([T + cut for cut in cuts], series, evidence, end)
    for resource in Resource:
        assert whole.row(resource).values.tolist() == pytest.approx(parts.row(resource).values.tolist(), abs=0, nan_ok=True)
    for one, other in ((whole.cpu_notes, parts.cpu_notes), (whole.memory_notes, parts.memory_notes)):
        width = min(one.rows.shape[1], other.rows.shape[1])
        assert np.array_equal(one.rows[:, -width:], other.rows[:, -width:], equal_nan=True)
        assert np.isnan(one.rows[:, :-width]).all(), "before the first evidence there is none"
    assert whole.instances == parts.instances


@pytest.mark.parametrize("cells", [1, 40, 2**16], ids=["one by one", "some", "all together"])
def test_containers_that_are_fed_together_do_not_touch_each_other(cells, monkeypatch):
    monkeypatch.setattr(feeding, "_CELLS_AT_ONCE", cells)
    random = np.random.default_rng(8)
    blind = StepRules(steps=10, pods=0.5, startup_seconds=120.0)
    fresh = []
    for number in range(12):
        pods = [f"web-{number}-{pod}" for pod in range(number % 4)]
        series = [use(resource, random.gamma(2.0, scale, 60), 60, pod) for resource, scale in SCALES for pod in pods]
        evidence = [points(kind, value * random.uniform(0, 1.2, 12), pod) for kind, value in LOGS.items() for pod in pods[1:]]
        evidence += [throttled(*random.uniform(0, 0.4, 12), pod=pod) for pod in pods if number % 5]
        empty = ContainerSteps.empty(blind if number % 3 == 1 else RULES, T + (900.0 if number % 3 == 2 else 0.0))
        begun = feed(empty, series, evidence, until=T + 1000.0) if number % 2 else empty
        fresh.append(Fresh(begun, series, evidence, T + 1000.0 if number % 2 else -math.inf))
    together = feed_all(fresh, until=T + 3600.0)
    alone = [feed(one.steps, one.series, one.evidence, after=one.after, until=T + 3600.0) for one in fresh]
    assert sum(one.memory_notes is not None for one in alone) >= 4
    for one, other in zip(together, alone, strict=True):
        assert same_steps(one, other)


def same_steps(one, other):
    for resource in Resource:
        (mine, noted), (theirs, also_noted) = ((steps.row(resource), steps.notes(resource)) for steps in (one, other))
        same_rows = (noted is None) == (also_noted is None) and (
            noted is None or np.array_equal(noted.rows, also_noted.rows, equal_nan=True)
        )
        if (
            not same_rows
            or (mine.end, mine.peaks) != (theirs.end, theirs.peaks)
            or not np.array_equal(mine.values, theirs.values, equal_nan=True)
        ):
            return False
    return (one.rules, one.startup, one.instances) == (other.rules, other.startup, other.instances)


@settings(max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=12, max_size=12), st.lists(st.floats(0, 1), min_size=12, max_size=12))
def test_demand_is_between_use_and_double(shares, pressure):
    steps = fed([use(Resource.CPU, 1.0)], [throttled(*shares), points(EvidenceKind.CPU_PRESSURE, pressure)])
    assert (steps.cpu.values >= 1.0).all()
    assert (steps.cpu.values <= 2.0).all()


@pytest.mark.parametrize(
    ("rules", "key"),
    [
        (EvidenceRules(cpu=CpuEvidenceRules(max_uplift=0.5)), "ensemble.evidence.cpu.max_uplift"),
        (EvidenceRules(memory=MemoryEvidenceRules(rss_margin=0.9)), "ensemble.evidence.memory.rss_margin"),
        (EvidenceRules(), None),
    ],
    ids=["cpu", "memory", "sound"],
)
def test_rules_are_checked_in_the_profile(rules, key):
    ensemble = msgspec.structs.replace(an_ensemble_profile().ensemble, evidence=rules)
    assert [found for found, _ in broken_rules(ensemble)] == ([] if key is None else [key])
