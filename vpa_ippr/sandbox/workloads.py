"""What simulated containers use: formulas and traces, chosen by an annotation of the pod.

``sandbox.vpa-ippr.io/workload`` holds a JSON object with an entry for each container::

    {"app": {"seed": 1,
             "cpu": [{"kind": "daily", "low": "50m", "high": "400m"},
                     {"kind": "burst", "height": "300m", "everySeconds": 900, "forSeconds": 60}],
             "anon": [{"kind": "steady", "level": "120Mi", "noise": 0.05}, {"kind": "leak", "perHour": "10Mi"}],
             "fileCold": [{"kind": "steady", "level": "400Mi"}]}}

The parts of one use are added up. Every part is a function of time alone, so that the length of the simulation's steps changes nothing;
noise comes from a table that the seed decides. A process that is killed starts again at its initial footprint, because leaks and ramps
count from the start of the process; traces count from ``startTime`` of the simulation and go on as if nothing had happened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from vpa_ippr.api.errors import QuantityError, ValidationError
from vpa_ippr.api.quantity import parse_bytes, parse_millicores
from vpa_ippr.sandbox.pagecache import MIB, Demand

ANNOTATION_WORKLOAD = "sandbox.vpa-ippr.io/workload"
DAY_SECONDS = 86_400.0
# The longest step of the simulation: how late a kubelet of the sandbox may notice a kill.
COARSE_STEP_SECONDS = 15.0
NOISE_KNOT_SECONDS = 60.0
NOISE_KNOTS = 1024
KERNEL_BYTES = MIB

QuantityText = str | int | float
Use = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What a workload knows of its process: when it started (seconds), and the memory limit that it saw then."""

    started_at: float
    memory_limit_bytes: int | None = None


class Workload(Protocol):
    """What one container's processes want, and when they end."""

    step_seconds: float
    """The longest step that still sees every change of use."""
    finishes_after_seconds: float | None
    exit_code: int

    def usage(self, moment: float, state: ProcessState) -> Demand:
        """The demand at ``moment`` (seconds since the epoch)."""
        ...


class Steady(msgspec.Struct, frozen=True, tag_field="kind", tag="steady", rename="camel", forbid_unknown_fields=True):
    """One level, with relative noise (standard deviation)."""

    level: QuantityText
    noise: float = 0.0


class Daily(msgspec.Struct, frozen=True, tag_field="kind", tag="daily", rename="camel", forbid_unknown_fields=True):
    """A wave between two levels with its top at ``peakHour`` UTC of each day."""

    low: QuantityText
    high: QuantityText
    peak_hour: float = 14.0
    noise: float = 0.0


class Leak(msgspec.Struct, frozen=True, tag_field="kind", tag="leak", rename="camel", forbid_unknown_fields=True):
    """Growth without end from the start of the process."""

    per_hour: QuantityText


class Burst(msgspec.Struct, frozen=True, tag_field="kind", tag="burst", rename="camel", forbid_unknown_fields=True):
    """``height`` more during ``forSeconds`` of every ``everySeconds``."""

    height: QuantityText
    every_seconds: float
    for_seconds: float
    offset_seconds: float = 0.0


class Ramp(msgspec.Struct, frozen=True, tag_field="kind", tag="ramp", rename="camel", forbid_unknown_fields=True):
    """Growth from 0 to ``height`` in the first ``overSeconds`` of the process, then level: a heap that is never given back."""

    height: QuantityText
    over_seconds: float


class LimitShare(msgspec.Struct, frozen=True, tag_field="kind", tag="limitShare", rename="camel", forbid_unknown_fields=True):
    """A share of the memory limit that the process saw at its start, as ``-XX:MaxRAMPercentage`` takes; 0 without a limit."""

    share: float


class Shift(msgspec.Struct, frozen=True, tag_field="kind", tag="shift", rename="camel", forbid_unknown_fields=True):
    """``height`` more between two times of the process' life; without ``untilSeconds`` for good."""

    height: QuantityText
    from_seconds: float
    until_seconds: float | None = None


class Trace(msgspec.Struct, frozen=True, tag_field="kind", tag="trace", rename="camel", forbid_unknown_fields=True):
    """Recorded values, ``stepSeconds`` apart from ``startTime`` (seconds since the epoch); from the end it starts over."""

    values: list[float]
    step_seconds: float
    start_time: float = 0.0


Part = Steady | Daily | Leak | Burst | Ramp | LimitShare | Shift | Trace


class ContainerWorkload(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The annotation's entry for one container: the parts of each kind of use. Memory in bytes, CPU in cores, as quantities."""

    seed: int = 0
    cpu: list[Part] = []
    anon: list[Part] = []
    shmem: list[Part] = []
    locked: list[Part] = []
    file_hot: list[Part] = []
    file_cold: list[Part] = []
    slab: list[Part] = []
    cold_reread_per_second: QuantityText = 0
    mapped: bool = False
    finishes_after_seconds: float | None = None
    exit_code: int = 0


IDLE = ContainerWorkload(cpu=[Steady(level="1m")], anon=[Steady(level="8Mi")])


class FormulaWorkload:
    """A ``Workload`` of parts that are added up.

    Raises:
        ValidationError: a quantity or a time of a part cannot be used.
    """

    def __init__(self, spec: ContainerWorkload) -> None:
        self.finishes_after_seconds = spec.finishes_after_seconds
        self.exit_code = spec.exit_code
        self.step_seconds = min([COARSE_STEP_SECONDS, *(_step_of(part) for part in _parts(spec))])
        noise = _noise_tables(spec.seed)
        self._cpu = _add([_compile(part, parse_millicores, 1000.0, noise()) for part in spec.cpu])
        self._memory = {
            name: _add([_compile(part, parse_bytes, 1.0, noise()) for part in parts])
            for name, parts in (
                ("anon_bytes", spec.anon),
                ("shmem_bytes", spec.shmem),
                ("locked_bytes", spec.locked),
                ("file_hot_bytes", spec.file_hot),
                ("file_cold_bytes", spec.file_cold),
                ("slab_bytes", spec.slab),
            )
            if parts
        }
        self._limit_share = sum(part.share for part in spec.anon if isinstance(part, LimitShare))
        if sum(isinstance(part, LimitShare) for part in _parts(spec)) > sum(isinstance(part, LimitShare) for part in spec.anon):
            raise ValidationError("limitShare is a part of anon only", reason="BadWorkload")
        self._reread = float(parse_bytes(spec.cold_reread_per_second))
        self._mapped = spec.mapped

    def usage(self, moment: float, state: ProcessState) -> Demand:
        """The sum of the parts; never below 0."""
        age = moment - state.started_at
        memory = {name: use(moment, age) for name, use in self._memory.items()}
        if self._limit_share:
            memory["anon_bytes"] += self._limit_share * (state.memory_limit_bytes or 0)
        return Demand(
            cpu_millicores=self._cpu(moment, age),
            kernel_bytes=KERNEL_BYTES,
            cold_reread_bytes_per_second=self._reread,
            mapped=self._mapped,
            **memory,
        )


def parse_workloads(annotations: Mapping[str, str]) -> dict[str, ContainerWorkload]:
    """The workloads that a pod's annotations choose, by container; containers that are not named are idle.

    Raises:
        ValidationError: the annotation is not what the module's documentation says; the message quotes the place.
    """
    text = annotations.get(ANNOTATION_WORKLOAD)
    if text is None:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, ContainerWorkload])
        for spec in found.values():
            FormulaWorkload(spec)
    except (msgspec.DecodeError, msgspec.ValidationError, QuantityError, ValidationError) as error:
        raise ValidationError(f"annotation {ANNOTATION_WORKLOAD}: {error}", reason="BadWorkload") from error
    return found


def _add(uses: list[Use]) -> Use:
    """The sum of the parts, never below 0."""
    if len(uses) == 1:
        only = uses[0]
        return lambda moment, age: max(0.0, only(moment, age))
    return lambda moment, age: max(0.0, sum(use(moment, age) for use in uses))


def _noise_tables(seed: int) -> Callable[[], list[float]]:
    """Gives at each call another table of normal deviates, which time runs through."""
    generator = np.random.default_rng(seed)

    def draw() -> list[float]:
        values: list[float] = generator.standard_normal(NOISE_KNOTS).tolist()
        return values

    return draw


def _noise_at(table: list[float], moment: float) -> float:
    position = moment / NOISE_KNOT_SECONDS
    knot = math.floor(position)
    share = position - knot
    return table[knot % NOISE_KNOTS] * (1 - share) + table[(knot + 1) % NOISE_KNOTS] * share


def _parts(spec: ContainerWorkload) -> list[Part]:
    return [*spec.cpu, *spec.anon, *spec.shmem, *spec.locked, *spec.file_hot, *spec.file_cold, *spec.slab]


def _step_of(part: Part) -> float:
    if isinstance(part, Burst):
        return max(1.0, part.for_seconds / 2)
    return COARSE_STEP_SECONDS


def _positive(value: float, name: str) -> float:
    if not value > 0:
        raise ValidationError(f"{name} is {value}: it must be above 0", reason="BadWorkload")
    return value


def _compile(part: Part, read: Callable[[object], int], trace_scale: float, table: list[float]) -> Use:
    """The part as a function of the moment and the age of the process, in millicores or bytes."""
    match part:
        case Steady():
            return _steady(read(part.level), part.noise, table)
        case Daily():
            return _daily(part, read(part.low), read(part.high), table)
        case Leak():
            per_second = read(part.per_hour) / 3600
            return lambda _moment, age: per_second * age
        case Burst():
            return _burst(part, read(part.height))
        case Ramp():
            height, over = read(part.height), _positive(part.over_seconds, "overSeconds")
            return lambda _moment, age: height * min(1.0, age / over)
        case Shift():
            return _shift(part, read(part.height))
        case Trace():
            return _trace(part, trace_scale)
        case LimitShare():
            return _nothing


def _nothing(_moment: float, _age: float) -> float:
    """What depends on the limit is added by the workload, which knows it."""
    return 0.0


def _steady(level: float, noise: float, table: list[float]) -> Use:
    if not noise:
        return lambda _moment, _age: level
    return lambda moment, _age: level * (1 + noise * _noise_at(table, moment))


def _daily(part: Daily, low: float, high: float, table: list[float]) -> Use:
    middle, half = (low + high) / 2, (high - low) / 2
    top_seconds, noise = part.peak_hour * 3600, part.noise

    def use(moment: float, _age: float) -> float:
        wave = middle + half * math.cos((moment - top_seconds) / DAY_SECONDS * math.tau)
        return wave * (1 + noise * _noise_at(table, moment)) if noise else wave

    return use


def _burst(part: Burst, height: float) -> Use:
    every, length, offset = _positive(part.every_seconds, "everySeconds"), part.for_seconds, part.offset_seconds
    return lambda _moment, age: height if (age - offset) % every < length and age >= offset else 0.0


def _shift(part: Shift, height: float) -> Use:
    begin, end = part.from_seconds, math.inf if part.until_seconds is None else part.until_seconds
    return lambda _moment, age: height if begin <= age < end else 0.0


def _trace(part: Trace, scale: float) -> Use:
    if not part.values:
        raise ValidationError("a trace has no values", reason="BadWorkload")
    values, step = [value * scale for value in part.values], _positive(part.step_seconds, "stepSeconds")
    start, count = part.start_time, len(part.values)
    return lambda moment, _age: values[int((moment - start) // step) % count]
