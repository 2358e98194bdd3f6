"""Code digest of a stage: its module and everything of ours that this module imports, by syntax.

Entry points written as text (`"envs.sokoban:Sokoban"`) count as imports. A user's module outside
the project brings its own top-level package along; installed libraries do not count, their versions
are in the provenance. Comments, docstrings and formatting do not count either, so a comment re-runs
nothing; any other changed line re-runs the stages that can reach it (acceptance: a changed helper
never gives a stale result).
"""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

from tasks.digest import digest_json
from tasks.errors import SettingsError

PACKAGES = frozenset({"flows", "tasks", "envs", "models"})
ENTRY_POINT = re.compile(r"(?P<module>\w+(\.\w+)+):\w+")
ROOT = Path(__file__).resolve().parent.parent


@cache
def code_digest(module: str, *, root: Path = ROOT) -> str:
    """Digest of the module's import closure inside the project and the module's own package.

    Args:
        module: Dotted name, e.g. `tasks.filter`.
        root: Folder that holds the packages.

    Raises:
        SettingsError: There is no such module, or it is not Python source.
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
            parent = name.rpartition(".")[0]  # its `__init__` runs first
            waiting += [parent, *_imports(root, name)] if parent else _imports(root, name)
    return frozenset(name for name in seen if _find(root, name))


@cache
def _parse(root: Path, module: str) -> ast.Module:
    path = _find(root, module)
    if path is None:
        raise SettingsError(
            f"there is no Python source of a module `{module}`\n"
            "hint: write `package.module:name`, and start from the folder that holds the package"
        )
    tree = ast.parse(path.read_text())
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
    path = _find(root, module)
    package = module if path and path.name == "__init__.py" else module.rpartition(".")[0]
    names: set[str] = set()
    for node in ast.walk(_parse(root, module)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(package, node)
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            entry_point = ENTRY_POINT.fullmatch(node.value)
            names.update([entry_point["module"]] if entry_point else [])
    ours = PACKAGES | {module.partition(".")[0]}
    return tuple(
        sorted(name for name in names if name.partition(".")[0] in ours and _find(root, name))
    )


def _absolute(package: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
    return f"{base}.{node.module}" if node.module else base


@cache
def _find(root: Path, module: str) -> Path | None:
    """The module's source; None when there is none."""
    path = root.joinpath(*module.split("."))
    found = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if module.partition(".")[0] in PACKAGES:
        return found if found.is_file() else None
    try:
        spec = importlib.util.find_spec(module)
    except (ModuleNotFoundError, ValueError):
        return None
    origin = Path(spec.origin) if spec and spec.origin else None
    return origin if origin is not None and origin.suffix == ".py" else None
