"""One pod first, watched, then the others; taken back on harm. The last test lets anything happen in any order, with a crash anywhere."""

import dataclasses

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from resize_support import READY, START, a_container, a_pod, a_vpa, requirements
from rollout_support import MIB, SETTINGS, a_proposal, annotated, ready, resized, unready, with_conditions

from vpa_ippr.api.meta import Condition
from vpa_ippr.api.names import ANNOTATION_ROLLOUT, CONDITION_DEGRADED
from vpa_ippr.api.timestamps import format_time, parse_time
from vpa_ippr.api.vpa import VpaStatus
from vpa_ippr.resize.harm import Harm
from vpa_ippr.resize.ledger import read_ledger
from vpa_ippr.resize.plan import ShrinkNeed
from vpa_ippr.resize.reasons import DueReason, EventReason, HarmReason, RefusalReason
from vpa_ippr.resize.rollback import rollback_target
from vpa_ippr.resize.rollout import Group, step, watched
from vpa_ippr.resize.rollout_state import RolloutPhase, read_rollout, to_annotations
from vpa_ippr.resize.rules import rules_for

HOUR = 3600.0
SOAK = SETTINGS.soak_seconds
NOW_HAS = {"cpu": "1", "memory": "1Gi", "cpu_limit": "2", "memory_limit": "2Gi"}
LESS_CPU = requirements("500m", "1Gi", "1", "2Gi")
MUCH_LESS_CPU = requirements("250m", "1Gi", "500m", "2Gi")
A_LITTLE_MORE_CPU = requirements("800m", "1Gi", "1600m", "2Gi")
MORE_CPU = requirements("2", "1Gi", "4", "2Gi")
MIXED = requirements("500m", "3Gi", "1", "6Gi")


class Workload:
    """A VPA with its pods, and an updater that does what ``step`` says: the state first, then the resizes, each carried out at once."""

    def __init__(self, *names, restarts=(), settings=SETTINGS, **ages):
        self.settings, self.now, self.vpa = settings, START, a_vpa()
        self.pods = {}
        for number, name in enumerate(names or ("web-0", "web-1", "web-2")):
            self.add(name, age=ages.get(name.replace("-", "_"), 86_400 - number), restarts=restarts)
        self.harms, self.shrinking, self.guard_problem = [], set(), ""
        self.last = None

    def add(self, name, age=0.0, restarts=()):
        self.pods[name] = a_pod(a_container(**NOW_HAS, restarts=restarts), name=name, age=age - (self.now - START))

    @property
    def state(self):
        return read_rollout(self.vpa)

    def group(self):
        uids = frozenset(f"uid-{name}" for name in self.shrinking)
        return Group(self.vpa, tuple(self.pods.values()), uids, self.guard_problem)

    def proposals(self, wanted, reasons):
        return [
            a_proposal(pod, reasons=reasons, vpa=self.vpa, app=resources)
            for name, pod in self.pods.items()
            if (resources := wanted.get(name) if isinstance(wanted, dict) else wanted)
            and pod.metadata.deletion_timestamp is None
            and pod.desired("app") != resources.parse("t")
        ]

    def cycle(self, wanted=None, *, after=0.0, reasons=(DueReason.SIGNIFICANT_CHANGE,), proposals=None, writes=99):
        """``writes``: the updater dies after so many."""
        self.now += after
        proposals = self.proposals(wanted, reasons) if proposals is None else proposals
        self.last = result = step(self.group(), proposals, self.harms, self.now, self.settings)
        self.harms = []
        for write in [lambda: self.note(result), *self.resizes(result), *self.reverts(result)][:writes]:
            write()
        return result

    def note(self, result):
        self.vpa = annotated(self.vpa, to_annotations(result.state))
        if result.condition is not None:
            self.vpa = msgspec.structs.replace(self.vpa, status=VpaStatus(conditions=[result.condition]))

    def resizes(self, result):
        for proposal in result.go:
            yield lambda proposal=proposal: self.resize(proposal)

    def resize(self, proposal):
        name, plan = proposal.view.pod.metadata.name, proposal.plan
        if plan.changes:
            self.pods[name] = resized(self.pods[name], plan.after, self.now, rollout=proposal.rollout)
        if plan.shrinks:
            self.shrinking.add(name)

    def reverts(self, result):
        for pod in result.revert:
            yield lambda pod=pod: self.revert(pod)

    def revert(self, pod):
        target = rollback_target(pod, read_ledger(pod).last, rules_for("1.36"))
        if target is not None:
            self.pods[pod.metadata.name] = resized(pod, target, self.now, reverting=True, rollout="")

    def harm(self, name, reason=HarmReason.OUT_OF_MEMORY):
        self.harms = [Harm(f"uid-{name}", name, reason, "app was killed")]

    def have(self, resources):
        return sorted(name for name, pod in self.pods.items() if pod.desired("app") == resources.parse("t"))

    def held(self):
        return {held.proposal.view.pod.metadata.name: held.reason for held in self.last.hold}

    def proven(self, wanted):
        """Roll out to everybody."""
        self.cycle(wanted)
        self.cycle(wanted)
        self.cycle(wanted, after=SOAK)
        assert self.state.phase is RolloutPhase.ROLLING
        return self


def events(result):
    return [event.reason for event in result.events]


# -- the canary


def test_one_pod_gets_a_decrease_and_the_others_follow_once_it_has_stood_it():
    web = Workload()
    web.cycle(LESS_CPU)
    assert (web.have(LESS_CPU), web.held()) == (["web-0"], {"web-1": RefusalReason.CANARY, "web-2": RefusalReason.CANARY})
    assert "web-0" in web.last.hold[0].message
    web.cycle(LESS_CPU, after=10)
    web.cycle(LESS_CPU, after=SOAK - 1)
    assert web.have(LESS_CPU) == ["web-0"]
    assert events(web.cycle(LESS_CPU, after=1)) == [EventReason.ROLLOUT_PROVEN]
    assert web.have(LESS_CPU) == ["web-0", "web-1", "web-2"]
    assert web.last.condition is None


def test_growth_waits_for_nobody():
    web = Workload()
    assert (len(web.cycle(MORE_CPU).go), web.state.phase) == (3, RolloutPhase.IDLE)


@pytest.mark.parametrize("reasons", [(DueReason.SIGNIFICANT_CHANGE,), (DueReason.QUICK_OOM,)], ids=["plain", "oom"])
def test_what_grows_of_a_mixed_change_does_not_wait_for_what_shrinks(reasons):
    web = Workload()
    web.cycle(MIXED, reasons=reasons)
    assert web.have(MIXED) == ["web-0"]
    assert web.have(requirements("1", "3Gi", "2", "6Gi")) == ["web-1", "web-2"]
    assert set(web.held()) == {"web-1", "web-2"}


@pytest.mark.parametrize(
    ("canary", "wanted", "restarts", "reasons", "went"),
    [
        pytest.param("all", MORE_CPU, (), (DueReason.SIGNIFICANT_CHANGE,), 1, id="all-growth"),
        pytest.param("all", MORE_CPU, (), (DueReason.QUICK_OOM,), 3, id="all-growth-after-oom"),
        pytest.param("off", LESS_CPU, ("cpu",), (DueReason.SIGNIFICANT_CHANGE,), 3, id="off-decrease"),
        pytest.param("decreases", MORE_CPU, ("cpu",), (DueReason.SIGNIFICANT_CHANGE,), 1, id="growth-that-restarts"),
        pytest.param("decreases", MORE_CPU, ("cpu",), (DueReason.QUICK_OOM,), 3, id="growth-that-restarts-after-oom"),
    ],
)
def test_which_changes_need_a_canary(canary, wanted, restarts, reasons, went):
    web = Workload(restarts=restarts, settings=dataclasses.replace(SETTINGS, canary=canary))
    assert len(web.cycle(wanted, reasons=reasons).go) == went


def test_the_canary_is_the_ready_pod_that_has_run_longest():
    web = Workload("web-a", "web-b", "web-c", "web-d", web_a=10, web_b=9000, web_c=9000, web_d=9999)
    web.pods["web-d"] = unready(web.pods["web-d"], START)
    web.cycle(LESS_CPU)
    assert web.state.canary.name == "web-b"


def test_the_only_pod_that_serves_is_never_the_canary_unless_it_is_the_only_pod():
    web = Workload("web-0", "web-1")
    web.pods["web-1"] = unready(web.pods["web-1"], START)
    web.cycle(LESS_CPU)
    assert (web.have(LESS_CPU), web.last.hold[0].reason) == ([], RefusalReason.CANARY)
    web.pods.pop("web-1")
    web.cycle(LESS_CPU)
    assert web.have(LESS_CPU) == ["web-0"]


def test_a_group_of_one_is_watched_and_taken_back():
    web = Workload("web-0")
    web.cycle(LESS_CPU)
    assert watched(web.pods["web-0"], web.state, web.now, SETTINGS) is not None
    web.harm("web-0", HarmReason.NOT_READY)
    web.cycle(LESS_CPU, after=60)
    assert web.have(requirements(*("1", "1Gi", "2", "2Gi"))) == ["web-0"]


@pytest.mark.parametrize("how", ["gone", "going"])
def test_a_canary_that_vanishes_is_followed_by_another_that_soaks_anew(how):
    web = Workload()
    web.cycle(LESS_CPU)
    web.cycle(LESS_CPU)
    if how == "gone":
        web.pods.pop("web-0")
    else:
        pod = web.pods["web-0"]
        web.pods["web-0"] = msgspec.structs.replace(
            pod, metadata=msgspec.structs.replace(pod.metadata, deletion_timestamp=format_time(START))
        )
    web.cycle(LESS_CPU, after=SOAK)
    assert web.state.canary.name == "web-1"
    web.cycle(LESS_CPU, after=1)
    web.cycle(LESS_CPU, after=SOAK - 1)
    assert web.have(requirements(*("1", "1Gi", "2", "2Gi"))) == ["web-2"]
    web.cycle(LESS_CPU, after=1)
    assert "web-2" in web.have(LESS_CPU)


def test_another_recommendation_goes_to_the_same_canary_and_at_most_once_a_soak_time():
    web = Workload()
    web.cycle(LESS_CPU)
    web.cycle(MUCH_LESS_CPU, after=SOAK - 1)
    assert (web.have(LESS_CPU), web.held()["web-0"]) == (["web-0"], RefusalReason.CANARY)
    web.cycle(MUCH_LESS_CPU, after=1)
    assert (web.have(MUCH_LESS_CPU), web.have(LESS_CPU)) == (["web-0"], [])
    web.harm("web-0")
    web.cycle(MUCH_LESS_CPU)
    assert web.have(requirements("1", "1Gi", "2", "2Gi")) == ["web-0", "web-1", "web-2"]


def test_a_canary_that_grows_again_stays_the_canary_of_what_it_has_then():
    web = Workload()
    web.cycle(MUCH_LESS_CPU)
    web.cycle(A_LITTLE_MORE_CPU, after=SOAK - 1)
    assert web.have(A_LITTLE_MORE_CPU) == ["web-0"]
    web.cycle(A_LITTLE_MORE_CPU, after=1)
    web.cycle(A_LITTLE_MORE_CPU, after=SOAK - 1)
    assert web.have(A_LITTLE_MORE_CPU) == ["web-0"]
    web.cycle(A_LITTLE_MORE_CPU, after=1)
    assert len(web.have(A_LITTLE_MORE_CPU)) == 3


def test_a_recommendation_within_a_tenth_is_the_same_change():
    web = Workload().proven(LESS_CPU)
    web.add("web-3")
    web.cycle(requirements("460m", "1Gi", "920m", "2Gi"), after=HOUR)
    assert web.have(requirements("460m", "1Gi", "920m", "2Gi")) == ["web-0", "web-1", "web-2", "web-3"]
    web.add("web-4")
    web.cycle({"web-4": MUCH_LESS_CPU}, after=HOUR)
    assert (web.state.phase, web.state.canary.name) == (RolloutPhase.CANARY, "web-4")


def test_a_new_change_begins_when_the_one_under_way_is_done():
    web = Workload().proven(LESS_CPU)
    web.add("web-3")
    web.add("web-4")
    web.cycle({"web-3": MUCH_LESS_CPU, "web-4": LESS_CPU}, after=1)
    assert (web.have(MUCH_LESS_CPU), "web-4" in web.have(LESS_CPU)) == ([], True)
    web.cycle({"web-3": MUCH_LESS_CPU}, after=1)
    assert web.have(MUCH_LESS_CPU) == ["web-3"]


def test_a_canary_that_is_not_complete_does_not_soak():
    web = Workload()
    web.cycle(LESS_CPU)
    pod = web.pods["web-0"]
    web.pods["web-0"] = with_conditions(pod, READY, Condition("PodResizeInProgress", "True"))
    web.cycle(LESS_CPU, after=SOAK)
    web.pods["web-0"] = ready(web.pods["web-0"])
    web.cycle(LESS_CPU, after=SOAK)
    assert web.have(LESS_CPU) == ["web-0"]
    web.cycle(LESS_CPU, after=SOAK)
    assert len(web.have(LESS_CPU)) == 3


def test_a_canary_that_never_got_the_change_gives_way_to_another():
    web = Workload()
    web.cycle(LESS_CPU, writes=1)
    assert (web.have(LESS_CPU), web.state.canary.name) == ([], "web-0")
    web.cycle({"web-1": LESS_CPU, "web-2": LESS_CPU}, after=60)
    assert web.have(LESS_CPU) == ["web-1"]


def test_a_crash_before_the_resize_loses_nothing():
    web = Workload()
    web.cycle(LESS_CPU, writes=1)
    web.cycle(LESS_CPU, after=60)
    assert web.have(LESS_CPU) == ["web-0"]


# -- shrinks


def shrink_to(pod, mebibytes):
    return ShrinkNeed("app", mebibytes * MIB, pod.desired("app"), mebibytes * MIB // 2)


def shrinking(web):
    return [a_proposal(pod, shrinks=(shrink_to(pod, 1024),), vpa=web.vpa, app=LESS_CPU) for pod in web.pods.values()]


def test_a_memory_shrink_is_part_of_what_the_canary_has_to_stand():
    web = Workload()
    web.cycle(proposals=shrinking(web))
    assert (web.shrinking, web.have(LESS_CPU)) == ({"web-0"}, ["web-0"])
    others = shrinking(web)[1:]
    web.cycle(proposals=others, after=2 * SOAK)
    assert web.state.since is None
    web.shrinking.clear()
    both = requirements("500m", "512Mi", "1", "1Gi").parse("t")
    web.pods["web-0"] = resized(web.pods["web-0"], {"app": both}, web.now, shrink="s", rollout=web.state.key)
    web.cycle(proposals=others, after=60)
    web.cycle(proposals=others, after=SOAK)
    assert web.shrinking == {"web-1", "web-2"}


def test_what_the_canary_did_not_get_is_not_proven():
    web = Workload()
    web.cycle(proposals=shrinking(web))
    others = shrinking(web)[1:]
    web.shrinking.clear()  # refused: its pod is left alone for a while
    web.cycle(proposals=others, after=60)
    web.cycle(proposals=others, after=SOAK)
    assert (web.have(LESS_CPU), web.shrinking) == (["web-0", "web-1", "web-2"], set())
    assert web.held() == {"web-1": RefusalReason.CANARY, "web-2": RefusalReason.CANARY}


def test_harm_calls_off_the_shrinks_that_are_under_way():
    web = Workload().proven(LESS_CPU)
    web.shrinking = {"web-1"}
    web.harm("web-2")
    result = web.cycle()
    assert [pod.metadata.name for pod in result.call_off] == ["web-1"]
    assert web.cycle({"web-0": MUCH_LESS_CPU}, after=HOUR).go == ()


# -- harm


def test_harm_to_the_canary_takes_the_change_back_for_an_hour_and_says_so():
    web = Workload()
    web.cycle(LESS_CPU)
    web.harm("web-0")
    result = web.cycle(LESS_CPU, after=60)
    assert events(result) == [EventReason.ROLLOUT_DEGRADED]
    assert result.events[0].type == "Warning"
    assert (result.condition.type, result.condition.status, result.condition.reason) == (CONDITION_DEGRADED, "True", "OutOfMemory")
    until = format_time(web.now + HOUR)
    assert result.condition.message == f"pod web-0: app was killed; nothing like it is tried before {until}"
    assert web.have(requirements("1", "1Gi", "2", "2Gi")) == ["web-0", "web-1", "web-2"]
    assert until in result.hold[0].message
    web.cycle(LESS_CPU, after=HOUR - 1)
    assert (web.have(LESS_CPU), set(web.held().values())) == ([], {RefusalReason.DEGRADED})
    web.cycle(LESS_CPU, after=1)
    assert web.have(LESS_CPU) == ["web-0"]


def test_harm_to_a_later_pod_takes_it_back_from_all():
    web = Workload().proven(LESS_CPU)
    web.cycle(LESS_CPU, after=60)
    web.harm("web-2")
    web.cycle(LESS_CPU)
    assert web.have(requirements("1", "1Gi", "2", "2Gi")) == ["web-0", "web-1", "web-2"]


def test_harm_long_after_the_resize_is_none_of_its_doing():
    web = Workload().proven(LESS_CPU)
    web.now += 2 * SOAK
    assert watched(web.pods["web-2"], web.state, web.now, SETTINGS) is None
    web.harm("web-2")
    assert events(web.cycle(LESS_CPU)) == []


def test_harm_to_a_pod_that_takes_no_part_counts_for_nothing():
    web = Workload()
    web.cycle(LESS_CPU)
    web.harm("web-1")
    web.cycle(LESS_CPU)
    assert web.state.phase is RolloutPhase.CANARY


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_crash_amid_the_taking_back_leaves_nobody_behind(writes):
    web = Workload().proven(LESS_CPU)
    web.harm("web-2")
    web.cycle(LESS_CPU, writes=writes)
    if writes == 0:
        web.harm("web-2")
    web.cycle(LESS_CPU, after=60)
    assert web.have(LESS_CPU) == []


def test_each_further_harm_doubles_the_wait_up_to_a_day():
    web = Workload()
    waits = []
    for _ in range(7):
        web.cycle(LESS_CPU)
        assert web.have(LESS_CPU) == ["web-0"]
        web.harm("web-0")
        web.cycle(LESS_CPU, after=60)
        waits.append((web.state.last_failure.until - web.now) / HOUR)
        web.now = web.state.last_failure.until
    assert waits == [1, 2, 4, 8, 16, 24, 24]


def test_success_at_last_is_told():
    web = Workload()
    web.cycle(LESS_CPU)
    web.harm("web-0")
    web.cycle(LESS_CPU)
    web.cycle(LESS_CPU, after=HOUR)
    assert web.vpa.status.conditions[0].status == "True"
    web.cycle(LESS_CPU, after=1)
    result = web.cycle(LESS_CPU, after=SOAK)
    assert events(result) == [EventReason.ROLLOUT_PROVEN, EventReason.ROLLOUT_RECOVERED]
    assert (result.condition.status, result.condition.reason) == ("False", "Recovered")
    assert web.cycle(LESS_CPU, after=60).condition is None


def test_a_failure_that_is_never_tried_again_is_forgotten_after_a_day():
    web = Workload()
    web.cycle(LESS_CPU)
    web.harm("web-0")
    web.cycle(LESS_CPU)
    web.cycle(after=25 * HOUR)
    assert (web.state.failures, web.last.condition.status, web.state.phase) == ([], "False", RolloutPhase.IDLE)


def test_a_condition_that_was_not_written_is_written_the_next_time():
    web = Workload()
    web.cycle(LESS_CPU)
    web.harm("web-0")
    web.cycle(LESS_CPU)
    known = web.vpa.status.conditions[0]
    assert web.cycle(LESS_CPU, after=60).condition is None
    web.vpa = msgspec.structs.replace(web.vpa, status=VpaStatus())
    assert web.cycle(LESS_CPU, after=60).condition.message == known.message
    assert parse_time(web.vpa.status.conditions[0].last_transition_time) > parse_time(known.last_transition_time)


@pytest.mark.parametrize(
    ("wanted", "have"),
    [
        pytest.param(requirements("530m", "1Gi", "1060m", "2Gi"), [], id="a-tenth-away"),
        pytest.param(MUCH_LESS_CPU, [], id="deeper"),
        pytest.param(A_LITTLE_MORE_CPU, ["web-0"], id="not-so-deep"),
        pytest.param(MORE_CPU, ["web-0", "web-1", "web-2"], id="growth"),
    ],
)
def test_what_may_be_tried_while_a_change_is_held_off(wanted, have):
    web = Workload()
    web.cycle(LESS_CPU)
    web.harm("web-0")
    web.cycle(LESS_CPU)
    web.cycle(wanted, after=60)
    assert web.have(wanted) == have


def test_a_restart_that_did_harm_is_held_off_but_not_the_growth_that_an_oom_kill_asks_for():
    web = Workload(restarts=("cpu",))
    web.cycle(MORE_CPU)
    web.harm("web-0", HarmReason.NOT_READY)
    web.cycle(MORE_CPU)
    assert web.have(requirements("1", "1Gi", "2", "2Gi")) == ["web-0", "web-1", "web-2"]
    web.cycle(MORE_CPU, after=60)
    assert (web.have(MORE_CPU), set(web.held().values())) == ([], {RefusalReason.DEGRADED})
    web.cycle(MORE_CPU, after=60, reasons=(DueReason.QUICK_OOM,))
    assert len(web.have(MORE_CPU)) == 3


def test_growth_goes_on_while_a_pod_is_taken_back():
    web = Workload()
    web.cycle(LESS_CPU)
    web.harm("web-0")
    web.cycle(MORE_CPU)
    assert web.have(MORE_CPU) == ["web-1", "web-2"]
    web.cycle(MORE_CPU, after=60)
    assert web.have(MORE_CPU) == ["web-0", "web-1", "web-2"]


def test_what_somebody_else_has_resized_since_is_not_taken_back():
    web = Workload()
    web.cycle(LESS_CPU)
    foreign = web.pods["web-0"]
    container = msgspec.structs.replace(foreign.spec.containers[0], resources=MUCH_LESS_CPU)
    web.pods["web-0"] = msgspec.structs.replace(foreign, spec=msgspec.structs.replace(foreign.spec, containers=[container]))
    web.harm("web-0")
    assert web.cycle().revert == ()


def test_what_a_canary_grew_to_by_a_restart_is_a_decrease_to_the_others():
    web = Workload(restarts=("cpu",))
    web.cycle(MUCH_LESS_CPU)
    web.cycle(A_LITTLE_MORE_CPU, after=SOAK)
    assert web.have(A_LITTLE_MORE_CPU) == ["web-0"]
    web.harm("web-0")
    web.cycle(A_LITTLE_MORE_CPU)
    web.cycle(LESS_CPU, after=60)
    assert (web.have(LESS_CPU), set(web.held().values())) == ([], {RefusalReason.DEGRADED})


def test_a_size_that_a_restart_failed_at_is_none_to_come_down_to_for_a_pod_that_would_not_restart():
    web = Workload(restarts=("cpu",))
    web.cycle(MORE_CPU)
    web.harm("web-0", HarmReason.NOT_READY)
    web.cycle(MORE_CPU)
    web.add("web-3")
    web.pods["web-3"] = resized(web.pods["web-3"], {"app": requirements("4", "1Gi", "8", "2Gi").parse("t")}, web.now)
    web.cycle({"web-3": MORE_CPU}, after=60)
    assert web.held() == {"web-3": RefusalReason.DEGRADED}


# -- guards, and what is kept


def test_a_guard_that_cannot_be_asked_holds_decreases_and_no_growth():
    web = Workload()
    web.guard_problem = "Prometheus is down"
    web.cycle(MIXED)
    assert web.have(requirements("1", "3Gi", "2", "6Gi")) == ["web-0", "web-1", "web-2"]
    assert "Prometheus is down" in web.last.hold[0].message
    assert set(web.held().values()) == {RefusalReason.GUARD}
    web.guard_problem = ""
    web.cycle(MIXED)
    web.cycle(MIXED)
    web.guard_problem = "Prometheus is down"
    web.cycle(MIXED, after=SOAK)
    assert web.have(MIXED) == ["web-0"]
    web.guard_problem = ""
    web.cycle(MIXED, after=60)
    assert len(web.have(MIXED)) == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 2}',
        '{"version": 1, "phase": "Canary"}',
        '{"version": 1, "before": {"app": {"requests": {"cpu": "x"}}}}',
    ],
)
def test_a_spoilt_state_is_begun_anew_and_reported(text, caplog):
    web = Workload()
    web.vpa = annotated(web.vpa, {ANNOTATION_ROLLOUT: text})
    assert web.state.phase is RolloutPhase.IDLE
    assert "unreadable rollout begun anew" in caplog.text
    web.cycle(LESS_CPU)
    assert web.have(LESS_CPU) == ["web-0"]


def test_the_state_says_what_was_there_before_and_survives_its_annotation():
    web = Workload()
    result = web.cycle(LESS_CPU)
    assert web.state == result.state
    assert web.state.before["app"].parse("t") == requirements("1", "1Gi", "2", "2Gi").parse("t")
    assert '"version":1' in web.vpa.metadata.annotations[ANNOTATION_ROLLOUT]


def test_a_pod_with_resources_of_its_own_is_not_resized_in_parts():
    web = Workload()
    for name, pod in web.pods.items():
        web.pods[name] = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resources=requirements("4", "8Gi")))
    web.cycle(MIXED)
    assert (web.have(MIXED), web.have(requirements("1", "1Gi", "2", "2Gi"))) == (["web-0"], ["web-1", "web-2"])


# -- whatever happens


class Judge:
    """Knows nothing of the rollout's state: looks only at what pods have, when they got it, and which changes were found to do harm."""

    def __init__(self, web):
        self.web = web
        self.holds = {}  # by pod and resource: the amounts that it was resized to, and when
        self.began = set()  # pods and resources that were lowered to what no pod had stood
        self.stood = []  # resource and amounts that some pod has had for a soak time
        self.forbidden = []  # resource, amounts, until

    def look(self):
        """Before each cycle: what has been stood by now, and who is gone or has got back what it had."""
        for (name, resource), (amounts, since) in list(self.holds.items()):
            pod = self.web.pods.get(name)
            if pod is None or held_amounts(pod, resource) != amounts:
                del self.holds[name, resource]
            elif self.web.now - since >= SOAK:
                self.stood.append((resource, amounts))
        for name, resource in list(self.began):
            pod = self.web.pods.get(name)
            amounts = held_amounts(pod, resource) if pod else FIRST[resource]
            if amounts >= FIRST[resource] or any(near(one, (resource, amounts)) for one in self.stood):
                self.began.remove((name, resource))

    def found_harm(self, failure):
        assert failure.until >= self.web.now + min(HOUR * 2 ** (failure.attempts - 1), 24 * HOUR)
        for move in failure.moves:
            amounts = (move.request, move.limit)
            self.forbidden.append((str(move.resource), amounts, failure.until))
            self.stood = [one for one in self.stood if not near(one, (str(move.resource), amounts))]

    def resized(self, name, before, after):
        for resource in ("cpu", "memory"):
            was, now = held_amounts(before, resource), held_amounts(after, resource)
            if was != now:
                self.holds[name, resource] = (now, self.web.now)
            if any(new < old for old, new in zip(was, now, strict=True)):
                self.lowered(name, resource, now)

    def lowered(self, name, resource, amounts):
        bad = [until for kind, known, until in self.forbidden if self.web.now < until and near((kind, known), (resource, amounts))]
        assert not bad, f"{resource} of {name} lowered to {amounts} before {bad}"
        if any(near(one, (resource, amounts)) for one in self.stood):
            return
        others = {pod for pod, _ in self.began if pod != name}
        assert not others, f"{name} lowered to {resource} {amounts} while {others} have not stood theirs"
        self.began.add((name, resource))


def near(one, other):
    return one[0] == other[0] and all(abs(a - b) <= 0.1 * max(a, b) for a, b in zip(one[1], other[1], strict=True))


FIRST = {"cpu": (1000, 2000), "memory": (1024 * MIB, 2048 * MIB)}


def held_amounts(pod, resource):
    resources = pod.desired("app")
    if resource == "cpu":
        return resources.requests.cpu_millicores, resources.limits.cpu_millicores
    return resources.requests.memory_bytes, resources.limits.memory_bytes


sizes = st.builds(
    lambda cpu, memory: requirements(f"{cpu}m", f"{memory}Mi", f"{2 * cpu}m", f"{2 * memory}Mi"),
    st.sampled_from([240, 500, 530, 800, 1000, 1500]),
    st.sampled_from([300, 640, 700, 1024, 2048]),
)
happenings = st.tuples(
    st.sampled_from(["nothing", "nothing", "nothing", "harm", "harm", "delete", "add", "unready", "ready"]),
    st.integers(0, 5),
    st.sampled_from([1.0, 60.0, 300.0, SOAK, SOAK, HOUR, 5 * HOUR]),
    st.one_of(st.none(), sizes),
    st.sampled_from([99, 99, 99, 0, 1, 2]),
)


def befall(web, what, which):
    names = sorted(web.pods)
    name = names[which % len(names)] if names else None
    if what == "add":
        web.add(f"web-{len(names)}-{web.now:.0f}")
    elif name is None:
        return
    elif what == "harm":
        web.harm(web.state.canary.name if web.state.canary and which % 2 else name)
    elif what == "delete":
        web.pods.pop(name)
    elif what in ("ready", "unready"):
        web.pods[name] = ready(web.pods[name]) if what == "ready" else unready(web.pods[name], web.now)


@given(st.lists(happenings, min_size=4, max_size=30), st.sampled_from([(), ("memory",), ("cpu", "memory")]))
@settings(max_examples=100, deadline=None)
def test_whatever_happens_one_pod_at_a_time_stands_for_the_others(story, restarts):
    web = Workload(restarts=restarts)
    judge, wanted = Judge(web), LESS_CPU
    for what, which, after, changed, writes in story:
        befall(web, what, which)
        wanted = changed or wanted
        web.now += after
        judge.look()
        before, known = dict(web.pods), web.state.last_failure
        reverting = {pod.metadata.name for pod in step(web.group(), web.proposals(wanted, ()), web.harms, web.now, SETTINGS).revert}
        web.cycle(wanted, writes=writes)
        if web.state.last_failure not in (None, known) and web.state.harmed and web.state.phase is RolloutPhase.DEGRADED:
            judge.found_harm(web.state.last_failure)
        for name in sorted(reverting & before.keys()):
            assert held_amounts(web.pods[name], "memory")[1] >= held_amounts(before[name], "memory")[1]
        for name, pod in web.pods.items():
            if name not in reverting:
                judge.resized(name, before[name], pod)


@given(st.lists(happenings, max_size=12), sizes)
@settings(max_examples=50, deadline=None)
def test_when_nothing_more_happens_everybody_gets_there(story, goal):
    web = Workload()
    for what, which, after, changed, writes in story:
        befall(web, what, which)
        web.cycle(changed, after=after, writes=writes)
    web.pods = {name: ready(pod) for name, pod in web.pods.items()}
    for _ in range(8):
        web.cycle(goal, after=25 * HOUR)
    assert web.have(goal) == sorted(web.pods)
