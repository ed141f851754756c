"""The measurements by name, each a function of its own module that returns figures."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from bench.figures import Figure

MEASUREMENTS = {
    "startup": "bench.startup:measure",
    "quantities": "bench.quantities:measure",
    "decoding": "bench.decoding:measure",
    "histograms": "bench.histograms:measure",
    "pipeline": "bench.pipeline:measure",
    "forecast": "bench.forecast:measure",
    "prometheus": "bench.prometheus:measure",
    "traces": "bench.traces:measure",
    "updater": "bench.updater:measure",
    "recommender": "bench.recommender:measure",
    "sandbox-api": "bench.sandbox_api:measure",
    "sandbox-day": "bench.sandbox_day:measure",
}


def run(name: str) -> list[Figure]:
    """Take the figures of one measurement in this process."""
    module, _, function = MEASUREMENTS[name].partition(":")
    measure: Callable[[], list[Figure]] = getattr(import_module(module), function)
    return measure()
