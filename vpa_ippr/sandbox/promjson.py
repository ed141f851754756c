"""Prometheus's JSON: numbers as strings, times in seconds with at most three decimals, label sets as objects."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from itertools import compress

import msgspec
import numpy as np

from vpa_ippr.sandbox.promlabels import Labels
from vpa_ippr.sandbox.promql import Matrix
from vpa_ippr.sandbox.promvectors import Bools, Floats, Millis, Scalar, Text, Value, Vector

_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}


def number_text(value: float) -> str:
    """As Go writes it (``strconv``, shortest, an exponent only below 1e-6 and from 1e21 on)."""
    shortest = repr(value)
    if shortest.endswith(".0"):
        return shortest[:-2]
    if "e" in shortest and (value == 0 or 1e-6 <= abs(value) < 1e21):
        return format(Decimal(shortest), "f")
    return _SPECIAL.get(shortest, shortest)


def scalar_text(value: float) -> str:
    """The one place where Prometheus never writes an exponent."""
    shortest = repr(value)
    return format(Decimal(shortest), "f") if "e" in shortest else number_text(value)


def time_text(millis: int) -> str:
    """Seconds; the fraction, if there is one, with all three digits."""
    seconds, rest = divmod(abs(millis), 1000)
    sign = "-" if millis < 0 else ""
    return f"{sign}{seconds}.{rest:03d}" if rest else f"{sign}{seconds}"


def success(data: bytes) -> bytes:
    """The body around the ``data`` of a good answer."""
    return b'{"status":"success","data":' + data + b"}"


def failure(kind: str, message: str) -> bytes:
    """The body of a refused request; ``kind`` is Prometheus's errorType."""
    return msgspec.json.encode({"status": "error", "errorType": kind, "error": message})


def instant_data(value: Value | Matrix, millis: int) -> bytes:
    """The data of an instant query at ``millis``."""
    if isinstance(value, Scalar):
        return _result("scalar", f'[{time_text(millis)},"{scalar_text(float(value.values[0]))}"]')
    if isinstance(value, Text):
        return _result("string", f"[{time_text(millis)},{_json(value.value)}]")
    if isinstance(value, Matrix):
        return _matrix((item.labels, [time_text(at) for at in item.times_ms.tolist()], item.values) for item in value.series)
    moment = time_text(millis)
    rows = zip(value.labels, value.values[:, 0].tolist(), strict=True)
    return _result("vector", "[" + ",".join(f'{{"metric":{_metric(k)},"value":[{moment},{_quoted(v)}]}}' for k, v in rows) + "]")


def range_data(times_ms: Millis, vector: Vector) -> bytes:
    """The data of a range query."""
    times = [time_text(at) for at in times_ms.tolist()]  # once for all series
    return _matrix(
        (labels, list(compress(times, present.tolist())), values[present])
        for labels, values, present in zip(vector.labels, vector.values, vector.present, strict=True)
    )


def _matrix(series: Iterable[tuple[Labels, list[str], Floats]]) -> bytes:
    shown = (f'{{"metric":{_metric(labels)},"values":[{_points(times, values)}]}}' for labels, times, values in series)
    return _result("matrix", "[" + ",".join(shown) + "]")


def _points(times: list[str], values: Floats) -> str:
    plain: Bools = ~((np.abs(values) >= 1e16) | (np.abs(values) < 1e-4) & (values != 0) | ~np.isfinite(values))
    if plain.all():  # repr needs no correction but for whole numbers: twice as fast
        numbers = [text[:-2] if text.endswith(".0") else text for text in map(repr, values.tolist())]
    else:
        numbers = [number_text(value) for value in values.tolist()]
    return ",".join([f'[{time},"{number}"]' for time, number in zip(times, numbers, strict=True)])


def _result(kind: str, result: str) -> bytes:
    return f'{{"resultType":"{kind}","result":{result}}}'.encode()


def _quoted(value: float) -> str:
    return f'"{number_text(value)}"'


def _metric(labels: Labels) -> str:
    return _json(dict(labels))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
