"""An answer of Prometheus from bytes to arrays."""

from __future__ import annotations

import numpy as np

from bench.figures import MIB, Figure, best_of
from bench.objects import NOW
from vpa_ippr.metrics.decode import decode_rows

_SERIES = 2_000
_POINTS = 1_000
_TEXTS = 50


def measure() -> list[Figure]:
    body = _body()
    run = best_of(3, lambda: None, lambda _: decode_rows(body, "query"))
    size = f"{_SERIES:,} series x {_POINTS:,} points, {len(body) / MIB:.0f} MiB"
    return [Figure(name="prometheus.decode", size=size, run=run, units=_SERIES * _POINTS, unit="point")]


def _body() -> bytes:
    """A matrix; the points come from a few texts, since the decoder remembers nothing from series to series."""
    chance = np.random.default_rng(4)
    times = range(int(NOW), int(NOW) + 60 * _POINTS, 60)
    texts = [
        ",".join(f'[{at},"{value!r}"]' for at, value in zip(times, chance.gamma(2.0, 0.2, _POINTS).tolist(), strict=True))
        for _ in range(_TEXTS)
    ]
    series = (
        f'{{"metric":{{"namespace":"shop","pod":"web-{n}","container":"app"}},"values":[{texts[n % _TEXTS]}]}}' for n in range(_SERIES)
    )
    return f'{{"status":"success","data":{{"resultType":"matrix","result":[{",".join(series)}]}}}}'.encode()
