"""P1, P2, P3, C6: a run that is killed at random moments and continued loses and repeats nothing.

The same as `make kill-test`, with fewer kills.
"""

import subprocess
import sys

import pytest

from flows.defaults import ROOT

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.mark.parametrize("what", [[], ["--sweep", "smoke"]], ids=["training", "sweep"])
def test_P1_P2_P3_C6_killed_equals_uninterrupted(what: list[str]) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "kill_test.py"), "--kills", "2", "--seed", "3"]
    script += what
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
