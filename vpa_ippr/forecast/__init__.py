"""Forecasters behind one protocol, and the catalogue of profiles. May import api and usage."""
