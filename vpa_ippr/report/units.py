"""Amounts as a person reads them: cores in m, memory in Mi and Gi, always three significant digits at most, never float dust."""

from __future__ import annotations


def cpu_text(millicores: int | None) -> str:
    """``250m``, ``1.5``, ``12``; a dash when not set."""
    if millicores is None:
        return "-"
    if abs(millicores) < 1000:
        return f"{millicores}m"
    return f"{millicores / 1000:.2f}".rstrip("0").rstrip(".")


def memory_text(amount_bytes: int | None) -> str:
    """``64Mi``, ``1.25Gi``; a dash when not set."""
    if amount_bytes is None:
        return "-"
    mebibytes = amount_bytes / 2**20
    if abs(mebibytes) < 1024:
        return f"{mebibytes:.0f}Mi" if abs(mebibytes) >= 10 or mebibytes == int(mebibytes) else f"{mebibytes:.1f}Mi"
    return f"{mebibytes / 1024:.2f}".rstrip("0").rstrip(".") + "Gi"


def change_text(current: int | None, target: int | None) -> str:
    """The change in percent with its sign; empty when either value is missing or nothing changes."""
    if current is None or target is None or current == target:
        return ""
    if current == 0:
        return "new"
    return f"{(target - current) / current * 100:+.0f}%"
