"""Checkpoints: what upstream reads and writes, and what ours add so that nothing is lost."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import ObjectKey, ObjectMeta
from vpa_ippr.api.series import ContainerRef
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.api.vpa import CheckpointSpec, CheckpointStatus, HistogramCheckpoint, VpaCheckpoint
from vpa_ippr.usage.checkpoint import ANNOTATION_STATE, StoredState, load_checkpoint, save_checkpoint
from vpa_ippr.usage.container import DAY_SECONDS, AggregateState, ContainerState, UsageRules, add_cpu, add_memory, add_oom, aggregate

T = 1_767_225_600.0
MIB = 1024.0 * 1024.0
RULES = UsageRules()
VPA = ObjectKey("shop", "web")
POD = ContainerRef("shop", "web-1", "app")


def a_state(seed=1, hours=30):
    times = T + 60.0 * np.arange(hours * 60)
    values = np.random.default_rng(seed).uniform(0.1, 2.0, len(times))
    return add_memory(add_cpu(ContainerState.empty(RULES), times, values), times, values * 1e9)


def stored(instances, read_through=T + 30 * 3600.0):
    return StoredState(AggregateState.empty(RULES), instances, read_through)


def save(instances, live, now=T + 30 * 3600.0):
    return save_checkpoint(VPA, "app", stored(instances), live=live, now=now)


def at_one_time(histogram):
    """Weights that can be compared although the histograms' reference times differ."""
    return histogram.weights * 2.0 ** ((histogram.reference - T) / histogram.half_life_seconds)


def test_checkpoint_names_its_vpa_and_container():
    checkpoint = save({POD: a_state()}, {POD})
    assert (checkpoint.metadata.namespace, checkpoint.metadata.name) == ("shop", "web-app")
    assert (checkpoint.spec.vpa_object_name, checkpoint.spec.container_name) == ("web", "app")
    assert checkpoint.status.version == "v3"
    assert checkpoint.status.total_samples_count == 1800
    assert checkpoint.status.first_sample_start == format_time(T)
    assert checkpoint.status.last_sample_start == format_time(T + 1799 * 60)


@pytest.mark.parametrize(("is_live", "peaks"), [(True, 1), (False, 2)], ids=["of a live pod", "of a pod that ended"])
def test_running_peak_is_left_out_while_it_can_still_grow(is_live, peaks):
    checkpoint = save({POD: a_state()}, {POD} if is_live else set())
    weights = checkpoint.status.memory_histogram
    # The first day's peak weighs 1 at its reference, the second's 2.
    assert weights.total_weight == pytest.approx({1: 1.0, 2: 3.0}[peaks])


def test_restored_state_goes_on_as_if_nothing_had_happened():
    state, other = a_state(), a_state(2)
    both = {POD: state, ContainerRef("shop", "web-2", "app"): other}
    loaded = load_checkpoint(save(both, set(both)), RULES)
    before = aggregate(AggregateState.empty(RULES), both.values())
    after = aggregate(loaded.base, loaded.instances.values())
    assert after.cpu.weights.tolist() == pytest.approx(before.cpu.weights.tolist(), abs=2e-4 * before.cpu.weights.max())
    assert at_one_time(after.memory).tolist() == pytest.approx(at_one_time(before.memory).tolist())
    assert (after.cpu_span, after.memory_span) == (before.cpu_span, before.memory_span)
    assert loaded.read_through == T + 30 * 3600.0
    assert {ref: one.window for ref, one in loaded.instances.items()} == {ref: one.window for ref, one in both.items()}
    assert [one.last_cpu for one in loaded.instances.values()] == [one.last_cpu for one in both.values()]


def test_restored_window_still_grows():
    loaded = load_checkpoint(save({POD: a_state()}, {POD}), RULES)
    grown = add_memory(loaded.instances[POD], np.array([T + 31 * 3600.0]), np.array([9e9]))
    assert aggregate(loaded.base, [grown]).memory.percentile(1.0) > 9e9


def test_peaks_for_which_there_is_no_room_are_not_lost(monkeypatch):
    monkeypatch.setattr("vpa_ippr.usage.checkpoint.MAX_RUNNING_WINDOWS", 1)
    both = {POD: a_state(), ContainerRef("shop", "web-2", "app"): add_memory(a_state(2), np.array([T + 30 * 3600.0]), np.array([9e9]))}
    loaded = load_checkpoint(save(both, set(both)), RULES)
    assert list(loaded.instances) == [POD]
    assert aggregate(loaded.base, loaded.instances.values()).memory.percentile(1.0) > 9e9


def test_oom_kills_are_remembered():
    killed = add_oom(a_state(), T + 30 * 3600.0, int(4000 * MIB))
    assert killed is not None
    loaded = load_checkpoint(save({POD: killed}, {POD}), RULES)
    assert loaded.base.oom_kills == 1
    assert aggregate(loaded.base, loaded.instances.values()).memory.percentile(1.0) >= 4800 * MIB


def test_memory_only_containers_keep_their_history():
    times = T + 60.0 * np.arange(600)
    state = add_memory(ContainerState.empty(RULES), times, np.full(600, 1e9))
    loaded = load_checkpoint(save({POD: state}, {POD}), RULES)
    assert loaded.base.memory_span == state.memory_span
    assert loaded.base.cpu.is_empty


def upstream_checkpoint(**changes):
    status = CheckpointStatus(
        last_update_time=format_time(T),
        version="v3",
        cpu_histogram=HistogramCheckpoint(format_time(T), {"8": 10000, "36": 2500}, 50.0),
        memory_histogram=HistogramCheckpoint(format_time(T), {"19": 10000}, 3.0),
        first_sample_start=format_time(T - 3 * DAY_SECONDS),
        last_sample_start=format_time(T),
        total_samples_count=4320,
    )
    return VpaCheckpoint(
        metadata=ObjectMeta(name="web-app", namespace="shop"),
        spec=CheckpointSpec("web", "app"),
        status=msgspec.structs.replace(status, **changes),
    )


def test_upstream_checkpoint_is_read():
    loaded = load_checkpoint(upstream_checkpoint(), RULES)
    assert loaded.base.cpu.total_weight == 50.0
    assert loaded.base.cpu.weights[[8, 36]].tolist() == [40.0, 10.0]
    assert loaded.base.cpu_span.count == 4320
    assert loaded.read_through == T
    assert not loaded.instances


def test_annotation_does_not_count_once_another_recommender_has_written():
    ours = save({POD: a_state()}, {POD})
    overwritten = msgspec.structs.replace(ours, status=upstream_checkpoint().status)
    loaded = load_checkpoint(overwritten, RULES)
    assert loaded.base.cpu_span.count == 4320
    assert not loaded.instances


@pytest.mark.parametrize(
    ("changes", "reason", "message"),
    [
        ({"version": "v2"}, "CheckpointForeign", "checkpoint shop/web-app has version 'v2': only 'v3' can be read"),
        ({"version": ""}, "CheckpointForeign", "has version ''"),
        ({"total_samples_count": -1}, "CheckpointCorrupt", "status.totalSamplesCount is -1"),
        ({"first_sample_start": "yesterday"}, "CheckpointCorrupt", "checkpoint shop/web-app status: cannot read 'yesterday' as a time"),
        (
            {"cpu_histogram": HistogramCheckpoint(format_time(T), {"176": 1}, 1.0)},
            "CheckpointCorrupt",
            "status.cpuHistogram.bucketWeights has bucket '176'",
        ),
        (
            {"memory_histogram": HistogramCheckpoint(format_time(T), {"1": 1}, -2.0)},
            "CheckpointCorrupt",
            "memoryHistogram.totalWeight is -2",
        ),
    ],
)
def test_checkpoints_that_cannot_be_trusted_are_refused(changes, reason, message):
    with pytest.raises(ValidationError, match=message.replace("(", r"\(")) as caught:
        load_checkpoint(upstream_checkpoint(**changes), RULES)
    assert caught.value.reason == reason


def test_damaged_annotation_is_refused():
    broken = msgspec.structs.replace(
        upstream_checkpoint(), metadata=ObjectMeta(name="web-app", namespace="shop", annotations={ANNOTATION_STATE: '{"readThrough": "x"}'})
    )
    with pytest.raises(ValidationError, match=r"annotation vpa-ippr\.io/usage-state") as caught:
        load_checkpoint(broken, RULES)
    assert caught.value.reason == "CheckpointCorrupt"


def test_empty_checkpoint_is_nothing_known():
    empty = upstream_checkpoint(
        cpu_histogram=HistogramCheckpoint(),
        memory_histogram=HistogramCheckpoint(),
        first_sample_start=None,
        last_sample_start=None,
        total_samples_count=0,
    )
    loaded = load_checkpoint(empty, RULES)
    assert loaded.base.cpu.is_empty
    assert loaded.read_through == -math.inf


def test_saving_twice_gives_the_same_status():
    first = save({POD: a_state()}, {POD})
    loaded = load_checkpoint(first, RULES)
    second = save_checkpoint(VPA, "app", replace(loaded), live={POD}, now=T + 30 * 3600.0)
    assert second.status.cpu_histogram.bucket_weights == first.status.cpu_histogram.bucket_weights
    assert second.status.memory_histogram == first.status.memory_histogram
    assert second.status.total_samples_count == first.status.total_samples_count
    assert second.metadata.annotations == first.metadata.annotations
