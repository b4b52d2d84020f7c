"""The package as a whole: what it imports, what it exports, and that its documents tell the truth."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import asyncpatch

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "asyncpatch"

# Each module may import those on the lines above its own, and nothing on its own line or below.
ARROWS = """
checks options machine processes
protocols fields
process
parameterization oracle
time_sampling schedules adaptive steps loss
sampling guidance coverage drawing windows environment codecs
regions
completion likelihood baselines
models data metrics images settings
plans shipped
train pipelines
frames judging evaluation progress request shelf
serving
recipes
cli
__main__
"""


def imports(path: Path) -> set[str]:
    """Modules of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "asyncpatch":
            parts = node.module.split(".")
            found.update([parts[1]] if len(parts) > 1 else [n.name for n in node.names if n.name != "__version__"])
        elif isinstance(node, ast.Import):
            found.update(name.name.split(".")[1] for name in node.names if name.name.startswith("asyncpatch."))
    return found


def test_imports_follow_the_arrows():
    levels = [line.split() for line in ARROWS.strip().splitlines()]
    files = {path.stem: [path] for path in SOURCE.glob("*.py")} | {
        path.parent.name: sorted(path.parent.glob("*.py")) for path in SOURCE.glob("*/__init__.py")
    }
    modules = set(files) - {"__init__"}
    assert modules == {name for level in levels for name in level}, "a module is missing from ARROWS, or too many"
    above: set[str] = set()
    for level in levels:
        for name in level:
            found = set().union(*(imports(path) for path in files[name])) - {name}
            assert found <= above, f"{name} imports against the arrows: {found - above}"
        above.update(level)


def test_the_mathematics_needs_nothing_but_torch():
    mathematics = set(ARROWS.split()[: ARROWS.split().index("models")]) - {"coverage", "drawing"}
    for path in (SOURCE / f"{name}.py" for name in mathematics):
        tops = {
            (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
        }
        assert tops <= set(sys.stdlib_module_names) | {"torch", "asyncpatch"}, path.name


def test_importing_the_package_does_not_import_torch():
    code = (
        "import asyncpatch, sys; assert 'torch' not in sys.modules; asyncpatch.ddim; assert 'torch' in sys.modules; "
        "assert asyncpatch.fields.raster_order(2, 2).numel() == 4"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_type_checkers_see_is_what_is_exported():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    seen = {
        (node.module, name.name)
        for branch in tree.body
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name)
        for node in branch.body
        for name in node.names
    }
    assert seen == {(f"asyncpatch.{module}", name) for module, names in asyncpatch._HOME.items() for name in names} | {
        ("asyncpatch", name) for name in asyncpatch._MODULES
    }
    for _, name in seen:
        assert getattr(asyncpatch, name).__name__.removeprefix("asyncpatch.") == name
        assert name in dir(asyncpatch)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = asyncpatch.nonsense


@pytest.mark.parametrize("page", ["README.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))])
def test_the_python_in_the_documents_runs(page, tmp_path, monkeypatch):
    """All Python blocks of a page, one after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASYNCPATCH_CACHE", str(tmp_path / "cache"))
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)


def test_the_paper_map_names_what_exists():
    """Each `module.name` in the paper map must be there."""
    text = (ROOT / "docs" / "paper_map.md").read_text()
    named = re.findall(r"`((?:models\.|train\.)?\w+)\.(\w+)(?:\.(\w+))?[(`]", text)
    assert len(named) > 15
    for module, name, attribute in named:
        value = getattr(import_module(f"asyncpatch.{module}"), name)
        if attribute:
            assert hasattr(value, attribute), f"{module}.{name}.{attribute}"
