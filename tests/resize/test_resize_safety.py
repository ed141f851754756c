"""Workloads under every mode, whatever is recommended, refused, killed, made anew and crashed: the safety rules hold, and all settles."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from safety_judge import REPLICAS, flat
from safety_support import KINDS, NAMES, Fleet

from vpa_ippr.api.names import ANNOTATION_LIMIT_POLICY, ANNOTATION_MAINTENANCE_WINDOWS, ANNOTATION_PAUSE, ANNOTATION_WITH_HPA
from vpa_ippr.api.shrink import Phase
from vpa_ippr.resize.reasons import KeepReason, NotDueReason, OutcomeCode, RefusalReason

MODES = ("Off", "Initial", "Recreate", "Auto", "InPlaceOrRecreate", "InPlace")
VERSIONS = ("1.33", "1.34", "1.36")
METHODS = ("list_vpas", "list_limit_ranges", "find_workload", "admission_renewed_at")
ANNOTATIONS = (
    (ANNOTATION_LIMIT_POLICY, None),
    (ANNOTATION_LIMIT_POLICY, "fixed-headroom:25%"),
    (ANNOTATION_LIMIT_POLICY, "memory=cap:1Gi"),
    (ANNOTATION_LIMIT_POLICY, "none"),
    (ANNOTATION_LIMIT_POLICY, "nonsense"),
    (ANNOTATION_PAUSE, "true"),
    (ANNOTATION_PAUSE, None),
    (ANNOTATION_MAINTENANCE_WINDOWS, "Mon 00:00-01:00 UTC"),
    (ANNOTATION_MAINTENANCE_WINDOWS, None),
    (ANNOTATION_WITH_HPA, "raise-only"),
)
BOOSTS = ('{"requests":{"cpu":"150m"}}', '{"requests":{"cpu":"500m"},"limits":{"cpu":"500m"}}', "nonsense")
# So it is when nothing more is to be done: not hold-offs, nor anything that waits for others.
AT_REST = {
    NotDueReason.UP_TO_DATE,
    NotDueReason.CHANGE_TOO_SMALL,
    NotDueReason.LEARNED_FLOOR,
    NotDueReason.MODE_OFF,
    NotDueReason.MODE_INITIAL,
    NotDueReason.NO_RECOMMENDATION,
    NotDueReason.HPA,
    NotDueReason.PAUSED,
    NotDueReason.OUTSIDE_WINDOW,
    RefusalReason.QOS_WOULD_CHANGE,
    RefusalReason.SHRINK_TOO_SMALL,
    RefusalReason.VERSION_FORBIDS_DECREASE,
    RefusalReason.VERSION_FORBIDS_LIMIT,
    KeepReason.TOO_FEW_REPLICAS,
}
workloads, named = st.sampled_from(sorted(REPLICAS)), st.sampled_from(NAMES)
skips = st.integers(0, 6)
verdicts = st.sampled_from(["done", "done", "Deferred", "Infeasible", "Error", "busy"])
pressing = st.sampled_from(["NearLimit", "OomKilled"])
amounts = st.tuples(
    st.just("recommend"),
    workloads,
    st.sampled_from([None, "50m", "100m", "200m", "900m", "3"]),
    st.sampled_from([None, "128Mi", "512Mi", "1Gi", "3Gi", "12Gi"]),
)
events = st.one_of(
    amounts,
    amounts,
    st.tuples(st.just("kubelet"), named, verdicts),
    st.tuples(st.just("agent"), st.sampled_from([Phase.HOLDING, *Phase]), skips),
    st.tuples(st.just("agents"), st.booleans()),
    st.tuples(st.just("refuse"), st.sampled_from([403, 404, 409, 422, 429, 500]), skips),
    st.tuples(st.just("lose"), skips),
    st.tuples(st.just("unreadable"), st.sampled_from(METHODS)),
    st.tuples(st.just("killed"), named),
    st.tuples(st.just("pressing"), named, st.sampled_from([0.5, 0.97, 1.0]), st.sampled_from([0, 20 << 20, 1 << 30]), pressing),
    st.tuples(st.just("pressing"), named, st.just(1.0), st.just(0), pressing),
    st.tuples(st.just("ready"), named, st.booleans()),
    st.tuples(st.just("delete"), named),
    st.tuples(st.just("terminate"), named),
    st.just(("make",)),
    st.tuples(st.just("mode"), workloads, st.sampled_from(MODES), st.sampled_from([None, 1, 4])),
    st.tuples(st.just("annotate"), workloads, st.sampled_from(ANNOTATIONS)).map(lambda e: (e[0], e[1], *e[2])),
    st.tuples(st.just("node"), st.sampled_from([4, 8, 256])),
    st.tuples(st.just("quota"), st.sampled_from([None, 4, 10])),
    st.tuples(st.just("pdb"), workloads, st.sampled_from([None, 1, 2, 3])),
    st.tuples(st.just("hpa"), workloads),
    st.tuples(st.just("crash"), st.integers(1, 6)),
    st.tuples(st.just("run"), st.integers(1, 4)),
    st.tuples(st.just("harm"), named, st.integers(3, 6)),
    st.tuples(st.just("boost"), named, st.sampled_from(BOOSTS)),
    st.just(("restart",)),
    st.just(("rival",)),
    st.tuples(st.just("admission"), st.booleans()),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 700.0, 4000.0, 90_000.0])),
)
kinds = st.tuples(*[st.sampled_from(sorted(KINDS))] * 2)
modes = st.tuples(*[st.sampled_from([*MODES, "InPlace", "InPlaceOrRecreate", "InPlaceOrRecreate"])] * 2)


leasts = st.tuples(*[st.sampled_from([None, None, 1, 4])] * 2)
available = st.tuples(*[st.sampled_from([None, None, 2, 3])] * 2)


def play(fleet, script):
    for event, who_works in script:
        fleet.act(event)
        fleet.cycle()
        if who_works is not None:
            getattr(fleet, who_works)()


# Rare enough that chance alone would miss them: an eviction whose answer is lost, a crash between a revert's note and the revert, and a
# raise after which every pod is killed, so that each is nudged.
LOST_EVICTION = [(("lose", 0), None), (("mode", "api", "Recreate", None), None)]
CRASH_BEFORE_REVERT = [
    (("agents", False), "kubelets"),
    (("lose", 0), None),
    (("wait", 700.0), "kubelets"),
    (("agents", False), None),
    (("crash", 3), None),
    (("recommend", "api", None, None), None),
    (("killed", "web-0"), None),
    (("recommend", "api", None, None), None),
]
KILLED_AFTER_A_RAISE = [(("recommend", "web", "200m", "3Gi"), "calm"), *[(("wait", 70.0), "calm")] * 8] + [
    (("killed", f"web-{number}"), None) for number in range(4)
]
# The first half of what was a resize that adds a limit, which cannot be removed when it comes to nothing.
BOOST_WITH_A_NEW_LIMIT = [(("run", 2), None), (("boost", "web-0", BOOSTS[1]), None), (("wait", 4000.0), None)]
BOTH_RESTART = ("both restart", "both restart")
UNSET = (None, None)

scripts = st.lists(st.tuples(events, st.sampled_from([None, "kubelets", "calm"])), max_size=20)


@given(kinds, modes, st.sampled_from(VERSIONS), st.sampled_from(["off", "decreases", "all"]), leasts, available, scripts)
@example(BOTH_RESTART, ("Off", "Off"), "1.33", "off", UNSET, UNSET, LOST_EVICTION)
@example(BOTH_RESTART, ("InPlaceOrRecreate", "Off"), "1.33", "decreases", UNSET, UNSET, CRASH_BEFORE_REVERT)
@example(BOTH_RESTART, ("InPlaceOrRecreate", "Off"), "1.36", "off", UNSET, UNSET, KILLED_AFTER_A_RAISE)
@example(("only memory", "both restart"), ("Recreate", "Off"), "1.33", "off", UNSET, UNSET, BOOST_WITH_A_NEW_LIMIT)
def test_whatever_happens_no_safety_rule_is_broken(kinds, modes, version, canary, leasts, available, script):
    play(Fleet(kinds, modes, version, canary, leasts, available), script)


@settings(max_examples=max(1, settings.default.max_examples // 4))
@given(kinds, modes, st.sampled_from(["off", "decreases"]), scripts)
def test_once_all_goes_well_everything_settles(kinds, modes, canary, script):
    fleet = Fleet(kinds, modes, "1.36", canary)
    play(fleet, script)
    results = fleet.settle()
    (last, writes), cluster = results[-1], fleet.cluster
    assert writes == 0, [(one.pod.name, one.code, one.reason) for one in last.outcomes]
    assert [shrink for shrink in cluster.shrinks.values() if not shrink.status.phase.is_terminal] == []
    alive = {pod.metadata.uid for pod in cluster.pods.values()}
    assert [shrink for shrink in cluster.shrinks.values() if shrink.spec.pod.uid not in alive] == []
    told = {one.pod.name: one for one in last.outcomes if one.vpa is not None}
    for pod in cluster.pods.values():
        outcome = told[pod.metadata.name]
        if outcome.code is OutcomeCode.BAD_OBJECT:  # an annotation that cannot be read
            continue
        policy = fleet.cluster.vpa_named(pod.metadata.labels["app"]).spec.update_policy
        too_few = (policy.min_replicas or 0) > REPLICAS[pod.metadata.labels["app"]]
        assert outcome.reason in AT_REST or (too_few and outcome.reason == RefusalReason.DISRUPTION_BUDGET), (pod.metadata.name, outcome)
        if outcome.reason == NotDueReason.UP_TO_DATE:
            judge_target(fleet, pod)


def judge_target(fleet, pod):
    """What is called up to date has what is recommended, where nothing but the recommendation decides it."""
    vpa = fleet.cluster.vpa_named(pod.metadata.labels["app"])
    if vpa.metadata.name in fleet.has_been_killed or vpa.metadata.annotations.keys() & {ANNOTATION_LIMIT_POLICY} or fleet.cluster.hpas:
        return
    requests = {key[2]: amount for key, amount in flat(pod.spec.containers).items() if key[1] == "requests"}
    wanted = {"cpu": {"50m": 50, "100m": 100, "200m": 200, "900m": 900, "3": 3000}, "memory": {}}
    for name, text in vpa.status.recommendation.container_recommendations[0].target.items():
        goal = wanted[name].get(text) or {"128Mi": 128 << 20, "512Mi": 512 << 20, "1Gi": 1 << 30, "3Gi": 3 << 30, "12Gi": 12 << 30}[text]
        if name in requests:
            assert abs(requests[name] - goal) <= 0.1 * goal, (pod.metadata.name, name, requests[name], goal)
