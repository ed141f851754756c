"""Files that commands write: whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from vpa_ippr.api.errors import UsageError

_MODE = 0o644


def write_whole(path: Path, content: str | bytes) -> None:
    """Write the file so that a reader sees the old content or the new, never a part, even if this process dies.

    Raises:
        UsageError: it cannot be written there (reason ``FileNotWritten``).
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # a device or a pipe holds nothing that could be half written
            return
        _replace(path.resolve(), data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", reason="FileNotWritten") from error


def _replace(path: Path, data: bytes) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), _MODE)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
