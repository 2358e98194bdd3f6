"""Exact Sokoban solver: A* over (player, boxes) on the number of actions."""

import heapq
from functools import lru_cache

from envs.errors import SolverLimitError
from envs.sokoban_levels import Room, cells_of

DEFAULT_STATE_LIMIT = 300_000
_UNREACHABLE = 1 << 20


@lru_cache(maxsize=4096)
def pushes_to_target(room: Room) -> tuple[int, ...]:
    """Returns for each cell the fewest pushes of a lone box to the nearest target.

    A cell from which no target can be reached has a number beyond any real distance.
    """
    distance = [_UNREACHABLE] * (room.height * room.width)
    frontier = list(cells_of(room.targets))
    for cell in frontier:
        distance[cell] = 0
    for cell in frontier:  # grows while it is read: a queue
        for move in room.moves:
            before, player = cell - move, cell - 2 * move
            if room.walls >> before & 1 or distance[before] < _UNREACHABLE:
                continue
            if not room.walls >> player & 1:
                distance[before] = distance[cell] + 1
                frontier.append(before)
    return tuple(distance)


def solve(
    room: Room, *, player: int, boxes: int, state_limit: int = DEFAULT_STATE_LIMIT
) -> tuple[int, ...] | None:
    """Finds a shortest solution.

    A* with the sum over boxes of `pushes_to_target`: one action pushes one box by one cell, so the
    estimate never exceeds the truth and falls by at most one a step (consistent).

    Args:
        room: Walls and targets.
        player: Cell of the player.
        boxes: Set of cells with a box; as many as targets.
        state_limit: Most states to expand.

    Returns:
        Action numbers (Up, Down, Left, Right = 0, 1, 2, 3), or None when there is no solution.

    Raises:
        SolverLimitError: Neither a solution nor a proof within `state_limit` states.
    """
    walls, targets, moves = room.walls, room.targets, room.moves
    distance = pushes_to_target(room)
    start = (player, boxes)
    estimate = sum(distance[cell] for cell in cells_of(boxes))
    if estimate >= _UNREACHABLE:
        return None
    came_from: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
    costs = {start: 0}
    queue = [(estimate, 0, start)]
    while queue:
        total, negative_cost, state = heapq.heappop(queue)
        player, boxes = state
        if boxes == targets:
            return _path(came_from, state, start)
        cost = -negative_cost
        if cost > costs[state]:
            continue
        if len(costs) > state_limit:
            raise SolverLimitError(
                f"no answer after {len(costs)} states for a level of {boxes.bit_count()} boxes\n"
                "hint: use smaller levels or fewer boxes"
            )
        for action, move in enumerate(moves):
            ahead = player + move
            if walls >> ahead & 1:
                continue
            pushed, change = boxes, 0
            if boxes >> ahead & 1:
                beyond = ahead + move
                if (walls | boxes) >> beyond & 1 or distance[beyond] >= _UNREACHABLE:
                    continue
                pushed = boxes ^ (1 << ahead) ^ (1 << beyond)
                change = distance[beyond] - distance[ahead]
            following = (ahead, pushed)
            if cost + 1 < costs.get(following, _UNREACHABLE):
                costs[following] = cost + 1
                came_from[following] = (state, action)
                heapq.heappush(queue, (total + 1 + change, negative_cost - 1, following))
    return None


def _path(
    came_from: dict[tuple[int, int], tuple[tuple[int, int], int]],
    state: tuple[int, int],
    start: tuple[int, int],
) -> tuple[int, ...]:
    actions = []
    while state != start:
        state, action = came_from[state]
        actions.append(action)
    return tuple(reversed(actions))
