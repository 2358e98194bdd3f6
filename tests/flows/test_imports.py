"""What a command imports before it knows that there is anything to compute."""

import subprocess
import sys


def test_an_unchanged_run_needs_neither_torch_nor_transformers() -> None:
    code = "import flows.starpo, sys; print({'torch', 'transformers'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
