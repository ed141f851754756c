"""The ensemble's memory as something to move about: rows for other containers, and one container's as bytes.

A dump says nothing of shapes: the rules tell them, and a fingerprint tells whether they are the rules it was written under. What was
forecast is kept in single precision, in memory as well as in a dump, so that a state that was stored goes on bit for bit as one that was
not.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from vpa_ippr.api.errors import ValidationError
from vpa_ippr.api.series import Floats
from vpa_ippr.forecast.conformal import Calibration
from vpa_ippr.forecast.ensemble import EnsembleDecider, EnsembleState, Issue, needed_forecasters
from vpa_ippr.forecast.forecasters import ProfileModel
from vpa_ippr.forecast.rules import ResourceEnsemble
from vpa_ippr.forecast.selection import NOBODY, Selection

STATE_SCHEMA: Final = "vpa-ippr/ensemble-state/v1"
_FINGERPRINT_LENGTH: Final = 16
# Not one value a series: the cost that is expected of each expert.
_SHARED: Final = frozenset({"prior"})
# NaN where nothing has been seen or said yet.
_MAY_BE_UNKNOWN: Final = frozenset({"covered", "covered_raw", "held"})

_Part = TypeVar("_Part", Calibration, Selection)


def fingerprint(rules: ResourceEnsemble, model: ProfileModel | None) -> str:
    """What a state belongs to: the rules of its resource and, where an expert asks it, the model."""
    content = msgspec.json.encode(rules, order="deterministic")
    if model is not None and "gradient-boosting" in needed_forecasters([rules]):
        content += model.sha256.encode()
    return hashlib.sha256(content).hexdigest()[:_FINGERPRINT_LENGTH]


def rounded(state: EnsembleState) -> EnsembleState:
    """The state with what was said last in single precision; to be applied after every step."""
    pending = {
        group: (*waiting[:-1], Issue(_single(waiting[-1].raw), _single(waiting[-1].issued))) if waiting else ()
        for group, waiting in state.pending.items()
    }
    return replace(state, pending=pending)


def take(state: EnsembleState, rows: Sequence[int]) -> EnsembleState:
    """For other series: ``rows[i]`` becomes row i; -1 stands for one that is new, which begins with what the others have learned."""
    index = np.asarray(rows, dtype=np.int64).reshape(-1)
    return EnsembleState(
        calibrations={group: calibration.take(rows) for group, calibration in state.calibrations.items()},
        pending={
            group: tuple(Issue(_moved(issue.raw, index), _moved(issue.issued, index)) for issue in waiting)
            for group, waiting in state.pending.items()
        },
        selection=None if state.selection is None else state.selection.take(rows),
        named=_moved(state.named, index),
    )


def joined(states: Sequence[EnsembleState]) -> EnsembleState:
    """One state of all series, in that order; one or more states of the same rules and the same hour."""
    first = states[0]
    if len(states) == 1:
        return first
    selections = [state.selection for state in states if state.selection is not None]
    return EnsembleState(
        calibrations={group: _stacked([state.calibrations[group] for state in states]) for group in first.calibrations},
        pending={group: _stacked_issues([state.pending[group] for state in states], states) for group in first.pending},
        selection=_stacked(selections) if selections else None,
        named=np.concatenate([state.named for state in states]),
    )


def interrupted(state: EnsembleState) -> EnsembleState:
    """After hours that nobody decided: what was learned stays, what waits for an outcome is dropped."""
    return replace(state, pending=dict.fromkeys(state.pending, ()), named=np.full_like(state.named, np.nan))


def dump_state(state: EnsembleState, index: int, mark: str) -> bytes:
    """One series as JSON; ``mark`` is the fingerprint of the rules."""
    one = take(state, [index])
    said = [values for waiting in one.pending.values() for issue in waiting for values in (issue.raw[0], issue.issued[0])]
    dump = _Dump(
        STATE_SCHEMA,
        mark,
        waiting=tuple(len(waiting) for waiting in one.pending.values()),
        learned=_pack([*(getattr(part, name)[0] for part in _parts(one) for name in _arrays(part)), one.named[0]], "<f8"),
        said=_pack(said, "<f4"),
    )
    return msgspec.json.encode(dump)


def load_state(data: bytes, decider: EnsembleDecider, mark: str) -> EnsembleState:
    """The inverse of ``dump_state``: a state of one series.

    Raises:
        ValidationError: ``ProfileChanged`` (it was written under other rules or another model) or ``ModelCorrupt``.
    """
    try:
        dump = msgspec.json.decode(data, type=_Dump)
    except msgspec.DecodeError as error:
        raise _corrupt(str(error)) from error
    if dump.schema != STATE_SCHEMA:
        raise _corrupt(f"schema {dump.schema!r}")
    if dump.mark != mark:
        raise ValidationError("the ensemble's state was written under other rules or another model", reason="ProfileChanged")
    start = decider.start(1)
    learned, said = _Reader(dump.learned, "<f8"), _Reader(dump.said, "<f4")
    calibrations = {group: _read(calibration, learned) for group, calibration in start.calibrations.items()}
    selection = None if start.selection is None else _read(start.selection, learned)
    if selection is not None and not NOBODY <= int(selection.chosen[0]) < start.named.shape[1]:
        raise _corrupt(f"expert {int(selection.chosen[0])}")
    named = learned.next((1, start.named.shape[1]))
    if len(dump.waiting) != len(start.pending):
        raise _corrupt(f"{len(dump.waiting)} groups")
    pending = {}
    for (group, levels), count in zip(decider.groups.items(), dump.waiting, strict=True):
        if not 0 <= count <= group[1].hours:
            raise _corrupt(f"{count} issues wait")
        shape = (1, len(levels))
        pending[group] = tuple(Issue(said.next(shape), said.next(shape)) for _ in range(count))
    learned.end()
    said.end()
    return EnsembleState(calibrations, pending, selection, named)


class _Dump(msgspec.Struct, frozen=True):
    schema: str
    mark: str
    waiting: tuple[int, ...]
    learned: str
    said: str


class _Reader:
    """Takes arrays off a base64 text one after the other."""

    def __init__(self, text: str, form: str) -> None:
        try:
            self._values = np.frombuffer(base64.b64decode(text, validate=True), dtype=form).astype(np.float64)
        except ValueError as error:
            raise _corrupt(str(error)) from error

    def next(self, shape: tuple[int, ...]) -> Floats:
        count = int(np.prod(shape))
        if len(self._values) < count:
            raise _corrupt("it ends early")
        taken, self._values = self._values[:count], self._values[count:]
        return taken.reshape(shape)

    def end(self) -> None:
        if len(self._values):
            raise _corrupt(f"{len(self._values)} values too many")


def _read(start: _Part, learned: _Reader) -> _Part:
    found = {}
    for name in _arrays(start):
        values = learned.next(getattr(start, name).shape)
        if name not in _MAY_BE_UNKNOWN and not np.isfinite(values).all():
            raise _corrupt(f"{name} is not finite")
        found[name] = values.astype(getattr(start, name).dtype)
    return _having(start, found)


def _parts(state: EnsembleState) -> list[Calibration | Selection]:
    return [*state.calibrations.values(), *([] if state.selection is None else [state.selection])]


def _arrays(part: Calibration | Selection) -> list[str]:
    """Names of what it holds for each series."""
    return [entry.name for entry in fields(part) if isinstance(getattr(part, entry.name), np.ndarray) and entry.name not in _SHARED]


def _stacked(parts: Sequence[_Part]) -> _Part:
    return _having(parts[0], {name: np.concatenate([getattr(part, name) for part in parts]) for name in _arrays(parts[0])})


def _having(part: _Part, arrays: Mapping[str, NDArray[Any]]) -> _Part:
    return replace(part, **arrays)  # type: ignore[arg-type]  # only the names that _arrays gives


def _stacked_issues(waiting: Sequence[tuple[Issue, ...]], states: Sequence[EnsembleState]) -> tuple[Issue, ...]:
    """Issues of the same moments beside each other; a series that has fewer said nothing in the earlier ones."""
    longest = max(waiting, key=len)
    stacked = []
    for age in range(len(longest), 0, -1):
        levels = longest[-age].raw.shape[1]
        nothing = [np.full((len(state), levels), np.nan) for state in states]
        raw = [own[-age].raw if age <= len(own) else unknown for own, unknown in zip(waiting, nothing, strict=True)]
        issued = [own[-age].issued if age <= len(own) else unknown for own, unknown in zip(waiting, nothing, strict=True)]
        stacked.append(Issue(np.concatenate(raw), np.concatenate(issued)))
    return tuple(stacked)


def _moved(values: Floats, index: NDArray[np.int64]) -> Floats:
    padded = np.concatenate((values, np.full((1, values.shape[1]), np.nan)))
    return padded[np.where(index < 0, len(values), index)]


def _single(values: Floats) -> Floats:
    return values.astype(np.float32).astype(np.float64)


def _pack(arrays: Sequence[Floats], form: str) -> str:
    values = np.concatenate([np.atleast_1d(array) for array in arrays]) if arrays else np.empty(0)
    return base64.b64encode(values.astype(form).tobytes()).decode()


def _corrupt(why: str) -> ValidationError:
    return ValidationError(f"not an ensemble's state: {why}", reason="ModelCorrupt")
