"""The guest's init: brings the machine up, runs the requested scenarios one after the other, reports each, and powers off.

Each scenario runs in a process of its own, so that one that hangs or dies takes nothing but itself along.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from kernel.harness.containers import Guest, install_programs
from kernel.harness.machine import bring_up, drop_caches, power_off, set_swap

_REPORTS = Path("/dev/ttyS1")
_SCENARIO_SECONDS = 420.0


def main() -> None:
    """Run as process 1."""
    try:
        bring_up()
        install_programs()
        requests = json.loads(Path("/requests.json").read_text())
        with _REPORTS.open("w") as reports:
            for request in requests:
                _report(reports, {"begins": request["function"], "arguments": request["arguments"]})
                _report(reports, {"id": request["id"], **_run(request)})
    except BaseException:  # noqa: BLE001 - whatever it is, process 1 must not end: power off instead
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        power_off()


def _report(reports: Any, entry: dict[str, Any]) -> None:
    reports.write(json.dumps(entry) + "\n")
    reports.flush()


def _run(request: dict[str, Any]) -> dict[str, Any]:
    drop_caches()
    arguments = dict(request["arguments"])
    set_swap(arguments.pop("node_swap_mib", 0))
    began = time.monotonic()
    result = Path("/run/result.json")
    result.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        _write_result(request["function"], arguments, result)
        os._exit(0)
    status = _wait(child)
    _kill_leftovers()
    found = {"measured": {}, "error": f"the scenario's process ended with status {status} and no result"}
    if status is None:
        found["error"] = f"the scenario did not end within {_SCENARIO_SECONDS:.0f} s"
    elif result.exists():
        found = json.loads(result.read_text())
    return {**found, "seconds": round(time.monotonic() - began, 1)}


def _write_result(function: str, arguments: dict[str, Any], result: Path) -> None:
    guest = Guest()
    entry: dict[str, Any] = {"measured": {}, "error": None}
    try:
        module, _, name = function.partition(":")
        entry["measured"] = getattr(importlib.import_module(f"kernel.scenarios.{module}"), name)(guest, **arguments)
    except BaseException:  # noqa: BLE001 - the host is to know
        entry["error"] = traceback.format_exc()
    try:
        guest.clean()
    except BaseException:  # noqa: BLE001 - the host is to know
        entry["error"] = (entry["error"] or "") + "after the scenario:\n" + traceback.format_exc()
    result.write_text(json.dumps(entry))


def _wait(child: int) -> int | None:
    """The child's status; None when it had to be killed."""
    until = time.monotonic() + _SCENARIO_SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _kill_leftovers() -> None:
    """All that a scenario left running, whatever its group; kernel threads do not mind."""
    os.kill(-1, signal.SIGKILL)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
        except ChildProcessError:
            return
