"""What stdout is: a person's terminal or a pipe."""

from __future__ import annotations

import os
import shutil
import sys


def terminal_width() -> int | None:
    """The width of the terminal that stdout is, or None when it is piped."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def colour_wanted() -> bool:
    """True on a terminal, unless NO_COLOR says otherwise (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
