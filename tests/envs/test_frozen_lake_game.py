"""FrozenLake: slip, rewards, maps, kinds, and value iteration against its own equations."""

from collections import Counter

import numpy as np
import pytest

from envs.base import Split
from envs.errors import UnsatisfiableSettingsError
from envs.frozen_lake import FrozenLake, FrozenLakeSettings, draw_instance
from envs.frozen_lake_maps import (
    DISCOUNT,
    Kind,
    Lake,
    neighbours,
    optimal_policy,
    read_lake,
)
from envs.grids import canonical

OPEN = tuple("F" * 9 for _ in range(9))
OPEN_MAPS = (
    ("S" + OPEN[0][1:], *OPEN[1:8], OPEN[8][:4] + "G" + OPEN[8][5:]),
    ("SG",),
)


def on_ice(map_rows: tuple[str, ...], *, intended_probability: float, start: int) -> FrozenLake:
    """Returns a lake of those rows with the player on a cell of choice."""
    environment = FrozenLake(FrozenLakeSettings(intended_probability=intended_probability))
    environment.reset(seed=0)
    lake = read_lake(map_rows)
    environment._lake, environment._player = lake, start
    environment._table = neighbours(lake.height, lake.width)
    environment._texts = {}
    return environment


@pytest.mark.parametrize("intended", [0.8, 1.0, 1 / 3])
@pytest.mark.parametrize("action", range(4))
def test_slips_go_sideways_at_their_rates_and_never_back(intended, action):
    environment = on_ice(OPEN_MAPS[0], intended_probability=intended, start=40)
    ends = Counter()
    num_draws = 6_000
    for _ in range(num_draws):
        environment._player = 40
        environment.step(environment.action_names[action])
        ends[environment._player] += 1
    table = neighbours(9, 9)[40]
    aside = (1 - intended) / 2
    expected = {table[action]: intended}
    expected |= {table[(action + side) % 4]: aside for side in (1, 3)}
    for cell, rate in expected.items():
        spread = 4 * (rate * (1 - rate) / num_draws) ** 0.5
        assert ends[cell] / num_draws == pytest.approx(rate, abs=spread + 1e-12)
    assert ends[table[(action + 2) % 4]] == 0
    assert sum(ends.values()) == num_draws


def test_the_goal_pays_one_and_is_a_success_the_hole_ends_without():
    goal = on_ice(("SG", "HF"), intended_probability=1.0, start=0)
    assert goal.step("Right")[1:4] == (1.0, True, False)
    hole = on_ice(("SG", "HF"), intended_probability=1.0, start=0)
    text, reward, terminated, truncated, info = hole.step("Down")
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert (info["success"], info["fell"]) == (0.0, 1.0)
    assert text == "_G\nX_"


def test_the_edge_stops_the_player():
    environment = on_ice(("SG", "HF"), intended_probability=1.0, start=0)
    _, reward, terminated, _, info = environment.step("Up")
    assert (reward, terminated, info["action_effective"]) == (0.0, False, 0.0)


def test_members_slip_apart_by_default_and_together_on_demand():
    def path(slip_noise: str, noise_seed: int) -> str:
        environment = FrozenLake(FrozenLakeSettings(slip_noise=slip_noise, ice_probability=1))
        environment.reset(seed=4, options={"noise_seed": noise_seed})
        texts = []
        for step in range(12):
            if not environment.over:
                texts.append(environment.step(environment.action_names[step % 4])[0])
        return "\n\n".join(texts)

    assert len({path("independent", n) for n in range(10)}) > 3
    assert len({path("common", n) for n in range(10)}) == 1
    assert path("independent", 3) == path("independent", 3)


def test_generated_lakes_join_start_and_goal_by_ice():
    for seed in range(300):
        lake = draw_instance(FrozenLakeSettings(size=8), split=Split.TRAIN, seed=seed)
        assert lake.start != lake.goal
        assert lake.cells[lake.start] == lake.cells[lake.goal] == "F"
        assert lake.distance() is not None


def test_cells_are_ice_with_their_probability():
    lakes = [
        draw_instance(FrozenLakeSettings(size=8), split=Split.TRAIN, seed=seed)
        for seed in range(400)
    ]
    share = np.mean([lake.cells.count("F") for lake in lakes]) / 64
    assert share == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("intended", [1.0, 0.8, 1 / 3])
def test_value_iteration_meets_the_bellman_equations(intended):
    for seed in range(25):
        lake = draw_instance(FrozenLakeSettings(), split=Split.TRAIN, seed=seed)
        policy = optimal_policy(lake, intended_probability=intended)
        matrices = transition_matrices(lake, intended)
        chosen = np.array([matrices[policy[cell]][cell] for cell in range(16)])
        gain = np.zeros(16)
        gain[lake.goal] = 1.0
        values = np.linalg.solve(np.eye(16) - DISCOUNT * chosen, gain)  # exact policy value
        for matrix in matrices:
            better = gain + DISCOUNT * matrix @ values - values
            assert better.max() < 1e-8


def transition_matrices(lake: Lake, intended: float) -> list[np.ndarray]:
    """Returns [from, to] matrices per action; holes and goal are left for ever."""
    matrices = []
    for action in range(4):
        matrix = np.zeros((16, 16))
        for cell in range(16):
            row, column = divmod(cell, 4)
            if lake.cells[cell] == "H" or cell == lake.goal:
                continue
            for direction in range(4):
                weight = {0: intended, 1: (1 - intended) / 2, 3: (1 - intended) / 2}.get(
                    (direction - action) % 4, 0.0
                )
                down, right = ((0, -1), (1, 0), (0, 1), (-1, 0))[direction]
                end = min(max(row + down, 0), 3) * 4 + min(max(column + right, 0), 3)
                matrix[cell, end] += weight
        matrices.append(matrix)
    return matrices


def test_without_slip_the_solver_walks_a_shortest_way():
    environment = FrozenLake(FrozenLakeSettings(intended_probability=1.0, size=6))
    for seed in range(50):
        environment.reset(seed=seed)
        distance, steps, info = environment._lake.distance(), 0, {}
        while not environment.over:
            *_, info = environment.step(environment.optimal_action())
            steps += 1
        assert (steps, info["success"]) == (distance, 1.0)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (("SFF", "FFF", "FFG"), Kind.CLEAR),
        (("SFF", "FHF", "FFG"), Kind.RISKY),
        (("SHG", "FFF"), Kind.DETOUR),
        (("HSG", "HHH"), Kind.CLEAR),
    ],
)
def test_the_kind_of_a_lake(rows, kind):
    assert read_lake(rows).kind() is kind


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ((), "map 0 is empty"),
        (("SF", "G"), "row 1 has 1 cells"),
        (("SX", "FG"), "holds `X`"),
        (("FF", "FG"), "0 cells `S`"),
        (("SG", "FG"), "2 cells `G`"),
        (("SH", "HG"), "no way over ice"),
    ],
)
def test_a_bad_map_is_refused_with_its_reason(rows, reason):
    with pytest.raises(ValueError, match=reason):
        FrozenLakeSettings(maps=(rows,))


def test_own_maps_are_the_instances_and_symmetric_ones_share_a_split():
    maps = (("SFF", "FHG"), ("GHF", "FFS"), ("SFFFG",), ("FSFGF",))
    settings = FrozenLakeSettings(maps=maps)
    seen = {
        split: {draw_instance(settings, split=split, seed=seed).key() for seed in range(60)}
        for split in Split
    }
    assert not seen[Split.TRAIN] & seen[Split.EVALUATION]
    assert seen[Split.TRAIN] | seen[Split.EVALUATION] == {read_lake(rows).key() for rows in maps}
    assert read_lake(maps[0]).key() == read_lake(maps[1]).key()


def test_a_single_map_has_no_evaluation_instance():
    with pytest.raises(UnsatisfiableSettingsError, match="none of the 1 maps"):
        draw_instance(FrozenLakeSettings(maps=(("SG",),)), split=Split.EVALUATION, seed=0)


def test_a_grid_and_its_eight_images_have_one_canonical_text():
    cells = np.array(list("SFFFHFFFGFFH")).reshape(3, 4)
    images = [np.rot90(half, turns) for half in (cells, cells.T) for turns in range(4)]
    keys = {
        canonical("".join(image.ravel()), height=image.shape[0], width=image.shape[1])
        for image in images
    }
    assert len(keys) == 1
    other = canonical("SFFFHFFFGFHF", height=3, width=4)
    assert other not in keys


def test_texts_and_trace_of_a_state():
    environment = on_ice(("SFH", "FFF", "FFG"), intended_probability=1.0, start=4)
    assert environment.observation() == "__O\n_P_\n__G"
    assert environment.compact() == "P 1,1 Li Di Ri Ui\nG 2,2\nH 0,2"
    assert environment.trace(["Right", "Down"]) == "P 1,1 G 2,2 end 2,2"
    assert environment.trace(["Right", "Up"]) == "P 1,1 G 2,2 end 0,2"


def test_coordinates_name_player_goal_and_holes():
    environment = FrozenLake(FrozenLakeSettings(observation="coord"))
    environment.reset(seed=0)
    lake = environment._lake
    text = environment.observation()
    assert f"Player (row, column): {divmod(lake.start, 4)}" in text
    assert f"Goal: {divmod(lake.goal, 4)}" in text


def test_the_naive_player_goes_right_then_down_and_sees_no_hole():
    environment = on_ice(("SHF", "FFF", "FFG"), intended_probability=1.0, start=0)
    assert environment.naive_action() == "Right"
    environment = on_ice(("GFF", "FFF", "FFS"), intended_probability=1.0, start=8)
    assert environment.naive_action() == "Down"
