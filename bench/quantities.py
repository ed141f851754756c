"""Reading and writing Kubernetes quantities: the smallest thing that is done most often."""

from __future__ import annotations

import random

from bench.figures import Figure, best_of
from vpa_ippr.api.quantity import format_bytes, format_millicores, parse_bytes, parse_millicores

_COUNT = 100_000
_SEED = 9


def measure() -> list[Figure]:
    chance = random.Random(_SEED)  # noqa: S311 - input of a measurement, nothing secret
    cpus = [chance.choice(("{}m", "{}", "0.{}")).format(chance.randint(1, 4000)) for _ in range(_COUNT // 2)]
    memories = [chance.choice(("{}Mi", "{}Gi", "{}M", "{}000000", "{}e6")).format(chance.randint(1, 999)) for _ in range(_COUNT // 2)]
    amounts = [chance.randint(1, 1 << 34) for _ in range(_COUNT // 2)]
    parsing = best_of(3, lambda: None, lambda _: ([parse_millicores(text) for text in cpus], [parse_bytes(text) for text in memories]))
    printing = best_of(3, lambda: None, lambda _: [(format_millicores(amount >> 16), format_bytes(amount)) for amount in amounts])
    return [
        Figure(name="quantities.parse", size=f"{_COUNT:,} texts", run=parsing, units=_COUNT, unit="quantity"),
        Figure(name="quantities.print", size=f"{_COUNT:,} amounts", run=printing, units=_COUNT, unit="quantity"),
    ]
