"""Code digest of a stage: its module and everything of ours that this module imports, by syntax.

Entry points written as text (`"envs.sokoban:Sokoban"`) count as imports.
Comments, docstrings and formatting do not count, so a comment re-runs nothing; any other changed
line re-runs the stages that can reach it (acceptance: a changed helper never gives a stale result).
"""

import ast
import re
from functools import cache
from pathlib import Path

from tasks.digest import digest_json

PACKAGES = ("flows", "tasks", "envs", "models")
ENTRY_POINT = re.compile(r"(?P<module>(flows|tasks|envs|models)(\.\w+)+):\w+")
ROOT = Path(__file__).resolve().parent.parent


@cache
def code_digest(module: str, *, root: Path = ROOT) -> str:
    """Digest of the module's import closure inside the four packages.

    Args:
        module: Dotted name, e.g. `tasks.filter`.
        root: Folder that holds the packages.
    """
    return digest_json(
        {name: _syntax(root, name) for name in sorted(import_closure(module, root=root))}
    )


def import_closure(module: str, *, root: Path = ROOT) -> frozenset[str]:
    """The module and all modules of the packages that it imports, directly or not."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += _imports(root, name)
    return frozenset(seen)


@cache
def _parse(root: Path, module: str) -> ast.Module:
    tree = ast.parse(_file(root, module).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = [*node.body[1:]] or [ast.Pass()]
    return tree


@cache
def _syntax(root: Path, module: str) -> str:
    return ast.dump(_parse(root, module))


@cache
def _imports(root: Path, module: str) -> tuple[str, ...]:
    names: set[str] = set()
    for node in ast.walk(_parse(root, module)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            entry_point = ENTRY_POINT.fullmatch(node.value)
            names.update([entry_point["module"]] if entry_point else [])
    ours = {name for name in names if name.split(".")[0] in PACKAGES}
    return tuple(sorted(name for name in ours if _exists(root, name)))


def _file(root: Path, module: str) -> Path:
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _exists(root: Path, module: str) -> bool:
    return _file(root, module).is_file()
