"""``python -m bench``: take the figures, each measurement in a fresh process, and print one table."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec

from bench.catalogue import MEASUREMENTS, run
from bench.figures import Figure
from bench.table import render

_SCHEMA = "vpa-ippr/bench/v1"


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"nothing is named {', '.join(unknown)}: choose from {', '.join(MEASUREMENTS)}")
    figures: list[Figure] = []
    failed: list[str] = []
    began = time.monotonic()
    # A fresh process for each: its memory is its own, and nothing that ran before has warmed or filled it.
    with ProcessPoolExecutor(max_workers=1, max_tasks_per_child=1, mp_context=get_context("spawn")) as processes:
        for name in arguments.names or MEASUREMENTS:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            try:
                figures += processes.submit(run, name).result()
            except Exception as error:  # noqa: BLE001 - one measurement that fails must not hide the others
                failed.append(name)
                print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr)
    print(render(figures))
    print(f"{_machine()}, {time.monotonic() - began:.0f} s in all", file=sys.stderr)
    if arguments.json:
        document = {"schema": _SCHEMA, "machine": _machine(), "taken_at": time.time(), "failed": failed, "figures": figures}
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure the hot paths of vpa-ippr.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"What to measure (default: all): {', '.join(MEASUREMENTS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="Also write the figures to FILE.")
    return parser


def _machine() -> str:
    return f"{os.cpu_count()} CPUs, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
