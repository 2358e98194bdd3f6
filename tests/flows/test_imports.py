"""What a command imports before it knows that there is anything to compute."""

import ast
import subprocess
import sys

import pytest

from flows.defaults import ROOT


def test_an_unchanged_run_needs_neither_torch_nor_transformers() -> None:
    code = "import flows.starpo, sys; print({'torch', 'transformers'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


@pytest.mark.parametrize("folder", ["flows", "tasks", "envs", "models"])
def test_E11_only_dvc_itself_writes_its_files(folder: str) -> None:
    """A repository lock that arms would wait for is never taken: nothing of ours calls DVC."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    assert all(name.name.partition(".")[0] != "dvc" for name in names), path
                case ast.ImportFrom(module=module):
                    assert (module or "").partition(".")[0] != "dvc", path
                case ast.Constant(value=word):
                    assert word != "dvc", f"{path} names the command"
