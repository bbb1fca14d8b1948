"""What an enclave can import: the measured files, by path; no cache of its own packages, no neighbour, no link."""

from __future__ import annotations

import importlib
import importlib.util
import py_compile
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from odp.enclave.loader import MeasuredFinder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """One package of ours, two libraries of which one was measured, and a standard library."""
    for name, text in {
        "ours/measured_ours/__init__.py": "",
        "ours/measured_ours/part.py": "value = 'source'",
        "ours/measured_ours/bare/inner.py": "value = 'a folder without __init__'",
        "ours/neighbour.py": "value = 'not measured'",
        "site/library/__init__.py": "",
        "site/library/part.py": "value = 'measured'",
        "site/library/added.py": "value = 'added after the installation'",
        "site/spread/part.py": "value = 'in a namespace package'",
        "site/unmeasured/__init__.py": "",
        "standard/kept.py": "value = 'standard'",
        "standard/left_out.py": "value = 'a part that is not measured'",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.fixture
def finder(tree: Path) -> Iterator[MeasuredFinder]:
    measured = ("library/__init__.py", "library/part.py", "spread/part.py")
    made = MeasuredFinder(
        packages={"measured_ours": str(tree / "ours" / "measured_ours")},
        standard=[str(tree / "standard")],
        standard_names=frozenset({"kept"}),
        folders=[str(tree / "site")],
        files=frozenset(str(tree / "site" / name) for name in measured),
    )
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "meta_path", [made])
        yield made
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("measured_ours.part", "source"),
        ("library.part", "measured"),
        ("spread.part", "in a namespace package"),
        ("kept", "standard"),
    ],
)
def test_what_was_measured_is_imported(finder: MeasuredFinder, name: str, value: str) -> None:
    assert importlib.import_module(name).value == value


@pytest.mark.parametrize(
    "name",
    ["neighbour", "library.added", "unmeasured", "left_out", "measured_ours.missing", "measured_ours.bare", "pip"],
)
def test_what_was_not_measured_does_not_exist(finder: MeasuredFinder, name: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(name)


def test_a_cache_beside_the_source_of_our_packages_is_neither_read_nor_written(
    finder: MeasuredFinder, tree: Path
) -> None:
    source = tree / "ours" / "measured_ours" / "part.py"
    genuine = source.read_text()
    source.write_text(genuine.replace("source", "forged"))
    compiled = Path(py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH))
    source.write_text(genuine)
    forged = compiled.read_bytes()
    assert importlib.import_module("measured_ours.part").value == "source"
    assert compiled.read_bytes() == forged
    # The same cache is what Python itself would have run.
    spec = importlib.util.spec_from_file_location("measured_ours_by_python", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.value == "forged"


def test_code_without_source_is_not_imported(finder: MeasuredFinder, tree: Path) -> None:
    source = tree / "ours" / "measured_ours" / "gone.py"
    source.write_text("value = 1")
    py_compile.compile(str(source), cfile=str(source.with_suffix(".pyc")))
    source.unlink()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("measured_ours.gone")


def test_machine_code_that_numba_kept_is_not_loaded(
    finder: MeasuredFinder, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tree / "site" / "numba" / "core"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "__init__.py").write_text("")
    (folder / "caching.py").write_text(
        "class NullCache: pass\nclass FunctionCache:\n    def __init__(self, function): pass\n"
    )
    files = {str(path) for path in (tree / "site" / "numba").rglob("*.py")}
    monkeypatch.setattr(finder, "_files", finder._files | files)
    for name in [name for name in sys.modules if name.partition(".")[0] == "numba"]:
        monkeypatch.delitem(sys.modules, name)
    caching = importlib.import_module("numba.core.caching")
    assert type(caching.FunctionCache(print)) is caching.NullCache
