"""From a week of usage to recommendations, as ``vpa-ippr recommend`` and a new VPA's first cycle do."""

from __future__ import annotations

from bench.figures import Figure, best_of
from bench.objects import DAY_SECONDS, NOW
from bench.usages import Curves, grid
from vpa_ippr.api.series import ContainerRef, Usage, WorkloadRef
from vpa_ippr.forecast.catalogue import load_catalogue
from vpa_ippr.recommend.pipeline import recommend

_CONTAINERS = 500
_DAYS = 8


def measure() -> list[Figure]:
    times = grid(NOW, _DAYS * DAY_SECONDS, 60.0)
    curves = Curves(times, curves=64)
    refs = [ContainerRef("default", f"app-{number}-0", "app") for number in range(_CONTAINERS)]
    series = tuple(one for number, ref in enumerate(refs) for one in curves.series(ref, number))
    owners = {(ref.namespace, ref.pod): WorkloadRef("default", "Deployment", ref.pod[:-2]) for ref in refs}
    usage, profile = Usage(series, owners=owners), load_catalogue()["vpa-classic"]
    run = best_of(3, lambda: None, lambda _: recommend(usage, profile, NOW))
    samples = 2 * _CONTAINERS * times.size
    size = f"{_CONTAINERS} containers x {_DAYS} d x 1 min"
    return [
        Figure(name="pipeline.recommend", size=size, run=run, units=_CONTAINERS, unit="container", note=f"{samples / 1e6:.1f} M samples")
    ]
