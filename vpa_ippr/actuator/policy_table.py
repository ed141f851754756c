"""The tables of the policies' fields in the docs: ``python -m vpa_ippr.actuator.policy_table docs/actuator.md docs/nodememory.md``."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from vpa_ippr.actuator.policy import GIB, MIB, Policy
from vpa_ippr.actuator.pressing_policy import PressingPolicy

PolicyType = type[Policy] | type[PressingPolicy]
POLICIES: dict[str, PolicyType] = {"actuator.md": Policy, "nodememory.md": PressingPolicy}
"""By the page that has the table."""

BEGIN = "<!-- policy: written by python -m vpa_ippr.actuator.policy_table -->"
END = "<!-- end of policy -->"

_UNITS = (
    ("_bytes_per_second", "bytes/s"),
    ("_per_second", "1/s"),
    ("_share_per_minute", "share/min"),
    ("_bytes", "bytes"),
    ("_seconds", "s"),
    ("_percent", "%"),
    ("_ratio", "share"),
    ("_share", "share"),
    ("_factor", "times"),
    ("_growth", "times"),
)


def table(policy: PolicyType = Policy) -> str:
    """The table as Markdown, in the order of the class."""
    reasons = dict(_docstrings(policy))
    rows = [
        f"| `{f.name}` | {_unit(f.name, f.default)} | {_shown(f.name, f.default)} | {reasons[f.name]} |" for f in dataclasses.fields(policy)
    ]
    return "\n".join(["| field | unit | default | what and why |", "|---|---|---|---|", *rows])


def with_table(text: str, policy: PolicyType = Policy) -> str:
    """The page with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(policy)}\n{END}{after}"


def _docstrings(policy: PolicyType) -> Iterator[tuple[str, str]]:
    """Each field with the text below it."""
    (definition,) = ast.parse(inspect.getsource(policy)).body
    assert isinstance(definition, ast.ClassDef)
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            assert isinstance(text.value, ast.Constant)
            yield field.target.id, " ".join(str(text.value.value).split()).replace("``", "`").replace("|", "\\|")


def _unit(name: str, default: object) -> str:
    if isinstance(default, bool):
        return "yes or no"
    if isinstance(default, tuple):
        return "list"
    return next((unit for suffix, unit in _UNITS if name.endswith(suffix)), "count")


def _shown(name: str, default: object) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, tuple):
        return ", ".join(f"`{one}`" for one in default)
    if name.endswith(("_bytes", "_bytes_per_second")) and isinstance(default, int):
        return _amount(default)
    return f"{default:g}"


def _amount(default: int) -> str:
    for size, suffix in ((GIB, "Gi"), (MIB, "Mi"), (1024, "Ki")):
        if default and default % size == 0:
            return f"{default // size}{suffix}"
    return str(default)


if __name__ == "__main__":
    for page in map(Path, sys.argv[1:]):
        page.write_text(with_table(page.read_text(), POLICIES[page.name]))
