"""``python -m bench.actuator``: what the node's agent costs on a real kernel, as a table. Boots one guest and writes nothing.

The agent is the real process on real cgroups in the kubelet's layout; the API server beside it is a few lines. The guest's processor is
emulated, so a fixed piece of Python is timed there and here, and CPU time is also given divided by what that took longer.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).resolve().parents[2] / "tests"
_FAMILY = "6.12"
_SETTLE_SECONDS = 15.0


def main() -> int:
    arguments = _parser().parse_args()
    sys.path.insert(0, str(_TESTS))
    qemu, kernels, service = map(importlib.import_module, ("kernel.harness.qemu", "kernel.harness.kernels", "kernel.scenarios.service"))
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
    here = service.yardstick_seconds()
    report = qemu.boot(kernels.fetch(arguments.kernel), [request])[request.id]
    if report.error is not None:
        print(report.error, file=sys.stderr)
        return 1
    print(_table(report.measured, report.measured["yardstick_seconds"] / here))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.actuator", description="Measure the node's agent on a real kernel in QEMU.")
    parser.add_argument("--kernel", default=_FAMILY, help="6.1, 6.12 or new")
    parser.add_argument("--containers", type=int, default=110, help="how many the node has")
    parser.add_argument("--shrinks", type=int, default=10, help="how many of them are shrunk at a time")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="how long to look while nothing is asked")
    parser.add_argument("--busy", type=float, default=120.0, metavar="SECONDS", help="how long to look at the shrinks")
    return parser


def _table(found: dict[str, Any], slower: float) -> str:
    rows: list[tuple[str, ...]] = [
        ("while", "s", "CPU s", "of a core %", "the same here %", "without helpers %", "RSS MiB", "peak MiB", "requests")
    ]
    for name in ("idle", "busy"):
        one = found[name]
        share, own = (100 * one[key] / one["seconds"] for key in ("cpu_seconds", "cpu_seconds_without_helpers"))
        requests = ", ".join(f"{count} {what}" for what, count in sorted(one["requests"].items()))
        figures = (one["seconds"], one["cpu_seconds"], share, share / slower, own / slower, one["rss_mib"], one["peak_mib"])
        what = f"{found['containers']} containers" + (f", {found['shrinks']} shrinks" if name == "busy" else "")
        rows.append((what, *(f"{figure:.1f}" if figure >= 10 else f"{figure:.2f}" for figure in figures), requests))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    phases = ", ".join(f"{count} {phase}" for phase, count in found["busy"]["phases"].items())
    scrape = found["scrape"]
    return "\n".join(
        (
            *lines,
            f"start to the first request: {found['start_seconds']} s in the guest, {found['start_seconds'] / slower:.2f} s here",
            f"shrinks at the end: {phases}",
            f"a scrape: {scrape['series']} lines, {scrape['bytes'] / 1024:.0f} KiB, {scrape['seconds']} s in the guest",
            f"probes: healthz {found['healthz'].strip()}, readyz {found['readyz'].strip()}",
            f"the emulated processor takes {slower:.1f} times as long as this one",
        )
    )


if __name__ == "__main__":
    sys.exit(main())
