"""Records shrinks on real kernels for the tests of the sandbox's kernel model.

``PYTHONPATH=tests python -m kernel.harness.recordings 6.1 6.12 new`` writes ``tests/fixtures/kernel/shrinks-<release>.json``, a row for
each recording; the README there says how to read it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kernel.harness.kernels import fetch
from kernel.harness.places import REPOSITORY, HarnessError
from kernel.harness.qemu import Request, boot
from kernel.scenarios.driver import DEADLINE_SECONDS, LAB

FIXTURES = REPOSITORY / "tests" / "fixtures" / "kernel"
_GROUPS: tuple[dict[str, dict[str, Any]], ...] = (
    {
        "idle anonymous above": {"mode": "anon", "target_mib": 100, "options": {"size": 200}},
        "idle anonymous below": {"mode": "anon", "target_mib": 100, "options": {"size": 80}},
        "shared memory": {"mode": "shm", "target_mib": 100, "options": {"size": 150}},
        "leak": {"mode": "leak", "target_mib": 100, "options": {"size": 50, "rate": 1}},
        "cold file": {"mode": "file", "target_mib": 110, "options": {"size": 150, "hot": 20}, "step_min_bytes": 8 << 20},
        "warm file": {"mode": "file", "target_mib": 110, "options": {"skip": 200, "size": 200, "hot": 60}, "step_min_bytes": 8 << 20},
    },
    {
        "hot file": {"mode": "file", "target_mib": 100, "options": {"size": 200, "hot": 150}},
        "hot mapped": {
            "mode": "mmapf",
            "target_mib": 100,
            "options": {"skip": 208, "size": 200, "hot": 150},
            "reserve_mapped_ratio": 0.0,
        },
    },
)
"""What runs at once in one guest; at most two of a group are busy, for it has two CPUs."""


def record(family: str) -> Path:
    """All recordings of one kernel, into its file.

    Raises:
        HarnessError: the kernel is not to be had, or a recording came to no end.
    """
    kernel = fetch(family)
    requests = [
        Request("group:together", {"parts": {row: ["recording:one", arguments] for row, arguments in group.items()}}) for group in _GROUPS
    ]
    reports = boot(kernel, requests)
    rows = []
    for request, group in zip(requests, _GROUPS, strict=True):
        report = reports[request.id]
        if report.error is not None:
            raise HarnessError(f"recording on {family}: {report.error}")
        rows += [{"kernel": kernel.release, "row": row, **_told(arguments), **report.measured[row]} for row, arguments in group.items()]
    FIXTURES.mkdir(parents=True, exist_ok=True)
    file = FIXTURES / f"shrinks-{kernel.release}.json"
    file.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    return file


def _told(arguments: dict[str, Any]) -> dict[str, Any]:
    """The workload, and the policy as a whole, so that the recording can be played again when the lab's has changed."""
    policy = {key: value for key, value in arguments.items() if key not in ("mode", "target_mib", "options")}
    return {
        "mode": arguments["mode"],
        **arguments["options"],
        "target_mib": arguments["target_mib"],
        "deadline_seconds": DEADLINE_SECONDS,
        "policy": {**LAB, **policy},
    }


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        sys.stdout.write(f"{record(wanted)}\n")
