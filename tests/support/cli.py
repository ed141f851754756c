"""The command line in this process, and what commands read: trace files, a Prometheus that answers from a script."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from urllib.parse import parse_qs, urlsplit

from support.http import Answer, Request
from vpa_ippr.cli.main import _exit_code

START = 1_767_225_600  # 2026-01-01T00:00:00Z
COLUMNS = ("series_id", "container", "resource", "timestamp", "value")
MI = 1024 * 1024


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error_lines(self) -> list[str]:
        return self.err.splitlines()


class _Pipe(io.TextIOWrapper):
    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        if self.closed:
            return ""
        self.seek(0)
        return self.read()


def run(*arguments: object, terminal: bool = False) -> Outcome:
    """``vpa-ippr`` with these arguments; stdout may look like a terminal, retries of the Kubernetes API wait for nothing."""
    out, err = _Pipe(terminal=terminal), _Pipe()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    quieted = {name: logging.getLogger(name).level for name in ("urllib3", "apscheduler")}
    impatient = SimpleNamespace(sleep=lambda _seconds: None)
    try:
        with (
            mock.patch.object(sys, "argv", ["vpa-ippr", *map(str, arguments)]),
            mock.patch("urllib3.util.retry.time", impatient),
            mock.patch("vpa_ippr.cluster.rest.time", impatient),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = _exit_code()
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name, before in quieted.items():
            logging.getLogger(name).setLevel(before)
    return Outcome(code, out.text(), err.text())


def write_csv(path: Path, rows: Iterable[Sequence[object]], columns: Sequence[str] = COLUMNS) -> Path:
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def steady_rows(
    name: str = "shop/web", *, cores: float = 0.1, memory: float = 300 * MI, minutes: int = 60, start: int = START
) -> list[tuple]:
    """One sample a minute of both resources."""
    times = [start + 60 * minute for minute in range(minutes)]
    return [(f"{name}/{kind}", "app", kind, time, value) for kind, value in (("cpu", cores), ("memory", memory)) for time in times]


def dead_address() -> str:
    """An address on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def success(data: object) -> Answer:
    return Answer(body=json.dumps({"status": "success", "data": data}).encode(), headers={"Content-Type": "application/json"})


def matrix(*series: tuple[dict[str, str], list[list[object]]]) -> Answer:
    return success({"resultType": "matrix", "result": [{"metric": labels, "values": values} for labels, values in series]})


class FakePrometheus:
    """One container of steady use in each namespace, pod ``web-0`` of StatefulSet ``web``; ``answers`` override by a part of the query."""

    def __init__(self, *namespaces: str, **answers: Callable[[dict[str, str]], Answer]) -> None:
        self.namespaces = namespaces or ("shop",)
        self.answers = answers

    def __call__(self, request: Request) -> Answer:
        if urlsplit(request.path).path.endswith("/values"):
            return success(list(self.namespaces))
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        override = next((answer for part, answer in self.answers.items() if part in form["query"]), None)
        return override(form) if override else self.usual(form)

    @staticmethod
    def usual(form: dict[str, str]) -> Answer:
        query = form["query"]
        container = {"namespace": query.split('namespace="')[1].split('"')[0], "pod": "web-0", "container": "app"}
        if "rate(" in query:
            return matrix((container, points(form, "0.5")))
        if "max_over_time(container_memory" in query:
            return matrix((container, points(form, str(200 * MI))))
        if "count_over_time" in query:
            return matrix((container, points(form, "61" if "[3600s]" in query else "6")))
        if "count by" in query:
            return matrix((container, points(form, "1")))
        if "kube_pod_owner" in query:
            return matrix(({"pod": "web-0", "owner_kind": "StatefulSet", "owner_name": "web"}, [[1, "1"]]))
        if "kube_pod_container_resource_requests" in query:
            return matrix(({**container, "resource": "cpu"}, [[1, "0.1"]]), ({**container, "resource": "memory"}, [[1, str(256 * MI)]]))
        return matrix()


def points(form: dict[str, str], text: str) -> list[list[object]]:
    """That value at every moment that was asked for."""
    start, end, step = (round(float(form[name])) for name in ("start", "end", "step"))
    return [[moment, text] for moment in range(start, end + 1, step)]
