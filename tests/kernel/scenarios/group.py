"""Several scenarios at once in one guest, for those that mostly wait: each has its own containers, and the kernel counts by container.

Each is a process of its own: as threads of one they would wait for one another's turn at Python's lock after every system call.
"""

from __future__ import annotations

import importlib
import json
import os
import traceback
from pathlib import Path
from typing import Any

from kernel.harness.containers import Guest


def together(guest: Guest, parts: dict[str, list[Any]]) -> dict[str, Any]:
    """``{name: [function, arguments]}`` all at once; the measurements by name.

    Raises:
        RuntimeError: parts failed; tells which, and how.
    """
    children = {name: _fork(number, *part) for number, (name, part) in enumerate(parts.items())}
    for child, _ in children.values():
        os.waitpid(child, 0)
    found = {name: json.loads(result.read_text()) if result.exists() else {"error": "it died"} for name, (_, result) in children.items()}
    failures = [f"{name}: {entry['error']}" for name, entry in found.items() if entry["error"] is not None]
    if failures:
        raise RuntimeError("\n".join(failures))
    return {name: entry["measured"] for name, entry in found.items()}


def _fork(number: int, function: str, arguments: dict[str, Any]) -> tuple[int, Path]:
    result = Path(f"/run/part-{number}.json")
    result.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        entry: dict[str, Any] = {"measured": {}, "error": None}
        guest = Guest(first_program=number)
        try:
            entry["measured"] = _call(guest, function, arguments)
            # Its CPU and memory are for those that are not over yet.
            guest.clean(everything=False)
        except BaseException:  # noqa: BLE001 - the host is to know
            entry["error"] = traceback.format_exc()
        result.write_text(json.dumps(entry))
        os._exit(0)
    return child, result


def _call(guest: Guest, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    module, _, name = function.partition(":")
    found: dict[str, Any] = getattr(importlib.import_module(f"kernel.scenarios.{module}"), name)(guest, **arguments)
    return found
