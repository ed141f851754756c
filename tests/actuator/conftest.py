"""Fixtures of the actuator's tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from actuator_fakes import memory_disk


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A journal's directory."""
    with tempfile.TemporaryDirectory(dir=memory_disk()) as directory:
        yield Path(directory)
