"""Where the rectangles of a treemap lie: squarified, so that areas can be compared by eye.

The method is Bruls, Huizing and van Wijk's (2000): fill the shorter side with a row of rectangles
as long as that makes the worst of them squarer.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle in the plane's own units."""

    x: float
    y: float
    width: float
    height: float


def squarified(areas: list[float], plane: Box) -> list[Box]:
    """A box for each area (largest first gives the best shapes), together filling `plane`.

    Areas are weights: they are scaled to the plane. All must be positive.
    """
    scale = plane.width * plane.height / sum(areas) if areas else 0.0
    left = [area * scale for area in areas]
    boxes: list[Box] = []
    free = plane
    while left:
        side = min(free.width, free.height)
        count = 1
        while count < len(left) and _worst(left[: count + 1], side) <= _worst(left[:count], side):
            count += 1
        row, left = left[:count], left[count:]
        placed, free = _row(row, free)
        boxes += placed
    return boxes


def _worst(row: list[float], side: float) -> float:
    """The largest ratio of sides in a row of areas laid along `side`."""
    total = sum(row)
    if side <= 0 or total <= 0:
        return float("inf")
    return max(side * side * max(row) / total**2, total**2 / (side * side * min(row)))


def _row(row: list[float], free: Box) -> tuple[list[Box], Box]:
    """The row laid along the shorter side of `free`, and what is left of it."""
    total = sum(row)
    boxes = []
    if free.width >= free.height:
        thick = total / free.height if free.height else 0.0
        at = free.y
        for area in row:
            tall = area / thick if thick else 0.0
            boxes.append(Box(free.x, at, thick, tall))
            at += tall
        return boxes, Box(free.x + thick, free.y, max(0.0, free.width - thick), free.height)
    thick = total / free.width if free.width else 0.0
    at = free.x
    for area in row:
        wide = area / thick if thick else 0.0
        boxes.append(Box(at, free.y, wide, thick))
        at += wide
    return boxes, Box(free.x, free.y + thick, free.width, max(0.0, free.height - thick))
