"""The actuator's controller on real kernels: whom it shrinks it hurts not, and whom it would hurt it leaves untouched.

One row for each workload of the validation list; sizes are scaled down to what a small guest holds. A row that may end in more than one way
says so.
"""

from __future__ import annotations

from typing import Any

import pytest

from kernel.rows import COMMON, HOT, SHORT, SWAPPED, UNMOVABLE, WARM, Row

_long = (pytest.mark.only_long,)


def _cases(rows: dict[str, Row], parts: dict[str, list[Any]] | None = None, marks: tuple[Any, ...] = _long, **more: Any) -> list[Any]:
    group = parts or {name: row.part for name, row in rows.items()}
    scenario = pytest.mark.scenario("group:together", parts=group, **more)
    return [pytest.param(name, row, marks=[*marks, scenario], id=name.replace(" ", "-")) for name, row in rows.items()]


every_row = pytest.mark.scenario_table(
    "name row",
    [
        *_cases(COMMON, SHORT, ()),
        *_cases(HOT),
        *_cases(WARM),
        *_cases(UNMOVABLE),
        *_cases(SWAPPED, node_swap_mib=640),
    ],
)


@every_row
def test_row_ends_as_it_must_and_hurts_nobody(measured: dict[str, Any], name: str, row: Row) -> None:
    found = measured[name]
    ended = {found["phase"], f"{found['phase']}/{found['reason']}"}
    assert ended & set(row.ends), f"{found['phase']}/{found['reason']}: {found['message']}"
    assert found["is_alive"]
    assert found["oom_kills"] == 0
    assert found["high_after"] == found["high_before"] == "max"
    assert found["journal_left"] == []
    is_done = found["phase"] == "Done"
    assert found["max_after_mib"] == (row.arguments["target_mib"] if is_done else 256)
    if found["phase"] == "Refused":
        assert found["highs_written"] == 0
    else:
        assert found["stall_seconds"] <= (0.2 if is_done else 2.0)
    if is_done:
        # Others of the group come and go meanwhile, and share two emulated CPUs: how much was lost is told in the report.
        assert found["after"]["ops_per_second"] > 0.5 * found["before"]["ops_per_second"]
