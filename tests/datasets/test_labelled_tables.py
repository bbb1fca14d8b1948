"""Labelled tables: the same examples in every form, names and numbers as they are, and bad rows by their lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import odp
from odp.datasets.labelled_tables import LabelledColumns, column_name
from odp.datasets.table_files import is_table_file
from odp.errors import ConfigurationError, DataError
from odp.evaluation.users import user_seeds
from odp.models.example_tables import examples_for, split_for
from odp.research.simulation.labelled_check import read_for

Row = tuple[str, int | None, str, str, str]
NAMES = ("Who", "Some Length", "word", "code", "Is spam?")
FORMS = ("csv", "semicolon.csv", "tsv", "csv.gz", "jsonl", "parquet", "pandas", "polars", "arrow")
DATA = odp.Examples(
    {"some_length": odp.Tensor((), 0, 100), "word": odp.Category(("a", "b", "ü")), "code": odp.Category(("007", "7"))},
    label="is_spam", classes=("ham", "spam"),
)  # fmt: skip
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["ann", "7", "007", "ü", "12"]), st.one_of(st.none(), st.integers(0, 10**6)),
        st.sampled_from(["a", "b", "ü", "a,b", 'say "a"', "x;y"]), st.sampled_from(["007", "7", "12"]),
        st.sampled_from(["ham", "spam"]),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


def written(rows: list[Row], form: str, folder: Path) -> Any:
    """The rows in one form, as a path or a frame."""
    columns = {name: [row[place] for row in rows] for place, name in enumerate(NAMES)}
    lengths = pd.array(columns["Some Length"], dtype="Int64")
    frame = pd.DataFrame(columns | {"Some Length": lengths})
    path = folder / f"table.{form}"
    match form:
        case "pandas":
            return frame
        case "polars":
            return pl.DataFrame(columns, schema_overrides={"Some Length": pl.Int64})
        case "arrow":
            return pa.table(columns | {"Some Length": pa.array(columns["Some Length"], pa.int64())})
        case "parquet":
            pq.write_table(written(rows, "arrow", folder), path)
        case "jsonl":
            path.write_text(
                "".join(json.dumps(dict(zip(NAMES, row, strict=True)), ensure_ascii=False) + "\n" for row in rows),
                encoding="utf-8",
            )
        case _:
            mark = {"semicolon.csv": ";", "tsv": "\t"}.get(form, ",")
            frame.to_csv(path, sep=mark, index=False)
    return path


def read(source: Any, **options: Any) -> odp.data.ExampleColumns:
    return odp.data.load_examples(source, user="Who", label="Is spam?", text=("code",), **options)


def examples_of(people: odp.data.ExampleColumns) -> dict[str, list[tuple[Any, ...]]]:
    """Of each user, its examples in their order, as a task reads them."""
    assert people.user_ids is not None
    users = people.users_examples(DATA)
    found = {}
    for place, name in enumerate(people.user_ids.tolist()):
        features, labels = users.of(place)
        found[str(name)] = [(*row.tolist(), str(label)) for row, label in zip(features, labels, strict=True)]
    return found


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS)
@pytest.mark.slow
def test_each_form_gives_the_same_examples(tmp_path: Path, rows: list[Row]) -> None:
    expected: dict[str, list[tuple[Any, ...]]] = {}
    for who, length, word, code, label in rows:
        number = {"a": 0.0, "b": 1.0, "ü": 2.0}.get(word, np.nan)
        cells = (np.nan if length is None else float(length), number, {"007": 0.0, "7": 1.0}.get(code, np.nan), label)
        expected.setdefault(who, []).append(cells)
    for form in FORMS:
        assert repr(sorted(examples_of(read(written(rows, form, tmp_path))).items())) == repr(sorted(expected.items()))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ROWS, st.sampled_from(["guest", "999", "Ann", "0"]), st.sampled_from(FORMS))
def test_one_user_more_moves_no_example_no_part_and_no_seed_of_another(
    tmp_path: Path, rows: list[Row], name: str, form: str
) -> None:
    def facts(given: list[Row]) -> dict[str, Any]:
        people = read(written([*fixed, *given], form, tmp_path))
        split = split_for(DATA, people, seed=3)
        assert people.user_ids is not None
        seeds = user_seeds(split.train, 5)
        trained = {
            str(who): (int(seeds[place]), repr(split.train.of(place)[0].tolist()))
            for place, who in enumerate(people.user_ids.tolist())
        }
        return {who: fact for who, fact in trained.items() if who != name}

    # With these, some examples are for tests and some for training.
    fixed: list[Row] = [(f"u{number}", number, "a", "7", "ham") for number in range(60)]
    more: list[Row] = [(name, 3, "b", "12", "spam")]
    assert facts(rows) == facts([*rows, *more])


def test_labels_are_text_as_it_is_written_and_numbers_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "user,x,flag,zip,long,label\nann,1.5,true,01234,1234567890123456,Ja\nbob,NA,FALSE,99999,2,nein\nann,,,1,3,\n"
    )
    columns = odp.data.load_examples(path).columns
    np.testing.assert_array_equal(columns["x"], np.float32([1.5, np.nan, np.nan]))
    np.testing.assert_array_equal(columns["flag"], np.float32([1, 0, np.nan]))
    assert columns["zip"].tolist() == ["01234", "99999", "1"]
    assert columns["long"].tolist() == ["1234567890123456", "2", "3"]
    assert columns["label"].tolist() == ["Ja", "nein", ""]


@pytest.mark.parametrize(("cells", "expected"), [(["0", "1"], [0, 1]), (["true", "False"], ["true", "false"])])
def test_labels_of_two_values_keep_their_kind(tmp_path: Path, cells: list[str], expected: list[Any]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("user,x,label\n" + "".join(f"ann,{place},{cell}\n" for place, cell in enumerate(cells)))
    assert odp.data.load_examples(path).columns["label"].tolist() == expected
    if isinstance(expected[0], str):
        frame = pd.DataFrame({"user": ["ann", "ann"], "x": [0, 1], "label": [True, False]})
        assert odp.data.load_examples(frame).columns["label"].tolist() == expected


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.decimal128(20, 0), pa.dictionary(pa.int8(), pa.int64())])
def test_long_whole_numbers_keep_their_digits_beside_missing_ones(tmp_path: Path, kind: pa.DataType) -> None:
    """2**53 and 2**53 + 1 were one class as soon as one row had none."""
    cells = [2**53, 2**53 + 1, None]
    plain = pa.array(cells, kind.value_type if pa.types.is_dictionary(kind) else kind)
    labels = plain.dictionary_encode() if pa.types.is_dictionary(kind) else plain
    table = pa.table({"user": ["a", "b", "c"], "x": [1, 2, 3], "label": labels})
    pq.write_table(table, tmp_path / "long.parquet")
    for source in (table, tmp_path / "long.parquet"):
        assert odp.data.load_examples(source).columns["label"].tolist() == [str(2**53), str(2**53 + 1), ""]


def test_a_word_among_numbers_is_refused_by_its_line_or_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('user,x,label\nann,1,a\nann,unknown,b\n,3,a\nbob,"1,5",a\nbob,4,b\n')
    with pytest.raises(DataError, match="3 of 5 rows are bad") as refusal:
        odp.data.load_examples(path)
    for told in (
        "no number as a value (column 'x'): line 3",
        "no user (column 'user'): line 4",
        "comma",
        "line 5",
        "--text",
    ):
        assert told in str(refusal.value)
    people = odp.data.load_examples(path, on_error="skip")
    assert people.columns["x"].tolist() == [1, 4]
    assert "3 bad rows were left out" in people.notes[0]
    words = odp.data.load_examples(path, text=["x"], on_error="skip").columns["x"]
    assert words.tolist() == ["1", "unknown", "1,5", "4"]


def test_lines_with_other_numbers_of_fields_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("user,x,label\nann,1,a\nann,2,b,c\nbob,3,a\n")
    with pytest.raises(DataError, match="4 fields where the header has 3: line 3"):
        odp.data.load_examples(path)


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        ("user,x,y1", {}, "no column of labels was recognised; name one with label=.."),
        ("who,x,label", {}, "no column of users was recognised"),
        ("user,x,label,target", {}, "label could be 'label' or 'target'"),
        ("user,x,x,label", {}, "would be 'x' in a task"),
        ("user,Über uns,label,ueber uns,uber-uns,uber uns", {}, "rename it"),
        ("user,!,label", {}, "no name"),
        ("user,x,label", {"label": "lable"}, "no column 'lable' for the label; did you mean 'label'"),
        ("Who,x,label", {"label": "who", "user": "Who"}, "cannot be the label"),
        ("user,x,label", {"user": "x"}, "column 'user' would be 'user' in a task, the name of ids; rename it"),
    ],
)  # fmt: skip
def test_columns_that_are_not_certain_are_refused(
    tmp_path: Path, header: str, options: dict[str, Any], message: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_text(header + "\n" + ",".join("1" for _ in header.split(",")) + "\n")
    with pytest.raises(DataError, match=message.replace(".", r"\.")):
        odp.data.load_examples(path, **options)


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="different columns"):
        odp.data.load_examples(tmp_path / "t.csv", user="x", label="x")
    with pytest.raises(ConfigurationError, match="on_error"):
        odp.data.load_examples(tmp_path / "t.csv", on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="text="):
        odp.data.load_examples(tmp_path / "t.csv", text="x")
    with pytest.raises(DataError, match="expected a table"):
        odp.data.load_examples("synthetic")


def test_a_text_that_would_take_gigabytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odp.datasets.labelled_tables._MOST_TEXT_BYTES", 10**6)
    frame = pd.DataFrame({"user": range(100), "text": ["a"] * 99 + ["a" * 5000], "label": ["a", "b"] * 50})
    with pytest.raises(DataError, match="'text' has a text of 5,000 characters"):
        odp.data.load_examples(frame)


@pytest.mark.parametrize(
    ("text", "name"),
    [("Is spam?", "is_spam"), ("x", "x"), ("Größe (cm)", "gro_e_cm"), ("a.b-c", "a.b-c"), ("年齢", ""), ("_x_", "x")],
)
def test_columns_have_names_that_a_task_can_have(text: str, name: str) -> None:
    assert column_name(text) == name


def test_what_is_read_shows_no_data(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("user,x,label\nann,1,secret\nbob,2,other\n")
    assert is_table_file(path)
    assert "secret" not in repr(odp.data.load_examples(path))


def test_without_the_extra_one_line_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.csv"
    path.write_text("user,x,label\nann,1,a\n")
    monkeypatch.setattr("odp._system.extras.is_installed", lambda module: module != "pyarrow")
    with pytest.raises(
        ConfigurationError, match=r"cannot read tables: pyarrow is not installed: .*odp-platform\[data\]"
    ):
        odp.data.load_examples(path)


def test_a_table_of_bad_rows_alone_says_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("user;x;label\nann;1,5;a\nbob;2,5;b\n")
    with pytest.raises(DataError, match=r"no usable rows.*2 x a decimal comma.*line 2, 3"):
        odp.data.load_examples(path, on_error="skip")


@pytest.mark.parametrize(
    ("cells", "feature", "message"),
    [
        (["7", "1,234.5", "9,876.1"], odp.Tensor((), 0, 9), "'x' is read as text, .* reads numbers: line 3 has"),
        (["7", "8", "007"], odp.Tensor((), 0, 9), "'x' is read as text, .* reads numbers: line 4 has"),
        (["a", "8", "b"], odp.Category(9), "'x' is read as text, .* reads numbers: line 2 has"),
        (["7", "8", "9"], odp.Text(("7", "8"), 2), r"'x' is read as numbers, and the task reads text: .*--text x"),
        (["1", "2", "none"], odp.Category(("1", "2", "none")), "none of which is called 'none'.*--text x"),
        (["1.0", "2.0", "1.0"], odp.Category(("1.0", "2.0")), "none of which is called '1.0'.*--text x"),
    ],
)  # fmt: skip
def test_a_column_of_another_kind_than_its_task_declares_is_refused_by_its_place(
    tmp_path: Path, cells: list[str], feature: Any, message: str
) -> None:
    """Of categories "none" and "1.0" all rows were left out, and other columns were refused without a place."""
    task = odp.Task(
        name="x", model=odp.Glm("logistic", feature.encoded_size), data=odp.Examples({"x": feature}, label="y"),
        training=odp.DPFedAvg(rounds=1), privacy=odp.UserLevelDP(epsilon=8, delta=1e-5),
        cohort=odp.Cohort(minimum=2, goal=3),
    )  # fmt: skip
    file = tmp_path / "x.csv"
    pd.DataFrame({"user": ["a", "b", "c"], "x": cells, "y": [0, 1, 0]}).to_csv(file, index=False)
    for read in (lambda: examples_for(task.data, file, {}), lambda: read_for(task, file, LabelledColumns(user="user"))):
        with pytest.raises(DataError, match=message):
            read()


def test_a_label_of_missing_words_is_no_class_unless_it_is_declared_text(tmp_path: Path) -> None:
    """Of classes "1", "2" and "none" the rows of the third were read as rows without a label."""
    data = odp.Examples({"x": odp.Tensor((), 0, 9)}, label="y", classes=("1", "2", "none"))
    file = tmp_path / "x.csv"
    pd.DataFrame({"user": ["a", "b", "c"], "x": [1, 2, 3], "y": ["1", "2", "none"]}).to_csv(file, index=False)
    with pytest.raises(DataError, match=r"'y' is read as numbers, none of which is called 'none'.*--text y"):
        examples_for(data, file, {})
    labels = examples_for(data, file, {"text": ("y",)}).columns["y"]
    assert labels.tolist() == ["1", "2", "none"]
    pd.DataFrame({"user": ["a", "b"], "x": [1, 2], "y": ["1", "2"]}).to_csv(file, index=False)
    assert examples_for(data, file, {}).columns["y"].tolist() == [1, 2]
