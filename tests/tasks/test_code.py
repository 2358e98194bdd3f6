from pathlib import Path

import pytest

from tasks.code import _find, _imports, _parse, _syntax, code_digest, import_closure
from tasks.errors import SettingsError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "tasks/__init__.py": "",
        "tasks/stage_a.py": '"""Doc."""\nfrom models import helper\n\nENTRY = "envs.game:Game"\n',
        "models/__init__.py": "",
        "models/helper.py": "def double(x):\n    return 2 * x\n",
        "models/unused.py": "x = 1\n",
        "envs/__init__.py": "",
        "envs/game.py": "class Game: ...\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def _digest_after(root: Path, name: str, text: str) -> str:
    (root / name).write_text(text)
    for function in (_find, _parse, _syntax, _imports, code_digest):
        function.cache_clear()
    return code_digest("tasks.stage_a", root=root)


def test_the_closure_follows_imports_and_entry_points(root: Path) -> None:
    closure = import_closure("tasks.stage_a", root=root)
    assert closure == {"tasks", "tasks.stage_a", "models", "models.helper", "envs", "envs.game"}


def test_a_changed_line_of_a_helper_changes_the_digest(root: Path) -> None:
    before = code_digest("tasks.stage_a", root=root)
    assert _digest_after(root, "models/helper.py", "def double(x):\n    return 3 * x\n") != before


def test_comments_docstrings_and_layout_change_nothing(root: Path) -> None:
    before = code_digest("tasks.stage_a", root=root)
    text = '# new\ndef double(x):\n    """Doubles."""\n\n    return (2 *\n        x)\n'
    assert _digest_after(root, "models/helper.py", text) == before


def test_a_module_outside_the_closure_changes_nothing(root: Path) -> None:
    before = code_digest("tasks.stage_a", root=root)
    assert _digest_after(root, "models/unused.py", "x = 2\n") == before


@pytest.fixture
def users_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "lab_of_a_user"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "rewards.py").write_text("import json\nfrom .helpers import scale\n")
    (folder / "helpers.py").write_text("def scale(x):\n    return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_a_users_module_brings_its_own_package_and_no_library(users_package: Path) -> None:
    del users_package
    closure = import_closure("lab_of_a_user.rewards")
    assert closure == {"lab_of_a_user", "lab_of_a_user.rewards", "lab_of_a_user.helpers"}


def test_a_module_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="nobody.wrote.this"):
        code_digest("nobody.wrote.this")
