"""Kubernetes I/O. May import api."""
