"""How long a person waits for ``vpa-ippr --help``, and what the node's agent costs before it has done anything."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from bench.figures import MIB, Figure, best_of_process

_RUNS = 5
_IMPORT_AGENT = """
import time
began = time.perf_counter()
import vpa_ippr.actuator.agent
took = time.perf_counter() - began
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(took, int(status["VmRSS"].split()[0]) * 1024)
"""


def measure() -> list[Figure]:
    script = Path(sys.executable).with_name("vpa-ippr")
    shown, _ = best_of_process(_RUNS, [str(script), "--help"])
    agent, printed = best_of_process(_RUNS, [sys.executable, "-c", _IMPORT_AGENT])
    took, rss_bytes = (float(word) for word in printed.split())
    agent = msgspec.structs.replace(agent, peak_mib=rss_bytes / MIB)
    return [
        Figure(name="startup.help", size="vpa-ippr --help", run=shown, units=1, unit="start", target="0.3 s"),
        Figure(
            name="startup.agent",
            size="import the node's agent",
            run=agent,
            units=1,
            unit="start",
            target="0.5 s, 45 MiB",
            note=f"the import alone {took:.2f} s",
        ),
    ]
