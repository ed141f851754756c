"""The state of a container as an upstream checkpoint (``v3``), and back.

The status is upstream's: weights scaled so that the heaviest bucket is 10000, and the peaks of intervals that still run left out. What
upstream loses that way is kept in an annotation: the running peaks of live pods, exact sample times, and the moment up to which usage has
been read. It counts only together with the status it was written with, so an upstream recommender may take over in between.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.meta import ObjectKey, ObjectMeta
from vpa_ippr.api.names import OWN_GROUP
from vpa_ippr.api.series import ContainerRef
from vpa_ippr.api.timestamps import format_time, parse_time
from vpa_ippr.api.vpa import CheckpointSpec, CheckpointStatus, HistogramCheckpoint, VpaCheckpoint
from vpa_ippr.usage.container import AggregateState, ContainerState, PeakWindow, SampleSpan, UsageRules, fold
from vpa_ippr.usage.histogram import DecayingHistogram

ANNOTATION_STATE: Final = f"{OWN_GROUP}/usage-state"
SUPPORTED_VERSION: Final = "v3"
MAX_BUCKET_WEIGHT: Final = 10_000
# An annotation may hold 256 KiB in all; a running window takes about 90 bytes.
MAX_RUNNING_WINDOWS: Final = 1_500


class _Running(msgspec.Struct, frozen=True, array_like=True):
    pod: str
    end: float
    memory_peak: float
    oom_peak: float
    last_cpu: float | None
    last_memory: float | None


class _Extra(msgspec.Struct, frozen=True, rename="camel"):
    last_update_time: str
    read_through: float
    cpu_first: float | None = None
    cpu_last: float | None = None
    memory_count: int = 0
    memory_first: float | None = None
    memory_last: float | None = None
    oom_kills: int = 0
    running: list[_Running] = []


@dataclass(frozen=True, slots=True, eq=False)
class StoredState:
    """A container's state as a checkpoint holds it; samples up to ``read_through`` (seconds) are in it.

    ``goes_first``: it knows what the history cannot tell any more, however far that goes back.
    """

    base: AggregateState
    instances: Mapping[ContainerRef, ContainerState]
    read_through: float
    goes_first: bool = False


def save_histogram(histogram: DecayingHistogram) -> HistogramCheckpoint:
    """The histogram with its weights scaled to at most 10000; buckets that round to 0 are left out."""
    reference = format_time(histogram.reference) if histogram.reference is not None else None
    occupied = histogram.occupied
    weights: dict[str, int] = {}
    if occupied is not None:
        first, last = occupied
        held = histogram.weights[first : last + 1]
        scaled = np.floor(held * (MAX_BUCKET_WEIGHT / held.max()) + 0.5).astype(int).tolist()
        weights = {str(first + offset): weight for offset, weight in enumerate(scaled) if weight > 0}
    return HistogramCheckpoint(reference_timestamp=reference, bucket_weights=weights, total_weight=histogram.total_weight)


def load_histogram(saved: HistogramCheckpoint, empty: DecayingHistogram, where: str) -> DecayingHistogram:
    """The histogram that was saved, in the buckets and half-life of ``empty``.

    Raises:
        ValidationError: a bucket is out of range, or a weight is negative or not finite; the message begins with ``where``.
    """
    if not (math.isfinite(saved.total_weight) and saved.total_weight >= 0):
        raise _corrupt(f"{where}.totalWeight is {saved.total_weight}: expected a number from 0 up")
    weights = np.zeros(empty.options.count)
    for text, weight in saved.bucket_weights.items():
        if not (text.isascii() and text.isdigit() and int(text) < empty.options.count):
            raise _corrupt(f"{where}.bucketWeights has bucket {text!r}: expected 0 to {empty.options.count - 1}")
        if weight < 0:
            raise _corrupt(f"{where}.bucketWeights[{text}] is {weight}: expected a number from 0 up")
        weights[int(text)] = weight
    total = float(weights.sum())
    if not total or saved.reference_timestamp is None:
        return empty
    return replace(
        empty,
        weights=weights * (saved.total_weight / total),
        total_weight=saved.total_weight,
        reference=parse_time(saved.reference_timestamp),
    )


def save_checkpoint(
    vpa: ObjectKey,
    container: str,
    stored: StoredState,
    *,
    live: Collection[ContainerRef],
    now: float,
) -> VpaCheckpoint:
    """The checkpoint of one container of a VPA; as upstream, the running peaks of ``live`` instances are not in its histogram.

    With more live instances than the annotation can hold, the running peaks of the rest are: better counted twice than lost.
    """
    running = [(ref, state) for ref, state in stored.instances.items() if _is_running(state, now) and ref in live][:MAX_RUNNING_WINDOWS]
    apart, total = {ref for ref, _ in running}, stored.base
    for ref, state in stored.instances.items():
        total = fold(total, state, closed_before=now if ref in apart else math.inf)
    status = CheckpointStatus(
        last_update_time=format_time(now),
        version=SUPPORTED_VERSION,
        cpu_histogram=save_histogram(total.cpu),
        memory_histogram=save_histogram(total.memory),
        first_sample_start=_optional_time(total.cpu_span.first),
        last_sample_start=_optional_time(total.cpu_span.last),
        total_samples_count=total.cpu_span.count,
    )
    extra = _Extra(
        last_update_time=format_time(now),
        read_through=stored.read_through,
        cpu_first=total.cpu_span.first,
        cpu_last=total.cpu_span.last,
        memory_count=total.memory_span.count,
        memory_first=total.memory_span.first,
        memory_last=total.memory_span.last,
        oom_kills=total.oom_kills,
        running=list(_pack(running)),
    )
    return VpaCheckpoint(
        metadata=ObjectMeta(
            name=f"{vpa.name}-{container}",
            namespace=vpa.namespace,
            annotations={ANNOTATION_STATE: msgspec.json.encode(extra).decode()},
        ),
        spec=CheckpointSpec(vpa_object_name=vpa.name, container_name=container),
        status=status,
    )


def load_checkpoint(checkpoint: VpaCheckpoint, rules: UsageRules) -> StoredState:
    """The state that a checkpoint holds, ours or an upstream recommender's.

    Raises:
        ValidationError: another version (reason ``CheckpointForeign``) or damaged data (``CheckpointCorrupt``).
    """
    status, name = checkpoint.status, f"{checkpoint.metadata.namespace}/{checkpoint.metadata.name}"
    if status.version != SUPPORTED_VERSION:
        raise ValidationError(
            f"checkpoint {name} has version {status.version!r}: only {SUPPORTED_VERSION!r} can be read", reason="CheckpointForeign"
        )
    where = f"checkpoint {name} status"
    if status.total_samples_count < 0:
        raise _corrupt(f"{where}.totalSamplesCount is {status.total_samples_count}: expected a number from 0 up")
    try:
        first, last = _read_time(status.first_sample_start), _read_time(status.last_sample_start)
        cpu = load_histogram(status.cpu_histogram, rules.empty_cpu(), f"{where}.cpuHistogram")
        memory = load_histogram(status.memory_histogram, rules.empty_memory(), f"{where}.memoryHistogram")
    except ValidationError as error:
        raise _corrupt(str(error) if str(error).startswith(where) else f"{where}: {error}") from error
    extra = _read_extra(checkpoint)
    if extra is None:
        span = SampleSpan(status.total_samples_count, first, last)
        return StoredState(AggregateState(cpu, memory, span), {}, last if last is not None else -math.inf)
    base = AggregateState(
        cpu,
        memory,
        cpu_span=SampleSpan(status.total_samples_count, extra.cpu_first, extra.cpu_last),
        memory_span=SampleSpan(extra.memory_count, extra.memory_first, extra.memory_last),
        oom_kills=extra.oom_kills,
    )
    container = checkpoint.spec.container_name
    instances = {ContainerRef(checkpoint.metadata.namespace, run.pod, container): _unpack(run, rules) for run in extra.running}
    return StoredState(base, instances, extra.read_through)


def _is_running(state: ContainerState, now: float) -> bool:
    return state.window is not None and state.window.end > now


def _pack(running: Iterable[tuple[ContainerRef, ContainerState]]) -> Iterable[_Running]:
    for ref, state in running:
        window = state.window
        assert window is not None
        yield _Running(ref.pod, window.end, window.memory_peak, window.oom_peak, _finite(state.last_cpu), _finite(state.last_memory))


def _unpack(run: _Running, rules: UsageRules) -> ContainerState:
    return replace(
        ContainerState.empty(rules),
        window=PeakWindow(run.end, run.memory_peak, run.oom_peak),
        last_cpu=-math.inf if run.last_cpu is None else run.last_cpu,
        last_memory=-math.inf if run.last_memory is None else run.last_memory,
    )


def _read_extra(checkpoint: VpaCheckpoint) -> _Extra | None:
    text = checkpoint.metadata.annotations.get(ANNOTATION_STATE)
    if text is None:
        return None
    try:
        extra = msgspec.json.decode(text, type=_Extra)
    except msgspec.DecodeError as error:
        name = f"{checkpoint.metadata.namespace}/{checkpoint.metadata.name}"
        raise _corrupt(f"checkpoint {name} annotation {ANNOTATION_STATE}: {error}") from error
    return extra if extra.last_update_time == checkpoint.status.last_update_time else None


def _finite(moment: float) -> float | None:
    return moment if math.isfinite(moment) else None


def _optional_time(seconds: float | None) -> str | None:
    return None if seconds is None else format_time(seconds)


def _read_time(text: str | None) -> float | None:
    return None if text is None else parse_time(text)


def _corrupt(message: str) -> ValidationError:
    return ValidationError(message, reason="CheckpointCorrupt")
