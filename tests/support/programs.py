"""The ``vpa-ippr`` command as other programs see it: started, read, stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.http import Answer, Request, scripted_server

COMMAND = Path(sysconfig.get_path("scripts")) / "vpa-ippr"
_STOP_SECONDS = 20.0


def run(*arguments: object, timeout_seconds: float = 300.0) -> subprocess.CompletedProcess[str]:
    """``vpa-ippr`` with these arguments to its end, whatever its exit code."""
    return subprocess.run(
        [COMMAND, *map(str, arguments)], env=_environment(), capture_output=True, text=True, timeout=timeout_seconds, check=False
    )


def run_json(*arguments: object) -> Any:
    """The JSON that the command prints; it must end well."""
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def sandbox(kubeconfig: Path, *arguments: str) -> Iterator[dict[str, Any]]:
    """``vpa-ippr sandbox`` for as long as the block lasts; what it says when it is ready."""
    log = kubeconfig.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [COMMAND, "sandbox", "--kubeconfig", kubeconfig, *arguments],
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    with process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"the sandbox did not start: {log.read_text()[-2000:]}"
            yield json.loads(line)
        finally:
            process.terminate()
            try:
                process.wait(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def standing_clock(moment: float) -> Iterator[str]:
    """Address for ``--clock-url`` of a clock that stands still; a component that waits is told that the clock is broken."""

    def respond(request: Request) -> Answer:
        if request.path.endswith("/wait"):
            return Answer(500, b"this clock stands still")
        return Answer(body=json.dumps({"now": moment}).encode())

    with scripted_server(respond) as server:
        yield server.url


def _environment() -> dict[str, str]:
    """Without what would quietly change the command's defaults."""
    own = ("VPA_IPPR_", "PROMETHEUS_", "KUBE")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}
