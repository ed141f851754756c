"""Replay of recorded usage through any policy, scores and comparison. May import api, usage, forecast and recommend."""
