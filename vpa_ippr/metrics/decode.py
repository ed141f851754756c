"""From the bytes of a Prometheus answer to labels and float arrays, or to one clear line on why not.

The fast path reads ``[[1700000000, "0.25"], ...]`` straight into pairs of floats. msgspec reads ``"NaN"`` as a float but refuses
``"+Inf"`` and ``"-Inf"``, which Prometheus also sends: only a series that holds one takes the slow path. Series are decoded one at
a time out of the body, so that a large answer never exists as Python objects all at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np

from vpa_ippr.api.errors import SourceError
from vpa_ippr.api.series import Floats

BAD_RESPONSE = "PrometheusBadResponse"
REFUSED = "PrometheusRefused"
FAILED = "PrometheusFailed"

_EXCERPT_CHARACTERS = 120
_NOTHING = msgspec.Raw()


@dataclass(frozen=True, slots=True)
class Row:
    """One series of an answer; an instant answer has one point."""

    labels: Mapping[str, str]
    timestamps: Floats
    values: Floats


@dataclass(frozen=True, slots=True)
class Answer:
    """The series of an answer and the server's warnings on it (a partial answer of Thanos, for one)."""

    rows: tuple[Row, ...]
    warnings: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """How many points there are."""
        return sum(row.values.size for row in self.rows)


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: msgspec.Raw = _NOTHING
    value: msgspec.Raw = _NOTHING


class _Data(msgspec.Struct):
    result_type: str = msgspec.field(name="resultType")
    result: msgspec.Raw


class _Envelope(msgspec.Struct):
    status: str
    data: msgspec.Raw = _NOTHING
    error_type: str = msgspec.field(name="errorType", default="")
    error: str = ""
    warnings: list[str] = []


_ENVELOPE = msgspec.json.Decoder(_Envelope)
_DATA = msgspec.json.Decoder(_Data)
_RESULT = msgspec.json.Decoder(list[_Series])
_POINTS = msgspec.json.Decoder(list[tuple[float, float]], strict=False)
_TEXT_POINTS = msgspec.json.Decoder(list[tuple[float, str]])
_STRINGS = msgspec.json.Decoder(list[str])


def decode_rows(body: bytes, where: str) -> Answer:
    """The series of an instant or range answer.

    Raises:
        SourceError: the body is not such an answer; the message begins with ``where``.
    """
    envelope = _open(body, where)
    try:
        data = _DATA.decode(envelope.data)
        if data.result_type not in ("matrix", "vector"):
            raise SourceError(
                f"{where}: answered with resultType {data.result_type!r} where matrix or vector is due: is this a Prometheus?",
                reason=BAD_RESPONSE,
            )
        rows = tuple(_row(series) for series in _RESULT.decode(data.result))
    except (msgspec.DecodeError, ValueError) as error:
        raise _bad_body(body, where, error) from error
    return Answer(rows, tuple(envelope.warnings))


def decode_strings(body: bytes, where: str) -> tuple[str, ...]:
    """The values of a label.

    Raises:
        SourceError: the body is not such an answer; the message begins with ``where``.
    """
    envelope = _open(body, where)
    try:
        return tuple(_STRINGS.decode(envelope.data))
    except msgspec.DecodeError as error:
        raise _bad_body(body, where, error) from error


def http_error(status: int, body: bytes, where: str) -> SourceError:
    """What an answer with a status other than 200 means: Prometheus' own errorType and error where the body has them."""
    reason = FAILED if status >= 500 or status == 429 else REFUSED
    try:
        envelope = _ENVELOPE.decode(body)
        said = f"{envelope.error_type}: {_one_line(envelope.error)}" if envelope.error else "no explanation"
    except msgspec.DecodeError:
        said = _excerpt(body)
    return SourceError(f"{where}: HTTP {status}: {said}{_advice(status)}", reason=reason)


def _open(body: bytes, where: str) -> _Envelope:
    try:
        envelope = _ENVELOPE.decode(body)
    except msgspec.DecodeError as error:
        raise _bad_body(body, where, error) from error
    if envelope.status != "success":
        raise SourceError(f"{where}: {envelope.error_type or envelope.status}: {_one_line(envelope.error)}", reason=REFUSED)
    if not envelope.data:
        raise SourceError(f"{where}: cannot read the answer: it holds no data: {_excerpt(body)}", reason=BAD_RESPONSE)
    return envelope


def _row(series: _Series) -> Row:
    if series.values:
        points = _points(series.values)
    elif series.value:
        points = _points(b"[" + bytes(series.value) + b"]")
    else:  # native histograms only: nothing that we ask for
        points = np.empty((0, 2))
    return Row(series.metric, np.ascontiguousarray(points[:, 0]), np.ascontiguousarray(points[:, 1]))


def _points(raw: msgspec.Raw | bytes) -> Floats:
    pairs: list[tuple[float, float]]
    try:
        pairs = _POINTS.decode(raw)
    except msgspec.ValidationError:
        pairs = [(moment, float(text)) for moment, text in _TEXT_POINTS.decode(raw)]
    return np.fromiter(chain.from_iterable(pairs), np.float64, 2 * len(pairs)).reshape(-1, 2)


def _bad_body(body: bytes, where: str, error: Exception) -> SourceError:
    if body.lstrip()[:1] == b"<":
        return SourceError(
            f"{where}: answered with a web page, not with JSON: is the URL that of Prometheus itself, not of a proxy or a login?",
            reason=BAD_RESPONSE,
        )
    if body and "truncated" in str(error):
        return SourceError(f"{where}: the JSON breaks off after {len(body)} bytes: is a proxy cutting it short?", reason=BAD_RESPONSE)
    return SourceError(f"{where}: cannot read the answer ({error}): {_excerpt(body)}", reason=BAD_RESPONSE)


def _advice(status: int) -> str:
    if status in (401, 403):
        return " (check the token or password for Prometheus)"
    if status == 404:
        return " (check the URL: it is the part before /api/v1)"
    return ""


def _excerpt(body: bytes) -> str:
    text = _one_line(body[: 4 * _EXCERPT_CHARACTERS].decode("utf-8", "replace"))
    if not text:
        return "empty body"
    return f"{text[:_EXCERPT_CHARACTERS]}..." if len(text) > _EXCERPT_CHARACTERS else text


def _one_line(text: str) -> str:
    return " ".join(text.split())
