"""Boots one guest for each kernel, with every scenario that the collected tests ask for, and hands each test its measurements.

KERNEL_SET=short|long        long repeats each scenario and adds those marked ``only_long``; short without it
KERNEL_REPEATS=5             how often in the long set (or ``--repeats 5``)
KERNEL_FAMILIES="6.1 6.12"   which kernels; only 6.12 without it
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kernel.harness.kernels import FAMILIES, fetch
from kernel.harness.places import CACHE, HarnessError
from kernel.harness.qemu import Report, Request, boot, missing_tools

_SET = os.environ.get("KERNEL_SET", "short")
_FAMILIES = os.environ.get("KERNEL_FAMILIES", "6.12").split()
_REPEATS = os.environ.get("KERNEL_REPEATS", "5")
_HERE = Path(__file__).parent
_Boot = tuple[str, str]
"""The kernel's family, and its options."""
_WANTED = pytest.StashKey[dict[_Boot, dict[str, Request]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeats", type=int, help="how often the long set runs each scenario on real kernels")


def _repeats(config: pytest.Config) -> int:
    if _SET != "long":
        return 1
    # Where these tests are run together with others, pytest reads this file too late for an option.
    chosen = config.getoption("--repeats", default=None)
    return int(_REPEATS) if chosen is None else int(chosen)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "measured" not in metafunc.fixturenames:
        return
    definition = metafunc.definition
    booted, table = definition.get_closest_marker("booted_with"), definition.get_closest_marker("scenario_table")
    options = booted.args[0] if booted is not None else ""
    if table is None:
        scenario = definition.get_closest_marker("scenario")
        assert scenario is not None, f"{definition.name} wants measurements, and names no scenario"
        metafunc.parametrize("measured", list(_cases(scenario, options, metafunc.config)), indirect=True, scope="session")
        return
    names, rows = table.args
    cases = [_with(row, case) for row in rows for case in _cases(_scenario_of(row), options, metafunc.config)]
    metafunc.parametrize((*names.split(), "measured"), cases, indirect=["measured"], scope="session")


def _cases(scenario: pytest.Mark, options: str, config: pytest.Config) -> Iterator[Any]:
    """What one scenario's measurements are asked for by: of each kernel, of each repeat."""
    for family in _FAMILIES:
        for repeat in range(_repeats(config)):
            request = Request(scenario.args[0], dict(scenario.kwargs), repeat)
            yield pytest.param(((family, options), request), id=family if repeat == 0 else f"{family}-{repeat + 1}")


def _scenario_of(row: Any) -> pytest.Mark:
    found: pytest.Mark = next(mark.mark for mark in row.marks if mark.name == "scenario")
    return found


def _with(row: Any, case: Any) -> Any:
    return pytest.param(*row.values, *case.values, marks=row.marks, id=f"{row.id or row.values[0]}-{case.id}")


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "kernel: boots a Debian kernel under QEMU",
        "scenario(function, **arguments): what the guest runs for the test, below kernel.scenarios",
        "scenario_table(names, rows): as parametrize, with a scenario among the marks of each row",
        "booted_with(options): on a guest of its own, with these options for the kernel",
        "only_long: not in the short set",
    ):
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.parent == _HERE]
    for item in ours:
        item.add_marker(pytest.mark.kernel)
        item.add_marker(pytest.mark.integration)
    left_out = [item for item in ours if _SET != "long" and item.get_closest_marker("only_long") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ask of the guests only what the tests that are left want to know."""
    wanted: dict[_Boot, dict[str, Request]] = {}
    for item in session.items:
        if item.path.parent == _HERE and isinstance(item, pytest.Function) and "measured" in item.callspec.params:
            boot_of, request = item.callspec.params["measured"]
            wanted.setdefault(boot_of, {})[request.id] = request
    session.config.stash[_WANTED] = wanted


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.stash.get(_WANTED, {}):
        terminalreporter.write_line("to tell what was measured: PYTHONPATH=tests python -m kernel.harness.report")


class Guests:
    """The reports of each kernel's guest, which is booted when the first of its tests runs."""

    def __init__(self, wanted: Mapping[_Boot, dict[str, Request]]) -> None:
        self._wanted = wanted
        self._reports: dict[_Boot, dict[str, Report]] = {}
        self._missing: dict[_Boot, str] = {}

    def report(self, wanted: _Boot, request: Request) -> Report:
        """What became of one scenario; skips the test where this kernel cannot be booted here."""
        if wanted not in self._reports and wanted not in self._missing:
            self._boot(*wanted)
        if wanted in self._missing:
            pytest.skip(f"NOT TESTED on kernel {wanted[0]}: {self._missing[wanted]}")
        return self._reports[wanted][request.id]

    def _boot(self, family: str, options: str) -> None:
        missing = missing_tools()
        if missing is not None:
            self._missing[family, options] = missing
            return
        try:
            kernel = fetch(family)
        except HarnessError as error:
            self._missing[family, options] = str(error)
            return
        reports = self._reports[family, options] = boot(kernel, list(self._wanted[family, options].values()), options)
        _keep(kernel.release, reports)


def _keep(release: str, reports: Mapping[str, Report]) -> None:
    """The raw measurements, for tables and for recordings."""
    folder = CACHE / "results"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{release}.{_SET}.json"
    rows = {json.dumps(row["scenario"], sort_keys=True): row for row in (json.loads(file.read_text()) if file.exists() else [])}
    for name, report in reports.items():
        told = {"measured": report.measured, "error": report.error, "seconds": report.seconds}
        rows[name] = {"scenario": json.loads(name), "at": round(time.time()), **told}
    file.write_text(json.dumps(list(rows.values()), indent=1))


@pytest.fixture(scope="session")
def guests(request: pytest.FixtureRequest) -> Guests:
    return Guests(request.config.stash[_WANTED])


@pytest.fixture(scope="session")
def measured(request: pytest.FixtureRequest, guests: Guests) -> dict[str, Any]:
    """What the test's scenario measured in the guest; fails the test where it came to no end."""
    (family, options), wanted = request.param
    assert family in FAMILIES, f"KERNEL_FAMILIES names {family}; known are {', '.join(FAMILIES)}"
    report = guests.report((family, options), wanted)
    if report.error is not None:
        pytest.fail(f"{wanted.function} on kernel {family}: {report.error}", pytrace=False)
    return {**report.measured, "family": family}
