"""A name says what it holds: products bind no participle or number word that would need its context to be read.

``LEFT`` has the bindings that are public, so that they keep their name: arguments and fields of the API, keys of JSON
and of stored rows. Folders of ``MOST`` are not renamed yet, and may only lose such bindings.
"""

from __future__ import annotations

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("odp", "device_runtime", "distributor", "server", "trusted_aggregator")
GENERATED = ROOT / "odp" / "v1"

RIDDLES = frozenset(
    {"found", "one", "given", "known", "own", "kept", "drawn", "asked", "told", "room", "turns", "together"}
)

#: Bindings that stay, by module, and why.
LEFT = {
    "device_runtime/sdk.py": (["asked", "turns"], "arguments of Device.ask and Device.learn"),
    "odp/isolated/values.py": (["asked", "asked"], "what an app asked for, in the SDK"),
    "odp/models/warm_start.py": (["told"], "a method of odp.WarmStart"),
    "odp/operations/doctor.py": (["told"], "a key of `odp doctor --json`"),
    "odp/privacy/mechanisms/categorical.py": (["asked", "one"], "fields of odp.UnaryEncoding"),
    "odp/privacy/mechanisms/local_means.py": (["asked", "asked"], "fields of odp.LaplaceMean and odp.GaussianMean"),
    "odp/privacy/mechanisms/randomized_response.py": (["asked", "kept"], "of odp.RandomizedResponse"),
    "odp/privacy/mechanisms/scalar.py": (["asked"] * 4, "fields of odp.ScalarDP and its like"),
    "odp/research/reproductions/drawdiscard.py": (["found"], "a key of `odp reproduce drawdiscard --json`"),
    "odp/signed/charter.py": (["found"], "the verb: to found a population"),
    "odp/research/simulation/retraining.py": (["known"], "a key of `odp retrain --json`"),
    "odp/trust/log/repair.py": (["own"], "a key of `odp audit repair --json`"),
}

#: Bindings at most, of folders that are not renamed yet.
MOST = {"trusted_aggregator": 23, "odp/trust/enclave": 27, "distributor": 3}


def modules() -> list[Path]:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in paths if GENERATED not in path.parents]


def riddles(tree: ast.AST) -> Iterator[str]:
    """Every binding whose name is one of ``RIDDLES``, but for underscores at its ends."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.ClassDef(name=name) | ast.alias(asname=str(name)):
                pass
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                pass
            case _:
                continue
        if name.strip("_") in RIDDLES:
            yield name


@functools.cache
def by_module() -> dict[str, list[str]]:
    names = {path.relative_to(ROOT).as_posix(): sorted(riddles(ast.parse(path.read_text()))) for path in modules()}
    return {module: listed for module, listed in names.items() if listed}


def _folder_in_work(module: str) -> str | None:
    return next((folder for folder in MOST if module.startswith(f"{folder}/")), None)


def test_a_name_says_what_it_holds() -> None:
    expected = {module: names for module, (names, _) in LEFT.items()}
    assert {module: names for module, names in by_module().items() if _folder_in_work(module) is None} == expected


def test_folders_that_are_not_renamed_yet_gain_no_riddle() -> None:
    counts = Counter[str]()
    for module, names in by_module().items():
        folder = _folder_in_work(module)
        if folder is not None:
            counts[folder] += len(names)
    assert {folder: count for folder, count in counts.items() if count > MOST[folder]} == {}


@pytest.mark.parametrize(
    "source",
    [
        "found = 1", "self._known = 1", "def one(): ...", "async def _told(): ...", "class given: ...",
        "def f(own, /): ...", "def f(*kept): ...", "lambda drawn: 1", "[asked for asked in x]", "(room := 1)",
        "for turns in x: ...", "with x as together: ...", "try: ...\nexcept E as found: ...", "import x as found",
        "match x:\n    case {'a': known}: ...", "match x:\n    case [*own]: ...", "a, (b, one) = x", "found: int",
    ],
)  # fmt: skip
def test_every_way_to_bind_a_name_counts(source: str) -> None:
    assert len(list(riddles(ast.parse(source)))) == 1


@pytest.mark.parametrize("source", ["found_words = 1", "print(found, x.known)", "f(own=1)", "'found'", "x['one']"])
def test_longer_names_uses_and_texts_do_not_count(source: str) -> None:
    assert not list(riddles(ast.parse(source)))
