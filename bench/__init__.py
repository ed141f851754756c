"""Measurements of the hot paths: ``python -m bench [NAME...] [--json FILE]``. What the figures mean is in docs/performance.md."""
