"""Tables at 80 columns: no header and no number is cut or broken, whatever stands beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.table import Column, Table

from odp.cli.console import console, results_console
from odp.cli.folding import fitting

PACKAGE = Path(__file__).resolve().parents[2] / "odp"
NUMBERS = ("1,234,567", "0.123456789", "8.123456", "1,234.5 MB", "0.8412 ± 0.0012", "-12.5", "999 to 1,000")
NAME = "a task whose name is long, by-a-developer-of-many-hyphenated-words"


def tables() -> Iterator[tuple[str, list[str]]]:
    """Where each table of the package is made, and those of its headers that stand in the code."""
    for path in sorted(PACKAGE.rglob("*.py")):
        code = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(code)) if re.search(r"(?<![\w.])Table\(", code) else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Table":
                heads = [_header(argument) for argument in node.args]
                if any(heads):
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", [head for head in heads if head is not None]


def _header(node: ast.expr) -> str | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Column" and node.args:
        return _header(node.args[0])
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def words(printed: str) -> list[str]:
    """What stands between borders and blanks."""
    return re.split(r"[\s│┃┏┓┗┛┡┩└┘┳┻╇┴┬┼━─]+", printed)


def test_tables_of_the_package_are_found() -> None:
    found = [heads for _where, heads in tables()]
    assert len(found) > 15
    assert ["task", "name", "state", "round", "contributions", "ε spent", "usable"] in found


@pytest.mark.parametrize(("where", "heads"), [pytest.param(*one, id=one[0]) for one in tables()])
@pytest.mark.parametrize("width", [80, 60])
def test_no_header_and_no_number_is_cut(
    where: str, heads: list[str], width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    table = Table(*heads, title=f"table of {where}")
    numbers = [NUMBERS[place % len(NUMBERS)] for place in range(len(heads))]
    table.add_row(*numbers)
    table.add_row(*[NAME if place % 3 == 0 else number for place, number in enumerate(numbers)])
    results_console().print(table)
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert "\x1b" not in printed
    assert max(map(len, printed.splitlines())) <= width
    shown = words(printed)
    for word in " ".join(heads).split():
        assert word in shown, word
    for number in numbers:
        assert number in printed, number
    assert [word for word in words(NAME) if len(word) <= 24 and word not in shown] == []


def test_a_table_that_cannot_fit_comes_in_parts_that_repeat_the_first_column() -> None:
    table = Table("task", *(f"measurement-{number}" for number in range(8)), title="all")
    table.add_row("films", *("0.12345" for _ in range(8)))
    parts = fitting(table, 60)
    assert len(parts) > 1
    assert {str(part.columns[0].header) for part in parts} == {"task"}
    assert [part.title for part in parts] == ["all", *[None] * (len(parts) - 1)]
    heads = [str(column.header) for part in parts for column in part.columns[1:]]
    assert heads == [f"measurement-{number}" for number in range(8)]
    assert [column.width for column in table.columns] == [None] * 9, "the table itself is left as it was"


def test_a_table_that_fits_is_as_narrow_as_its_words() -> None:
    table = Table("a", Column("b", justify="right"))
    table.add_row("x", "1")
    (part,) = fitting(table, 80)
    assert [column.width for column in part.columns] == [1, 1]
    assert part.columns[1].justify == "right"


@pytest.mark.parametrize(("columns", "width"), [("", 80), ("120", 120), ("none", 80), ("0", 80)])
def test_a_pipe_has_80_columns_unless_columns_says_otherwise(
    columns: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert results_console().width == width
    assert console().width == width
