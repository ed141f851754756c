"""The report for programs: JSON, YAML and CSV. Numbers are plain integers in millicores and bytes, one full row a container."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec

from vpa_ippr.api.resources import Amounts
from vpa_ippr.api.series import Finding
from vpa_ippr.api.timestamps import format_time
from vpa_ippr.report.model import SCHEMA, Report, Row

CSV_COLUMNS = (
    "namespace", "workload_kind", "workload", "container", "replicas", "severity", "confidence",
    "cpu_request_millicores", "cpu_limit_millicores", "cpu_target_millicores", "cpu_lower_millicores", "cpu_upper_millicores",
    "cpu_difference_millicores",
    "memory_request_bytes", "memory_limit_bytes", "memory_target_bytes", "memory_lower_bytes", "memory_upper_bytes",
    "memory_difference_bytes",
    "why",
)  # fmt: skip
# A cell that begins so is run as a formula by spreadsheets; names come from a cluster that others can write to.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def to_document(report: Report) -> dict[str, Any]:
    """The report as plain data; the schema is documented in docs/report.md."""
    return {
        "schema": SCHEMA,
        "as_of": format_time(report.as_of),
        "source": report.source,
        "profile": report.profile,
        "items": [_item(row) for row in report.rows],
        "totals": {
            "containers": report.totals.containers,
            "requested": _amounts(report.totals.requested),
            "recommended": _amounts(report.totals.recommended),
        },
        "findings": [_finding(finding) for finding in report.findings],
        "failures": [_finding(failure) for failure in report.failures],
    }


def render_json(report: Report) -> str:
    """Indented JSON, with a newline at the end."""
    return msgspec.json.format(msgspec.json.encode(to_document(report)), indent=2).decode() + "\n"


def render_yaml(report: Report) -> str:
    """The same document as YAML."""
    import yaml

    return yaml.safe_dump(to_document(report), sort_keys=False, allow_unicode=True, width=140)


def render_csv(report: Report) -> str:
    """RFC 4180, numbers only, empty where a value is not known."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(CSV_COLUMNS)
    for row in report.rows:
        cells = _csv_cells(row)
        writer.writerow([_harmless(cells[column]) for column in CSV_COLUMNS])
    return out.getvalue()


def _item(row: Row) -> dict[str, Any]:
    advice, resources = row.advice, row.current.resources if row.current else None
    return {
        "namespace": advice.workload.namespace,
        "workload": {"kind": advice.workload.kind, "name": advice.workload.name},
        "container": advice.container,
        "replicas": row.current.replicas if row.current else None,
        "severity": row.severity.value,
        "requests": _amounts(resources.requests) if resources else None,
        "limits": _amounts(resources.limits) if resources else None,
        "target": _amounts(advice.target),
        "lower_bound": _amounts(advice.lower_bound),
        "upper_bound": _amounts(advice.upper_bound),
        "difference": {"cpu_millicores": row.cpu_difference_millicores, "memory_bytes": row.memory_difference_bytes},
        "confidence": advice.confidence,
        "why": advice.why,
        "notes": list(advice.notes),
    }


def _amounts(amounts: Amounts) -> dict[str, int | None]:
    return {"cpu_millicores": amounts.cpu_millicores, "memory_bytes": amounts.memory_bytes}


def _finding(finding: Finding) -> dict[str, Any]:
    return {"reason": finding.reason, "subject": finding.subject, "count": finding.count, "message": finding.message}


def _csv_cells(row: Row) -> dict[str, object]:
    advice = row.advice
    resources = row.current.resources if row.current else None
    cells: dict[str, object] = {
        "namespace": advice.workload.namespace,
        "workload_kind": advice.workload.kind,
        "workload": advice.workload.name,
        "container": advice.container,
        "replicas": row.current.replicas if row.current else None,
        "severity": row.severity.value,
        "confidence": advice.confidence,
        "why": advice.why,
        "cpu_difference_millicores": row.cpu_difference_millicores,
        "memory_difference_bytes": row.memory_difference_bytes,
    }
    columns = {
        "request": resources.requests if resources else Amounts(),
        "limit": resources.limits if resources else Amounts(),
        "target": advice.target,
        "lower": advice.lower_bound,
        "upper": advice.upper_bound,
    }
    for name, amounts in columns.items():
        cells[f"cpu_{name}_millicores"] = amounts.cpu_millicores
        cells[f"memory_{name}_bytes"] = amounts.memory_bytes
    return cells


def _harmless(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) else cell
