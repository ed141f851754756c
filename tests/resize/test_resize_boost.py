"""The end of a startup boost."""

import msgspec
import pytest
from resize_support import START, a_container, a_pod, a_recommendation, a_vpa, apply

from vpa_ippr.api.meta import Condition
from vpa_ippr.api.resources import Resource
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import ContainerPolicy, StartupBoost, StartupBoostCpu
from vpa_ippr.resize.boost import Boosted, NotBoosted, Unboost, boost_step, boosted_containers
from vpa_ippr.resize.hpa import HpaPolicy, Sharing
from vpa_ippr.resize.ledger import Ledger, with_resize
from vpa_ippr.resize.patch import changes_to, patch_for
from vpa_ippr.resize.qos import desired_resources, qos_class

READY_FOR = 100
READY = Condition(type="Ready", status="True", last_transition_time=format_time(START - READY_FOR))
NOT_READY = Condition(type="Ready", status="False", last_transition_time=format_time(START - READY_FOR))
ORIGINAL = '{"requests":{"cpu":"200m","memory":"1Gi"},"limits":{"cpu":"400m","memory":"2Gi"}}'
RECOMMENDED = a_recommendation(cpu="300m", memory="3Gi")


def boosted(*, condition=READY, containers=None, annotations=None):
    app = a_container(cpu="600m", cpu_limit="1200m", memory="1Gi", memory_limit="2Gi")
    notes = {"vpaCpuStartupBoost/app": ORIGINAL} if annotations is None else annotations
    return a_pod(*(containers or [app]), conditions=(condition,), annotations=notes)


def a_boosting_vpa(*recommendations, mode="InPlaceOrRecreate", seconds=None, policies=()):
    vpa = a_vpa(*recommendations, mode=mode, policies=policies)
    boost = StartupBoost(StartupBoostCpu("Factor", factor=3, duration_seconds=seconds))
    return msgspec.structs.replace(vpa, spec=msgspec.structs.replace(vpa.spec, startup_boost=boost))


def step(pod, vpa, **more):
    return boost_step(pod, vpa, START, Ledger(), **more)


def cpu_of(step, container="app"):
    resources = step.after[container]
    return resources.requests.cpu_millicores, resources.limits.cpu_millicores


def test_a_pod_without_the_annotation_is_not_boosted():
    pod = boosted(annotations={"vpaCpuStartupBoost/gone": ORIGINAL, "vpaUpdates": "boosted"})
    assert step(pod, a_boosting_vpa(RECOMMENDED)) == NotBoosted()
    assert boosted_containers(pod) == frozenset()


def test_the_boost_is_on_until_the_pod_is_ready():
    assert step(boosted(condition=NOT_READY), a_boosting_vpa(RECOMMENDED)) == Boosted(until=None)
    assert boosted_containers(boosted(condition=NOT_READY)) == {"app"}


@pytest.mark.parametrize(
    ("pod_seconds", "policies", "until"),
    [
        pytest.param(101, (), START + 1, id="pod"),
        pytest.param(
            0, (ContainerPolicy("app", startup_boost=StartupBoost(StartupBoostCpu("Factor", 2, None, 160))),), START + 60, id="own"
        ),
        pytest.param(
            0, (ContainerPolicy("*", startup_boost=StartupBoost(StartupBoostCpu("Factor", 2, None, 160))),), START + 60, id="star"
        ),
        pytest.param(
            160, (ContainerPolicy("app", startup_boost=StartupBoost(StartupBoostCpu("Factor", 2))),), START + 60, id="own-not-said"
        ),
        pytest.param(160, (ContainerPolicy("app"),), START + 60, id="no-own-boost"),
    ],
)
def test_the_boost_is_on_for_its_time_after_ready(pod_seconds, policies, until):
    vpa = a_boosting_vpa(RECOMMENDED, seconds=pod_seconds, policies=policies)
    assert step(boosted(), vpa) == Boosted(until)


@pytest.mark.parametrize("seconds", [None, 0, READY_FOR])
def test_then_cpu_goes_to_what_is_recommended_in_proportion_to_the_original(seconds):
    found = step(boosted(), a_boosting_vpa(RECOMMENDED, seconds=seconds))
    assert isinstance(found, Unboost)
    assert cpu_of(found) == (300, 600)
    assert found.annotations == ("vpaCpuStartupBoost/app",)


def test_memory_is_not_touched():
    pod = boosted()
    changes = changes_to(pod, dict(step(pod, a_boosting_vpa(RECOMMENDED)).after))
    assert {change.resource for change in changes} == {Resource.CPU}


@pytest.mark.parametrize(
    ("vpa", "cpu"),
    [
        pytest.param(a_boosting_vpa(RECOMMENDED, mode="Off"), (200, 400), id="off-goes-back"),
        pytest.param(a_boosting_vpa(RECOMMENDED, mode="Initial"), (300, 600), id="initial"),
        pytest.param(a_boosting_vpa(RECOMMENDED, mode="Recreate"), (300, 600), id="recreate-in-place-all-the-same"),
        pytest.param(a_boosting_vpa(), (200, 400), id="nothing-recommended"),
        pytest.param(a_boosting_vpa(RECOMMENDED, policies=(ContainerPolicy("app", mode="Off"),)), (200, 400), id="container-off"),
        pytest.param(
            a_boosting_vpa(RECOMMENDED, policies=(ContainerPolicy("app", controlled_resources=["memory"]),)),
            (200, 400),
            id="not-controlled",
        ),
        pytest.param(a_boosting_vpa(a_recommendation(cpu="200m")), (200, 400), id="recommended-as-it-was"),
        pytest.param(a_vpa(RECOMMENDED), (300, 600), id="boosts-no-longer"),
    ],
)
def test_where_cpu_goes(vpa, cpu):
    assert cpu_of(step(boosted(), vpa)) == cpu


@pytest.mark.parametrize(
    ("policy", "recommended", "cpu"),
    [
        (HpaPolicy.LEAVE, "300m", (200, 400)),
        (HpaPolicy.RAISE_ONLY, "300m", (300, 600)),
        (HpaPolicy.RAISE_ONLY, "100m", (200, 400)),
        (HpaPolicy.IGNORE, "100m", (100, 200)),
    ],
)
def test_cpu_that_an_hpa_scales_on_goes_back_to_what_it_was(policy, recommended, cpu):
    sharing = Sharing({"*": frozenset({Resource.CPU})}, policy)
    assert cpu_of(step(boosted(), a_boosting_vpa(a_recommendation(cpu=recommended)), sharing=sharing)) == cpu


def test_once_done_only_the_annotation_is_left_to_remove():
    pod, vpa = boosted(), a_boosting_vpa(RECOMMENDED)
    after = dict(step(pod, vpa).after)
    done = apply(pod, patch_for(pod, changes_to(pod, after)))
    ledger = with_resize(Ledger(), pod, after, START)
    assert boost_step(done, vpa, START + 60, ledger) == Unboost({}, ("vpaCpuStartupBoost/app",))


def test_containers_end_their_boost_on_their_own():
    side = a_container("side", cpu="100m", memory="1Gi")
    app = a_container(cpu="600m", cpu_limit="1200m", memory="1Gi", memory_limit="2Gi")
    notes = {"vpaCpuStartupBoost/app": ORIGINAL, "vpaCpuStartupBoost/side": '{"requests":{"cpu":"50m"},"limits":{}}'}
    later = ContainerPolicy("side", startup_boost=StartupBoost(StartupBoostCpu("Factor", 2, None, 3600)))
    found = step(boosted(containers=[app, side], annotations=notes), a_boosting_vpa(RECOMMENDED, policies=(later,)))
    assert set(found.after) == {"app"}
    assert found.annotations == ("vpaCpuStartupBoost/app",)


def test_a_request_that_there_was_not_cannot_be_removed_again():
    pod = boosted(annotations={"vpaCpuStartupBoost/app": '{"requests":{"memory":"1Gi"},"limits":{"memory":"2Gi"}}'})
    assert step(pod, a_boosting_vpa(mode="Off")) == Unboost({}, ("vpaCpuStartupBoost/app",))


@pytest.mark.parametrize("text", ["true", "{", '{"requests":{"cpu":"much"}}', '{"requests":[]}'])
def test_an_unreadable_annotation_is_logged_and_what_is_recommended_counts(text, caplog):
    pod = boosted(annotations={"vpaCpuStartupBoost/app": text})
    assert cpu_of(step(pod, a_boosting_vpa(RECOMMENDED))) == (300, 600)
    assert "unreadable startup boost" in caplog.text
    assert step(pod, a_boosting_vpa(mode="Off")) == Unboost({}, ("vpaCpuStartupBoost/app",))


def test_a_pod_that_the_boost_made_burstable_stays_so():
    app = a_container(cpu="499m", cpu_limit="500m", memory="1Gi", memory_limit="1Gi")
    pod = boosted(containers=[app], annotations={"vpaCpuStartupBoost/app": '{"requests":{"cpu":"250m"},"limits":{"cpu":"500m"}}'})
    policy = ContainerPolicy("app", controlled_values="RequestsOnly")
    found = step(pod, a_boosting_vpa(a_recommendation(cpu="700m"), policies=(policy,)))
    assert qos_class(pod, desired_resources(pod, dict(found.after))) == pod.status.qos_class == "Burstable"
    assert found == Unboost({}, ("vpaCpuStartupBoost/app",))


def test_a_sidecar_can_be_boosted():
    side = a_container("side", cpu="100m", memory="1Gi", restart_policy="Always")
    pod = a_pod(
        a_container(cpu="1", memory="1Gi"),
        init=(side,),
        conditions=(READY,),
        annotations={"vpaCpuStartupBoost/side": '{"requests":{"cpu":"50m"},"limits":{}}'},
    )
    assert cpu_of(step(pod, a_boosting_vpa(mode="Off")), "side") == (50, None)


@pytest.mark.parametrize("mode", ["Off", "Recreate"])
def test_a_note_without_a_limit_leaves_the_limit_where_it_is_however_often_it_is_read(mode):
    pod, vpa = boosted(annotations={"vpaCpuStartupBoost/app": '{"requests":{"cpu":"500m"}}'}), a_boosting_vpa(RECOMMENDED, mode=mode)
    for _ in range(4):
        after = dict(step(pod, vpa).after)
        pod = apply(pod, patch_for(pod, changes_to(pod, after)))
        assert pod.desired("app").limits.cpu_millicores == 1200
    assert not step(pod, vpa).after


def test_a_note_that_would_change_the_qos_class_is_left_alone():
    app = a_container(cpu="600m", cpu_limit="600m", memory="1Gi", memory_limit="1Gi")
    pod = boosted(containers=[app], annotations={"vpaCpuStartupBoost/app": '{"requests":{"cpu":"200m"},"limits":{"cpu":"300m"}}'})
    found = step(pod, a_boosting_vpa(mode="Off"))
    assert qos_class(pod, desired_resources(pod, dict(found.after))) == "Guaranteed"
    assert found.annotations  # and read no more


def test_the_end_of_a_boost_adds_no_limit_that_could_not_be_removed_again():
    app = a_container(cpu="600m", memory="1Gi", memory_limit="1Gi")
    pod = boosted(containers=[app], annotations={"vpaCpuStartupBoost/app": '{"requests":{"cpu":"200m"},"limits":{"cpu":"200m"}}'})
    after = step(pod, a_boosting_vpa(mode="Off")).after
    assert after["app"].requests.cpu_millicores == 200
    assert after["app"].limits.cpu_millicores is None
