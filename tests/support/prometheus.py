"""A real Prometheus on loopback, with samples that the test gives it."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

import msgspec
import numpy as np
import pytest

START_SECONDS = 20.0


@dataclass(frozen=True)
class TestSeries:
    """Samples of one series; ``labels`` with ``__name__``; times in milliseconds."""

    __test__ = False

    labels: Mapping[str, str]
    times_ms: np.ndarray
    values: np.ndarray


def require_prometheus() -> None:
    """Skip the test, loudly, on a machine without the binaries."""
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed: apt-get install prometheus")


def write_openmetrics(path: Path, series: Iterable[TestSeries]) -> None:
    """The text that ``promtool tsdb create-blocks-from openmetrics`` reads; every family is declared unknown."""
    families: dict[str, list[TestSeries]] = {}
    for item in series:
        families.setdefault(item.labels["__name__"], []).append(item)
    with path.open("w") as out:
        for name, members in families.items():
            out.write(f"# TYPE {name} unknown\n")
            for item in members:
                labels = ",".join(f"{key}={_quoted(value)}" for key, value in item.labels.items() if key != "__name__")
                head = f"{name}{{{labels}}}"
                rows = zip(item.times_ms.tolist(), item.values.tolist(), strict=True)
                out.writelines(f"{head} {value!r} {at // 1000}.{at % 1000:03d}\n" for at, value in rows)
        out.write("# EOF\n")


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') + '"'


class RealPrometheus:
    """``prometheus`` with its data in ``data_dir``: back-fill first, then enter; ``url`` and ``get`` work inside."""

    def __init__(self, data_dir: Path) -> None:
        require_prometheus()
        self._data = data_dir / "data"
        self._config = data_dir / "prometheus.yml"
        self._log = data_dir / "prometheus.log"
        self._process: subprocess.Popen[bytes] | None = None
        data_dir.mkdir(parents=True, exist_ok=True)
        self.url = f"http://127.0.0.1:{_free_port()}"

    def backfill(self, openmetrics_path: Path) -> None:
        """Make blocks from the file. Without the option, promtool reads the whole file again for every two hours."""
        subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=486h", openmetrics_path, self._data],
            check=True,
            capture_output=True,
        )

    def __enter__(self) -> Self:
        self._config.write_text("")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._config}",
                    f"--storage.tsdb.path={self._data}",
                    "--storage.tsdb.retention.time=60d",
                    f"--web.listen-address={self.url.removeprefix('http://')}",
                    "--web.enable-remote-write-receiver",
                    "--query.max-samples=200000000",
                    "--log.level=warn",
                ],
                stdout=log,
                stderr=log,
            )
        self._wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=START_SECONDS)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        assert self._process is not None
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self.get("/-/ready")[0] == 200:
                    return
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.02)
        self._process.kill()
        self._process.wait()
        pytest.fail(f"prometheus did not become ready: {self._log.read_text()[-2000:]}")

    def get(self, path: str, params: Mapping[str, str] | None = None) -> tuple[int, Any]:
        """Status and body (decoded when it is JSON) of a GET."""
        return self._send(urllib.request.Request(f"{self.url}{path}?{urlencode(params or {})}"))  # noqa: S310

    def remote_write(self, series: Iterable[TestSeries]) -> None:
        """Append samples through the remote-write receiver: the only way in for staleness markers."""
        body = _snappy(b"".join(_field(1, _time_series(item)) for item in series))
        headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
        status, answer = self._send(urllib.request.Request(f"{self.url}/api/v1/write", body, headers, method="POST"))  # noqa: S310
        assert status == 204, answer

    @staticmethod
    def _send(request: urllib.request.Request) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                status, body = response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                status, body = error.code, error.read()
        return status, msgspec.json.decode(body) if body.startswith(b"{") else body.decode()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _time_series(item: TestSeries) -> bytes:
    """``prometheus.TimeSeries`` of remote.proto: labels (1) and samples (2: value 1, timestamp 2)."""
    labels = (_field(1, _field(1, key.encode()) + _field(2, value.encode())) for key, value in sorted(item.labels.items()))
    rows = zip(item.times_ms.tolist(), item.values.astype("<f8"), strict=True)
    samples = (_field(2, struct.pack("<B", 1 << 3 | 1) + value.tobytes() + b"\x10" + _varint(at)) for at, value in rows)
    return b"".join(labels) + b"".join(samples)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _snappy(content: bytes) -> bytes:
    """The block format with literals only: valid, and not smaller."""
    return _varint(len(content)) + b"".join(_literals(content))


def _literals(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), 65_536):
        part = content[start : start + 65_536]
        yield struct.pack("<BH", 61 << 2, len(part) - 1) + part
