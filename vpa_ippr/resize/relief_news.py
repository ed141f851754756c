"""What of a node's report is news: worth a round of reliefs at once, instead of at the next cycle."""

from __future__ import annotations

from collections.abc import Callable

from vpa_ippr.api.node_memory import NodeMemory, PressingContainer


class ReliefNews:
    """Rings when an entry is new or has changed; not for a beat, nor for what is over. For one thread."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._known: dict[str, frozenset[PressingContainer]] = {}

    def tell(self, memory: NodeMemory) -> None:
        """A node's report is there, or has changed."""
        pressing = frozenset(memory.status.pressing)
        is_news = not pressing <= self._known.get(memory.node_name, frozenset())
        self._known[memory.node_name] = pressing
        if is_news:
            self._ring()
