"""Evidence on the steps of container instances: the demand and the need behind their use, and what is kept of it to say why.

A point of evidence at ``t`` stands for the time until then, so it tells of the step that ends at ``t``: when a step is closed, its evidence
is there. A step without evidence counts as it was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.series import EvidenceKind, EvidenceSeries, Floats
from vpa_ippr.usage.evidence import (
    Bools,
    CpuCensoring,
    EvidenceRules,
    MemoryNeed,
    MemoryParts,
    MemoryTightness,
    NeedReason,
    judge_cpu,
    judge_need,
    judge_pressure,
)

_KINDS: Final = {kind: row for row, kind in enumerate(EvidenceKind)}
_CPU_ROWS: Final = [_KINDS[EvidenceKind.CPU_THROTTLED], _KINDS[EvidenceKind.CPU_PRESSURE]]
_MEMORY_ROWS: Final = [
    _KINDS[kind]
    for kind in (
        EvidenceKind.RSS,
        EvidenceKind.MAPPED_FILE,
        EvidenceKind.ACTIVE_FILE,
        EvidenceKind.FILE_REFAULTS,
        EvidenceKind.RECLAIMED,
        EvidenceKind.MEMORY_PRESSURE,
    )
]
# Rows of notes: a factor (CPU) or bytes of page cache that do not count (memory); of memory the working set and a ``NeedReason``; shares.
_AMOUNT, _USED, _REASON, _PRESSURE, _THROTTLED = range(5)
_OF_ONE, _OF_ALL = slice(0, 3), slice(3, 5)


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """Steps of one resource as they count, a row an instance.

    ``values`` and ``short``, whether it was short in each: (instances, steps). ``notes`` on them, see ``Notes``: (5, instances, steps).
    ``known``: whether there was any evidence on an instance.
    """

    values: Floats
    short: Bools
    notes: Floats
    known: Bools

    @property
    def spare_bytes(self) -> list[float]:
        """Of memory: what did not count of each instance's last step."""
        spare: list[float] = np.nan_to_num(self.notes[_AMOUNT, :, -1]).tolist()
        return spare


def evidence_table(evidence: Sequence[Sequence[EvidenceSeries]], begin: int, end: int, step_seconds: float) -> Floats | None:
    """The evidence on each instance in the steps ``begin <= n < end``: (kinds, instances, steps); None without any.

    Of the points in a step the last counts.
    """
    series = [one for own in evidence for one in own]
    if not series or begin >= end:
        return None
    times = np.concatenate([one.timestamps for one in series])
    place = np.ceil(times / step_seconds).astype(np.int64) - 1 - begin
    inside = (place >= 0) & (place < end - begin)
    if not inside.any():
        return None
    where = [(_KINDS[one.kind], row) for row, own in enumerate(evidence) for one in own]
    kinds, rows = np.repeat(where, [len(one.timestamps) for one in series], axis=0).T
    table = np.full((len(_KINDS), len(evidence), end - begin), np.nan)
    table[kinds[inside], rows[inside], place[inside]] = np.concatenate([one.values for one in series])[inside]
    return table


def judged_cpu(cores: Floats, table: Floats, rules: EvidenceRules) -> Judged | None:
    """The demand behind the use, which is (instances, steps) as the evidence is; None without evidence."""
    throttled, waiting = table[_CPU_ROWS]
    known = np.asarray(~np.isnan([throttled, waiting]).all(axis=(0, 2)))
    if not known.any():
        return None
    judged = judge_cpu(cores, throttled, waiting, rules.cpu)
    uplift = judged.uplift
    notes = np.full((5, *cores.shape), np.nan)
    notes[_AMOUNT], notes[_PRESSURE], notes[_THROTTLED] = uplift, waiting, throttled
    return Judged(np.where(np.isnan(uplift), cores, cores * uplift), judged.censored, notes, known)


def judged_memory(working_set: Floats, table: Floats, rules: EvidenceRules, step_seconds: float) -> Judged | None:
    """The need behind the working set, which is (instances, steps) as the evidence is; None without evidence."""
    rows = table[_MEMORY_ROWS]
    known = np.asarray(~np.isnan(rows).all(axis=0))
    if not known.any():
        return None
    need = judge_need(MemoryParts(working_set, *rows), step_seconds, rules=rules.memory)
    notes = np.full((5, *working_set.shape), np.nan)
    notes[_AMOUNT], notes[_USED], notes[_REASON], notes[_PRESSURE] = working_set - need.need_bytes, working_set, need.reason, rows[-1]
    notes[:, ~known] = np.nan
    return Judged(need.need_bytes, judge_pressure(rows[-1], rules.memory).tight, notes, np.asarray(known.any(axis=1)))


@dataclass(frozen=True, eq=False)
class Notes:
    """What evidence said of the last steps of one resource of a container; NaN where there was none.

    The shares are the largest over the instances; the rest is of the instance that counts in the step. What is asked of them is
    worked out once: they are asked in every cycle, and change every five minutes.
    """

    rules: EvidenceRules
    rows: NDArray[np.float32]

    @cached_property
    def censoring(self) -> CpuCensoring:
        """Of CPU: how the steps were judged, as one row."""
        uplift = np.where(np.isnan(self.rows[_AMOUNT]), 1.0, self.rows[_AMOUNT].astype(np.float64))
        throttled, waiting = self.rows[_THROTTLED].astype(np.float64), self.rows[_PRESSURE].astype(np.float64)
        rules = self.rules.cpu
        return CpuCensoring(
            uplift[None], (throttled > rules.throttled_share_bound)[None], (waiting > rules.pressure_share_bound)[None]
        )  # fmt: skip

    @cached_property
    def uplifted_share(self) -> float | None:
        """Of CPU: the share of the steps with evidence that count more than was used; None without any."""
        known = int(np.count_nonzero(np.isfinite(self.rows[_AMOUNT])))
        return int(np.count_nonzero(self.rows[_AMOUNT] > 1.0)) / known if known else None

    @cached_property
    def throttled_share(self) -> float | None:
        """Of CPU: the largest share of periods that was cut off; None without a quota."""
        largest = float(np.fmax.reduce(self.rows[_THROTTLED]))
        return largest if math.isfinite(largest) else None

    @cached_property
    def tightness(self) -> MemoryTightness:
        """Of memory: in which steps it was short, as one row."""
        return judge_pressure(self.rows[_PRESSURE].astype(np.float64)[None], self.rules.memory)

    @cached_property
    def need(self) -> MemoryNeed | None:
        """Of memory: how the newest step with evidence was judged; None without any."""
        known = np.flatnonzero(self.rows[_REASON] > float(NeedReason.NOT_MEASURED))
        if not len(known):
            return None
        spare, used, reason = self.rows[_OF_ONE, known[-1:]].astype(np.float64)
        return MemoryNeed((used - spare)[None], used[None], reason.astype(np.int8)[None])


def joined_notes(
    before: Notes | None, parts: Sequence[Floats | None], pods: NDArray[np.int64], rules: EvidenceRules, keep: int
) -> Notes | None:
    """With the notes on the newest steps, one part an instance; ``pods`` says for each step which of them counts."""
    known = [(index, part) for index, part in enumerate(parts) if part is not None]
    if before is None and not known:
        return None
    fresh = np.full((5, len(pods)), np.nan, dtype=np.float32)
    for index, part in known:
        fresh[_OF_ONE, pods == index] = part[_OF_ONE, pods == index]
        fresh[_OF_ALL] = np.fmax(fresh[_OF_ALL], part[_OF_ALL])
    rows = fresh if before is None else np.concatenate((before.rows, fresh), axis=1)
    return Notes(rules, rows[:, -keep:].copy())
