"""``python -m bench.actuator``: what the node's agent costs, as two tables. Boots one guest and writes nothing.

On a real kernel: its memory, and how it fares with real cgroups in the kubelet's layout. The guest's processor is emulated, so its CPU time
says nothing of a real one; that is taken here, on plain files in the same layout. The API server is a few lines in both.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.actuator.files import measure

_TESTS = Path(__file__).resolve().parents[2] / "tests"
_FAMILY = "6.12"
_SETTLE_SECONDS = 15.0


def main() -> int:
    arguments = _parser().parse_args()
    sys.path.insert(0, str(_TESTS))
    print(_table_here(measure(arguments.containers, arguments.shrinks, arguments.idle, arguments.busy)), flush=True)
    qemu, kernels = map(importlib.import_module, ("kernel.harness.qemu", "kernel.harness.kernels"))
    missing = qemu.missing_tools()
    if missing is not None:
        print(f"not measured: {missing}", file=sys.stderr)
        return 2
    asked = {
        "containers": arguments.containers,
        "shrinks": arguments.shrinks,
        "idle_seconds": arguments.idle,
        "busy_seconds": arguments.busy,
        "settle_seconds": _SETTLE_SECONDS,
    }
    request = qemu.Request("service:cost", asked)
    report = qemu.boot(kernels.fetch(arguments.kernel), [request])[request.id]
    if report.error is not None:
        print(report.error, file=sys.stderr)
        return 1
    print(_table_in_guest(report.measured))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.actuator", description="Measure the node's agent on a real kernel in QEMU.")
    parser.add_argument("--kernel", default=_FAMILY, help="6.1, 6.12 or new")
    parser.add_argument("--containers", type=int, default=110, help="how many the node has")
    parser.add_argument("--shrinks", type=int, default=10, help="how many of them are shrunk at a time")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="how long to look while nothing is asked")
    parser.add_argument("--busy", type=float, default=120.0, metavar="SECONDS", help="how long to look at the shrinks")
    return parser


def _table_here(found: dict[str, dict[str, float]]) -> str:
    rows: list[tuple[str, ...]] = [("on this processor", "s", "CPU s", "of a core %", "loops", "RSS MiB")]
    for name, one in found.items():
        figures = (one["seconds"], one["cpu_seconds"], 100 * one["cpu_seconds"] / one["seconds"], one["loops"], one["rss_mib"])
        rows.append((name, *map(_text, figures)))
    return _aligned(rows)


def _table_in_guest(found: dict[str, Any]) -> str:
    rows: list[tuple[str, ...]] = [("in the guest", "s", "CPU s (emulated)", "of it helpers", "loops", "RSS MiB", "peak MiB", "requests")]
    for name in ("idle", "busy"):
        one = found[name]
        helpers = one["cpu_seconds"] - one["cpu_seconds_without_helpers"]
        figures = (one["seconds"], one["cpu_seconds"], helpers, one["loops"], one["rss_mib"], one["peak_mib"])
        requests = ", ".join(f"{count} {what}" for what, count in sorted(one["requests"].items()))
        rows.append((name, *map(_text, figures), requests))
    phases = ", ".join(f"{count} {phase}" for phase, count in found["busy"]["phases"].items())
    scrape = found["scrape"]
    more = (
        f"shrinks at the end: {phases}",
        f"a scrape: {scrape['series']} series, {scrape['bytes'] / 1024:.0f} KiB",
        f"probes: healthz {found['healthz'].strip()}, readyz {found['readyz'].strip()}",
    )
    return "\n".join((_aligned(rows), *more))


def _text(figure: float) -> str:
    return f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


if __name__ == "__main__":
    sys.exit(main())
