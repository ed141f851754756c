"""The pre-flight: the API server is asked in a dry run before anything is written."""

import pytest
from resize_support import RULES, FakeApiError, FakeClock, FakeCluster, a_container, a_pod, a_recommendation, a_vpa

from vpa_ippr.api.names import ANNOTATION_RESIZE_LEDGER
from vpa_ippr.resize.controller import Updater
from vpa_ippr.resize.ledger import read_ledger
from vpa_ippr.resize.reasons import OutcomeCode, RefusalReason
from vpa_ippr.resize.settings import Settings

POD = a_pod(a_container(cpu="200m", memory="1Gi"), a_container("idle", cpu="1", memory="1Gi"))
VPA = a_vpa(a_recommendation(cpu="400m", memory="1Gi"))


def stage(*, dry_run_first):
    clock = FakeClock()
    cluster = FakeCluster(POD, vpas=(VPA,), clock=clock)
    return cluster, Updater(cluster, clock, Settings(dry_run_first=dry_run_first), RULES)


@pytest.mark.parametrize("first", [True, False])
def test_a_resize_is_asked_for_beforehand_only_when_wanted(first):
    cluster, updater = stage(dry_run_first=first)
    (outcome,) = updater.run_cycle().outcomes
    assert outcome.code is OutcomeCode.ISSUED
    assert cluster.dry_runs == (cluster.resizes if first else [])
    assert len(cluster.resizes) == 1


def test_what_the_dry_run_refuses_is_not_noted_as_asked():
    cluster, updater = stage(dry_run_first=True)
    cluster.resize_errors = [FakeApiError(403, 'pods "web-0" is forbidden: exceeded quota: q')]
    (outcome,) = updater.run_cycle().outcomes
    assert (outcome.code, outcome.reason) == (OutcomeCode.REFUSED, RefusalReason.QUOTA_EXCEEDED)
    ledger = read_ledger(cluster.pod)
    assert (ledger.last, len(ledger.hold_offs), cluster.resizes) == (None, 1, [])


def test_a_dry_run_without_an_answer_leaves_no_trace():
    cluster, updater = stage(dry_run_first=True)
    cluster.resize_errors = [FakeApiError(500, "etcd is away")]
    (outcome,) = updater.run_cycle().outcomes
    assert outcome.code is OutcomeCode.UNAVAILABLE
    assert ANNOTATION_RESIZE_LEDGER not in cluster.pod.metadata.annotations
