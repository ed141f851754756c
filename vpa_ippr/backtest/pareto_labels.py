"""Labels beside points, such that none lies on another one or on a point; in pixels, from the upper left corner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

Place = tuple[float, float]

# Of letters 13 pixels high, on the safe side.
_CHARACTER_WIDTH: Final = 8.2
_ABOVE_FOOT: Final = 11.0
_BELOW_FOOT: Final = 4.0
_MIDDLE_TO_FOOT: Final = 4.0
_POINT_RADIUS: Final = 6.0
_GAP: Final = 9.0
_STEP: Final = 7.5
_STEPS: Final = 30
# A label that has moved further than this from its point needs a line that leads there.
_NEAR: Final = 8.0


@dataclass(frozen=True, slots=True)
class Label:
    """Where the text begins, or ends when it is left of its point, at the foot of its letters; ``leader`` leads from it to the point."""

    at: Place
    is_left: bool = False
    leader: tuple[Place, Place] | None = None


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom

    def is_within(self, other: _Box) -> bool:
        return self.left >= other.left and self.right <= other.right and self.top >= other.top and self.bottom <= other.bottom


def place_labels(points: Sequence[tuple[Place, str]], width: float, top: float, bottom: float) -> list[Label]:
    """A label for each point, as near to it as there is room; all within the width and between top and bottom."""
    area = _Box(0.0, top, width, bottom)
    taken = [_Box(x - _POINT_RADIUS, y - _POINT_RADIUS, x + _POINT_RADIUS, y + _POINT_RADIUS) for (x, y), _ in points]
    labels: dict[int, Label] = {}
    # From the right: there the room is free, and a label goes to the right of its point if it can.
    for index in sorted(range(len(points)), key=lambda one: (-points[one][0][0], points[one][0][1], points[one][1])):
        (x, y), text = points[index]
        label = next((one for one in _candidates(x, y) if _is_free(_box(one, text), area, taken)), Label((x + _GAP, y + _MIDDLE_TO_FOOT)))
        taken.append(_box(label, text))
        labels[index] = label
    return [labels[index] for index in range(len(points))]


def _candidates(x: float, y: float) -> Iterator[Label]:
    for step in range(_STEPS):
        for up in (-step * _STEP, step * _STEP) if step else (0.0,):
            for is_left in (False, True):
                at = (x - _GAP if is_left else x + _GAP, y + up + _MIDDLE_TO_FOOT)
                leader = ((at[0], y + up), (x, y)) if abs(up) > _NEAR else None
                yield Label(at, is_left, leader)


def _box(label: Label, text: str) -> _Box:
    (x, y), width = label.at, len(text) * _CHARACTER_WIDTH
    left = x - width if label.is_left else x
    return _Box(left, y - _ABOVE_FOOT, left + width, y + _BELOW_FOOT)


def _is_free(box: _Box, area: _Box, taken: Sequence[_Box]) -> bool:
    return box.is_within(area) and not any(box.meets(other) for other in taken)
