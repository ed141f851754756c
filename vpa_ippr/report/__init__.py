"""The report model and its renderers. May import api, recommend, resize and metrics."""
