"""What keeps a change back that the recommendation asks for."""

import msgspec
import pytest
from resize_support import DAY, START, a_container, a_pod, a_recommendation, a_vpa, with_own_resources

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.hpa import HorizontalPodAutoscaler, HpaSpec, Metric, MetricTarget, ResourceMetric
from vpa_ippr.api.meta import ObjectMeta
from vpa_ippr.api.pod import POD_LEVEL
from vpa_ippr.api.resources import Amounts, ContainerResources, Resource
from vpa_ippr.api.shrink import Phase
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import TargetRef
from vpa_ippr.resize.circumstances import Circumstances, circumstances_of
from vpa_ippr.resize.due import Due, NotDue, Part, decide
from vpa_ippr.resize.hpa import HpaPolicy, Sharing, index_hpas
from vpa_ippr.resize.ledger import History
from vpa_ippr.resize.plan import ShrinkNeed
from vpa_ippr.resize.reasons import AbortReason, DueReason, NotDueReason
from vpa_ippr.resize.settings import Settings
from vpa_ippr.resize.shrinks import Abort, Commit, Keep, new_shrink, next_step
from vpa_ippr.resize.state import Idle
from vpa_ippr.resize.windows import parse_windows

CPU, MEMORY = Resource.CPU, Resource.MEMORY
SETTINGS = Settings()
CLOSED = Circumstances(closed_until=START + 3600)
PAUSED = Circumstances(paused=True)


def app(cpu="1", memory="1Gi", **more):
    return a_container(cpu=cpu, memory=memory, **more)


def verdict(pod, vpa, circumstances):
    return decide(pod, vpa, START, SETTINGS, History(), circumstances=circumstances)


@pytest.mark.parametrize("mode", ["InPlaceOrRecreate", "Recreate"])
def test_a_pause_holds_even_what_is_urgent_and_says_what_it_holds(mode):
    decision = verdict(a_pod(app(), ooms={"app": 10}), a_vpa(a_recommendation(cpu="1", memory="4Gi"), mode=mode), PAUSED)
    assert decision.reason is NotDueReason.PAUSED
    assert DueReason.QUICK_OOM in decision.message


def test_what_is_not_due_is_not_called_paused():
    decision = verdict(a_pod(app()), a_vpa(a_recommendation(cpu="1", memory="1Gi")), PAUSED)
    assert decision.reason is NotDueReason.UP_TO_DATE


@pytest.mark.parametrize(
    ("pod", "recommendation"),
    [
        pytest.param(a_pod(app()), a_recommendation(cpu="1", memory="2Gi"), id="significant"),
        pytest.param(a_pod(app()), a_recommendation(cpu="2", memory="1Gi"), id="cpu-shortage"),
        pytest.param(a_pod(app()), a_recommendation(cpu="1", memory="512Mi", upper={"memory": "800Mi"}), id="above"),
        pytest.param(a_pod(a_container(cpu="1")), a_recommendation(cpu="1", memory="1Gi"), id="request-missing"),
        pytest.param(a_pod(app(), ooms={"app": 10}), a_recommendation(cpu="2", memory="512Mi"), id="oom-but-less-memory"),
        pytest.param(
            a_pod(app(), a_container("side", cpu="1", memory="1Gi"), ooms={"side": 10}),
            a_recommendation(cpu="1", memory="2Gi"),
            id="oom-of-another-container",
        ),
    ],
)
def test_what_is_not_urgent_waits_for_its_window(pod, recommendation):
    decision = verdict(pod, a_vpa(recommendation), CLOSED)
    assert isinstance(decision, NotDue)
    assert decision.reason is NotDueReason.OUTSIDE_WINDOW
    assert "Fri 2027-01-15 09:00 UTC" in decision.message


@pytest.mark.parametrize(
    ("pod", "recommendation", "reasons", "parts"),
    [
        pytest.param(
            a_pod(app(), ooms={"app": 10}), a_recommendation(cpu="2", memory="2Gi"), {DueReason.QUICK_OOM}, (Part("app", MEMORY),), id="oom"
        ),
        pytest.param(
            a_pod(app()),
            a_recommendation(cpu="2", memory="512Mi", lower={"cpu": "1500m"}, upper={"memory": "800Mi"}),
            {DueReason.OUTSIDE_BOUNDS},
            (Part("app", CPU),),
            id="below-alone",
        ),
        pytest.param(
            a_pod(app(), ooms={"app": 10}),
            a_recommendation(cpu="2", memory="2Gi", lower={"memory": "1500Mi"}),
            {DueReason.OUTSIDE_BOUNDS, DueReason.QUICK_OOM},
            (Part("app", MEMORY),),
            id="both",
        ),
    ],
)
def test_urgent_growth_goes_at_any_time_and_takes_nothing_else_along(pod, recommendation, reasons, parts):
    due = verdict(pod, a_vpa(recommendation), CLOSED)
    assert isinstance(due, Due)
    assert set(due.reasons) == reasons
    assert due.parts == parts
    assert due.change == pytest.approx(1.0)


def test_urgent_growth_by_eviction_is_still_by_eviction():
    due = verdict(a_pod(app(), ooms={"app": 10}), a_vpa(a_recommendation(cpu="1", memory="2Gi"), mode="Recreate"), CLOSED)
    assert due.by_eviction


def test_what_an_hpa_scales_on_is_left_alone_and_the_rest_goes():
    sharing = Circumstances(sharing=Sharing({"*": frozenset({CPU})}))
    vpa = a_vpa(a_recommendation(cpu="3", memory="3Gi"))
    assert verdict(a_pod(app()), vpa, sharing).parts == (Part("app", MEMORY),)
    assert verdict(a_pod(app()), a_vpa(a_recommendation(cpu="3", memory="1Gi")), sharing).reason is NotDueReason.HPA


def test_raise_only_raises():
    sharing = Circumstances(sharing=Sharing({"app": frozenset({CPU})}, HpaPolicy.RAISE_ONLY))
    assert verdict(a_pod(app()), a_vpa(a_recommendation(cpu="3")), sharing).parts == (Part("app", CPU),)
    assert verdict(a_pod(app()), a_vpa(a_recommendation(cpu="500m")), sharing).reason is NotDueReason.HPA


def test_boosted_cpu_is_left_alone_and_the_rest_goes():
    pod, boosted = a_pod(app(), a_container("side", cpu="1", memory="1Gi")), Circumstances(boosted=frozenset({"app"}))
    vpa = a_vpa(a_recommendation(cpu="100m", memory="3Gi"), a_recommendation("side", cpu="3", memory="1Gi"))
    assert verdict(pod, vpa, boosted).parts == (Part("app", MEMORY), Part("side", CPU))
    alone = verdict(a_pod(app()), a_vpa(a_recommendation(cpu="100m", memory="1Gi")), boosted)
    assert alone.reason is NotDueReason.BOOSTED


def test_the_pods_own_cpu_is_left_alone_while_a_container_is_boosted():
    pod = with_own_resources(a_pod(a_container()), cpu="1", memory="1Gi")
    vpa = a_vpa(a_recommendation(cpu="3", memory="3Gi"))
    assert Part(POD_LEVEL, CPU) in verdict(pod, vpa, Circumstances()).parts
    assert verdict(pod, vpa, Circumstances(boosted=frozenset({"app"}))).parts == (Part(POD_LEVEL, MEMORY),)


def test_memory_that_a_killed_container_has_of_its_pod_is_urgent():
    pod = with_own_resources(a_pod(a_container(), ooms={"app": 10}), cpu="1", memory="1Gi")
    due = verdict(pod, a_vpa(a_recommendation(cpu="1", memory="3Gi")), CLOSED)
    assert (due.reasons, due.parts) == ((DueReason.QUICK_OOM,), (Part(POD_LEVEL, MEMORY),))


def with_annotations(**annotations):
    vpa = a_vpa(a_recommendation(cpu="1"))
    named = {f"vpa-ippr.io/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return msgspec.structs.replace(vpa, metadata=msgspec.structs.replace(vpa.metadata, annotations=named))


def found(vpa, *, pod=None, hpas=(), **settings):
    return circumstances_of(pod or a_pod(app()), vpa, None, index_hpas(hpas), START, Settings(**settings))


def test_ordinarily_nothing_keeps_a_change_back():
    assert found(with_annotations()) == Circumstances()


# START is a Friday, 08:00 UTC.
def test_windows_of_the_settings_and_of_the_vpa():
    closed = {"maintenance_windows": parse_windows("Sat 00:00-24:00 UTC")}
    assert found(with_annotations(), **closed).closed_until == START + 16 * 3600
    assert found(with_annotations(maintenance_windows="Fri 08:00-09:00 UTC"), **closed).closed_until is None
    assert found(with_annotations(maintenance_windows="Fri 07:00-08:00 UTC")).closed_until == START + 7 * DAY - 3600


def test_either_pause_holds():
    assert found(with_annotations(pause="true")).paused
    assert found(with_annotations(pause="false"), paused=True).paused


def test_hpas_and_boosts_are_found():
    source = ResourceMetric("cpu", MetricTarget("Utilization"))
    spec = HpaSpec(TargetRef("StatefulSet", "web", "apps/v1"), [Metric("Resource", resource=source)])
    hpa = HorizontalPodAutoscaler(ObjectMeta(name="web", namespace="shop"), spec)
    circumstances = found(
        with_annotations(with_hpa="raise-only"), pod=a_pod(app(), annotations={"vpaCpuStartupBoost/app": "{}"}), hpas=[hpa]
    )
    assert circumstances.sharing == Sharing({"*": frozenset({CPU})}, HpaPolicy.RAISE_ONLY)
    assert circumstances.boosted == {"app"}


@pytest.mark.parametrize("annotation", ["pause", "maintenance_windows", "with_hpa"])
def test_what_cannot_be_read_stops_the_vpa_and_is_named(annotation):
    with pytest.raises(ValidationError, match=f"annotation vpa-ippr.io/{annotation.replace('_', '-')}") as caught:
        found(with_annotations(**{annotation: "nonsense"}))
    assert caught.value.reason == "ConfigUnsupported"


@pytest.mark.parametrize(
    ("circumstances", "reason"),
    [
        (Circumstances(), None),
        (PAUSED, AbortReason.PAUSED),
        (CLOSED, AbortReason.OUTSIDE_WINDOW),
        (Circumstances(paused=True, closed_until=START + 60), AbortReason.PAUSED),
    ],
)
@pytest.mark.parametrize("phase", [Phase.PENDING, Phase.HOLDING])
def test_a_shrink_under_way_is_given_up(circumstances, reason, phase):
    pod = a_pod(app(memory="1Gi", memory_limit="2Gi"))
    shrink = a_shrink(pod, phase)
    step = next_step(shrink, pod, Idle(), HALF, START, SETTINGS, halted=circumstances.halted)
    if reason is None:
        assert isinstance(step, Keep if phase is Phase.PENDING else Commit)
    else:
        assert step == Abort(reason)


def test_a_shrink_whose_limit_is_lowered_already_goes_on():
    pod = a_pod(app(memory="1Gi", memory_limit="2Gi"))
    lowered = a_pod(app(memory="512Mi", memory_limit="1Gi"))
    assert next_step(a_shrink(pod, Phase.HOLDING), lowered, Idle(), HALF, START, SETTINGS, halted=AbortReason.PAUSED) == Keep()


HALF = ContainerResources(Amounts(1000, 512 << 20), Amounts(None, 1 << 30))


def a_shrink(pod, phase):
    shrink = new_shrink(pod, ShrinkNeed("app", 1 << 30, pod.desired("app"), 512 << 20), (), SETTINGS)
    metadata = msgspec.structs.replace(shrink.metadata, creation_timestamp=format_time(START))
    status = msgspec.structs.replace(shrink.status, phase=phase, held_time=format_time(START))
    return msgspec.structs.replace(shrink, metadata=metadata, status=status)
