"""XSB collections: Microban and Boxoban texts load, bad levels are refused by file and line."""

import pytest

from envs.base import Split
from envs.errors import LevelFileError, UnsatisfiableSettingsError
from envs.sokoban import Sokoban
from envs.sokoban_files import load_levels, parse_levels
from envs.sokoban_instances import SokobanSettings

MICROBAN = """; 1

####
# .#
#  ###
#*@  #
#  $ #
#  ###
####

; 2

######
#    #
# #@ #
# $* #
# .* #
#    #
######

Title: third one
Author: somebody

  ####
###  ####
#     $ #
# #  #$ #
# . .#@ #
#########
"""
BOXOBAN = """; 0
##########
##########
##########
#######  #
######## #
#   ###. #
#   $    #
#  $@ .  #
#       ##
##########

; 1
##########
#@-$-.-###
##########
"""


def test_microban_levels_have_their_known_optimal_lengths():
    lengths = [level.length for level in parse_levels(MICROBAN, file="microban.txt")]
    assert lengths == [33, 16, 41]


def test_boxoban_levels_load_with_other_blanks():
    first, second = parse_levels(BOXOBAN, file="boxoban.txt")
    assert first.boxes.bit_count() == 2
    assert second.length == 3


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("; 0\n####\n#$.#\n####\n", 2, "no player"),
        ("#####\n#@@$.#\n######\n", 1, "2 players"),
        ("######\n#@$  #\n######\n", 1, "1 boxes for 0 targets"),
        ("######\n#@  .#\n######\n", 1, "0 boxes for 1 targets"),
        ("######\n#@$ .\n######\n", 1, "border is open"),
        ("#@$.#\n######\n", 1, "border is open"),
        ("\n\n######\n#@$x.#\n######\n", 4, "unknown sign `x`"),
        ("######\n#@* *#\n######\n", 1, "already solved"),
        ("#####\n#$  #\n#  @#\n#  .#\n#####\n", 1, "no solution"),
        ("#########\n#@$ .#$.#\n#########\n", 2, "cannot be reached"),
    ],
)
def test_a_bad_level_is_refused_with_file_line_and_reason(tmp_path, text, line, reason):
    path = tmp_path / "bad.txt"
    path.write_text(text)
    with pytest.raises(LevelFileError, match=reason) as caught:
        load_levels(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert "\nhint: " in str(caught.value)


def test_a_file_without_levels_and_a_missing_file_are_named(tmp_path):
    path = tmp_path / "none.txt"
    path.write_text("no level here\n")
    with pytest.raises(LevelFileError, match="no level found"):
        load_levels(path)
    with pytest.raises(FileNotFoundError, match="hint: give `levels_file`"):
        load_levels(tmp_path / "absent.txt")


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "levels.txt"
    path.write_text("######\n#@$ .#\n######\n")
    assert [level.length for level in load_levels(path)] == [2]
    path.write_text("#######\n#@$  .#\n#######\n")
    assert [level.length for level in load_levels(path)] == [3]


def test_levels_of_a_file_are_shared_out_between_the_splits(tmp_path):
    path = tmp_path / "levels.txt"
    path.write_text(MICROBAN)
    seen = {}
    for split in Split:
        environment = Sokoban(SokobanSettings(levels_file=path), split=split)
        seen[split] = set()
        for seed in range(40):
            environment.reset(seed=seed)
            seen[split].add(environment.level())
    assert not seen[Split.TRAIN] & seen[Split.EVALUATION]
    assert (len(seen[Split.TRAIN]), len(seen[Split.EVALUATION])) == (2, 1)


def test_bounds_on_the_length_choose_among_the_levels_of_a_file(tmp_path):
    path = tmp_path / "levels.txt"
    path.write_text("######\n#@$ .#\n######\n\n#######\n#@$  .#\n#######\n")
    for length in (2, 3):
        reachable = []
        for split in Split:
            settings = SokobanSettings(levels_file=path, min_solution=length, max_solution=length)
            environment = Sokoban(settings, split=split)
            try:
                environment.reset(seed=0)
                reachable.append(environment.strata())
            except UnsatisfiableSettingsError as error:
                assert "none of the 2 levels" in str(error)  # noqa: PT017 - one split of the two
        assert reachable == [f"length {length}"]
