"""The import graph of docs/architecture.md as a drawing: rooms in a row, an arc for each import."""

import re
from itertools import pairwise

BLOCK = re.compile(r"```mermaid\ngraph RL\n(.*?)```", re.DOTALL)
_LEFT, _STEP, _HEIGHT = 20, 72, 250


def drawn(markdown: str) -> str:
    """The page with its graph replaced by a drawing."""
    return BLOCK.sub(lambda block: _drawing(_edges(block[1])), markdown)


def _edges(text: str) -> list[tuple[str, str]]:
    return re.findall(r"(\w+) --> (\w+)", text)


def _drawing(edges: list[tuple[str, str]]) -> str:
    """SVG in the colours of the page. Imports of neighbours are lines, the others arcs above."""
    rooms = _in_order(edges)
    x = {room: _LEFT + _STEP * i + _STEP / 2 for i, room in enumerate(rooms)}
    neighbours = set(pairwise(rooms))
    lines = []
    for room, other in edges:
        gap = x[room] - x[other]
        height = 0 if (other, room) in neighbours else 0.3 * gap
        lines.append(
            f'<path class="e-{room}" d="M {x[room]} {_HEIGHT} C {x[room]} {_HEIGHT - height}, '
            f'{x[other]} {_HEIGHT - height}, {x[other]} {_HEIGHT}"><title>{room} imports {other}'
            "</title></path>"
        )
    labels = [
        f'<circle cx="{x[room]}" cy="{_HEIGHT}" r="5"/><text transform="translate({x[room] - 4} '
        f'{_HEIGHT + 18}) rotate(35)">{room}</text>'
        for room in rooms
    ]
    width = 2 * _LEFT + _STEP * len(rooms) + 40
    return (
        f'<svg class="import-graph" viewBox="0 0 {width} {_HEIGHT + 100}" role="img" '
        f'aria-label="Imports between rooms">{"".join(lines)}{"".join(labels)}</svg>\n\n'
        "*An arc joins a room with each room on its left that it imports.*"
    )


def _in_order(edges: list[tuple[str, str]]) -> list[str]:
    """Rooms such that imports point to the left, in the order of the edges where they leave it."""
    rooms: list[str] = []
    waiting = list(dict.fromkeys(room for edge in edges for room in reversed(edge)))
    while waiting:
        for room in waiting:
            if all(other in rooms for importer, other in edges if importer == room):
                rooms.append(room)
                waiting.remove(room)
                break
        else:
            raise ValueError(f"imports in a circle: {waiting}")
    return rooms
