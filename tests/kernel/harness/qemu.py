"""Boots a kernel under software emulation and collects what the guest reports."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernel.harness.initramfs import Archive, assemble
from kernel.harness.kernels import Kernel
from kernel.harness.places import HarnessError, built, digest, only_one, remove

QEMU = "qemu-system-x86_64"
MEMORY_MIB = 2304
CPUS = 2
DATA_MIB = 736
_DISK_MIB = 1024
SILENCE_SECONDS = 600.0
"""A guest that reports nothing for so long is taken for hung; a scenario may take as long as that at most."""
_POLL_SECONDS = 0.1
_TAIL_LINES = 40
_WORKLOADS = Path(__file__).resolve().parents[1] / "workloads"
_KERNEL_OPTIONS = (
    "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr no_timer_check tsc=reliable random.trust_cpu=on cryptomgr.notests "
    "ipv6.disable=1 psi=1 rdinit=/init"
)


@dataclass(frozen=True)
class Request:
    """One scenario to be run in the guest: ``module:function`` below ``kernel.scenarios``, its arguments and which repeat it is."""

    function: str
    arguments: dict[str, Any] = field(default_factory=dict)
    repeat: int = 0

    @property
    def id(self) -> str:
        """Unlike that of any other request of a boot."""
        return json.dumps([self.function, self.arguments, self.repeat], sort_keys=True)


@dataclass(frozen=True)
class Report:
    """What became of one scenario: its measurements, or why there are none."""

    measured: dict[str, Any]
    error: str | None = None
    seconds: float = 0.0


def missing_tools() -> str | None:
    """What has to be installed before a guest can be booted; None when all is there."""
    needed = {QEMU: "qemu-system-x86", "mke2fs": "e2fsprogs", "cc": "gcc and libc6-dev", "ldd": "libc-bin"}
    missing = [package for tool, package in needed.items() if shutil.which(tool) is None]
    return f"to boot a guest, install {', '.join(missing)}" if missing else None


def boot(kernel: Kernel, requests: Sequence[Request], kernel_options: str = "") -> dict[str, Report]:
    """Run the scenarios one after the other in one guest; a report for each, by the request's id.

    ``kernel_options`` come after the harness's own on the kernel's command line, and win.

    A guest that dies or hangs gives each scenario that it has not reported an error with the end of its console.
    """
    with only_one(), tempfile.TemporaryDirectory(prefix="vpa-ippr-guest-") as name:
        folder = Path(name)
        assemble(kernel, workload(), folder / "initrd")
        (folder / "requests").write_text(json.dumps([{**asdict(request), "id": request.id} for request in requests]))
        _append_requests(folder)
        command = _command(kernel, folder, kernel_options)
        with (folder / "console").open("wb") as console:
            guest = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT)
            try:
                lines, cause = _collect(guest, folder / "reports")
            finally:
                guest.kill()
                guest.wait()
        return _reports(requests, lines, cause, folder / "console")


def workload() -> Path:
    """The workloads' program, compiled."""
    source = _WORKLOADS / "wl.c"

    def make(path: Path) -> None:
        done = subprocess.run(
            ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", str(path), str(source)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise HarnessError(f"the workloads do not compile: {done.stderr.strip()}")

    return built(f"workload/{digest([source.read_bytes()])}", make)


def _disk() -> Path:
    """An ext4 image with a data file of noise: page cache of the real kind, filled by real reads."""

    def make(path: Path) -> None:
        tree = path.with_name(f"{path.name}.tree")
        tree.mkdir(parents=True)
        try:
            with (tree / "data").open("wb") as data:
                for _ in range(DATA_MIB):
                    data.write(os.urandom(1 << 20))
            subprocess.run(
                ["mke2fs", "-q", "-F", "-t", "ext4", "-m", "0", "-d", str(tree), str(path), f"{_DISK_MIB}M"],
                check=True,
                capture_output=True,
            )
        finally:
            remove(tree)

    return built(f"disk/{DATA_MIB}-of-{_DISK_MIB}.ext4", make)


def _append_requests(folder: Path) -> None:
    with (folder / "initrd").open("ab") as file:
        archive = Archive(file)
        archive.file("requests.json", folder / "requests")
        archive.end()


def _command(kernel: Kernel, folder: Path, kernel_options: str) -> list[str]:
    options = {
        "-M": ["q35"],
        "-accel": ["tcg,thread=multi"],
        "-cpu": ["max"],
        "-smp": [str(CPUS)],
        "-m": [str(MEMORY_MIB)],
        "-display": ["none"],
        "-serial": ["stdio", f"file:{folder / 'reports'}"],
        "-drive": [f"file={_disk()},if=virtio,format=raw,snapshot=on"],
        "-kernel": [str(kernel.image)],
        "-initrd": [str(folder / "initrd")],
        "-append": [f"{_KERNEL_OPTIONS} {kernel_options}".strip()],
    }
    return [QEMU, "-nodefaults", "-no-reboot", *(word for key, values in options.items() for value in values for word in (key, value))]


def _collect(guest: subprocess.Popen[bytes], reports: Path) -> tuple[list[str], str]:
    """Everything the guest has reported by its end, and how it ended."""
    heard, since = 0, time.monotonic()
    cause = ""
    while guest.poll() is None:
        time.sleep(_POLL_SECONDS)
        size = reports.stat().st_size if reports.exists() else 0
        if size != heard:
            heard, since = size, time.monotonic()
        elif time.monotonic() - since > SILENCE_SECONDS:
            cause = f"the guest reported nothing for {SILENCE_SECONDS:.0f} s"
            break
    text = reports.read_text(errors="replace") if reports.exists() else ""
    return text.replace("\r", "").splitlines(), cause or f"the guest ended with status {guest.poll()}"


def _reports(requests: Sequence[Request], lines: Sequence[str], cause: str, console: Path) -> dict[str, Report]:
    found = {entry["id"]: Report(entry["measured"], entry["error"], entry["seconds"]) for entry in _decoded(lines) if "measured" in entry}
    begun = [entry["begins"] for entry in _decoded(lines) if "begins" in entry]
    lost = [request for request in requests if request.id not in found]
    if lost:
        tail = "\n".join(console.read_text(errors="replace").replace("\r", "").splitlines()[-_TAIL_LINES:])
        where = f"while running {begun[-1]}" if begun else "before the first scenario"
        message = f"{cause} {where}; the end of its console:\n{tail}"
        found |= {request.id: Report({}, message) for request in lost}
    return found


def _decoded(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue  # the line in which a guest died
