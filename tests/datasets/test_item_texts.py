"""Files of public item texts: what they say, and what is refused by name and line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import odp
from odp.datasets import ItemTexts, Ratings, auto_features
from odp.errors import DataError

CSV = 'item,title,tags\n7,"Jaws, again",shark sea\n3,Alien,space\n9,Aliens,space sea\n'
JSON = '{"item": 7, "tags": ["shark", "sea"]}\n\n{"item": "3", "title": "Alien", "tags": null}\n'


def ratings(**attributes: object) -> Ratings:
    return Ratings.from_triples(
        "films", [0, 0, 1], [0, 1, 2], [1.0, 2.0, 3.0], low=1.0, high=5.0,
        **{"item_ids": np.array([3, 7, 9]), **attributes},
    )  # fmt: skip


def written(folder: Path, content: str | bytes, name: str = "texts.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_texts_stand_in_the_order_of_the_items_whatever_their_order_in_the_file(tmp_path: Path) -> None:
    found = ItemTexts.read(written(tmp_path, CSV)).of(ratings())
    assert found == {"title": ["Alien", "Jaws, again", "Aliens"], "tags": ["space", "shark sea", "space sea"]}
    lines = ItemTexts.read(written(tmp_path, JSON, "texts.jsonl")).of(ratings())
    assert lines == {"tags": ["", "shark | sea", ""], "title": ["Alien", "", ""]}


def test_items_without_ids_are_called_by_their_numbers(tmp_path: Path) -> None:
    path = written(tmp_path, "item,text\n2,last\n0,first\n")
    assert ItemTexts.read(path).of(ratings(item_ids=None)) == {"text": ["first", "", "last"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("item,tags\n7,a\n8,b\n", r"item '8' is not in the catalogue of 'films', which has items such as '3'"),
        ("item,tags\n7,a\n7,b\n", r"texts.csv:3: item '7' stands in line 2 already"),
        ("item,tags\n7,  \n", r"texts.csv:2: item '7' has no text"),
        ("item,tags\n,a\n", r"texts.csv:2: the key 'item' is empty"),
        ("item,tags\n7\n", r"texts.csv:2: expected 2 fields \(got 1\)"),
        ('item,tags\n7,"a\n', r"texts.csv:2: not CSV"),
        ("film,tags\n7,a\n", r"texts.csv:1: expected a header line .* 'item'"),
        ("item,a,a\n7,a,b\n", r"texts.csv:1: expected a header line of distinct names"),
        ("item\n7\n", r"has no text"),
        ("item,tags\n", r"no item"),
        ("item,tags,b\n7,a,\n", r"the column 'b' has no text"),
        (b"item,tags\n3,a\n7,caf\xe9\n", r"texts.csv:3: not UTF-8"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ItemTexts.read(written(tmp_path, content)).of(ratings())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]\n", r"texts.jsonl:1: expected an object with the item's id"),
        ('{"item": true, "a": "b"}\n', r"expected an object with the item's id"),
        ('{"item": 3}\n', r"item '3' has no text"),
        ('\n{"item": 3, "a": [1]}\n', r"texts.jsonl:2: 'a': expected a text or a list of texts"),
        ("{", r"texts.jsonl:1: not JSON"),
        ('{"item": 3, "a": "b", "a": "c"}\n', r"texts.jsonl:1: the key 'a' twice in one object"),
        ('{"item": "caf\\u00e9", "a": "b"}\n{"item": "cafe\\u0301", "a": "b"}\n', r"stands in line 1 already"),
    ],
)
def test_a_bad_line_of_json_is_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        ItemTexts.read(written(tmp_path, content, "texts.jsonl"))


def test_a_missing_file_another_ending_and_a_file_too_large_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        ItemTexts.read(tmp_path / "none.csv")
    with pytest.raises(DataError, match=r"\.csv or \.jsonl"):
        ItemTexts.read(tmp_path / "texts.txt")
    monkeypatch.setattr("odp.datasets.item_texts.LARGEST_FILE", 20)
    with pytest.raises(DataError, match="larger than 20 bytes"):
        ItemTexts.read(written(tmp_path, CSV))


def test_every_kind_of_text_is_a_group_of_its_own(tmp_path: Path) -> None:
    texts = ItemTexts.read(written(tmp_path, CSV))
    flags = np.eye(3, dtype=np.float32)
    found = auto_features(ratings(titles=("Star One", "Star Two", "Moon"), features=flags), texts)
    assert list(found) == ["features", "title", "tags"]
    np.testing.assert_array_equal(found["features"], flags)
    without = auto_features(ratings(titles=("Star One", "Star Two", "Moon")))
    assert list(without) == ["title"]
    assert abs(without["title"][0] @ without["title"][1]) > 0.1, "the data set's own titles"
    assert abs(found["title"][0] @ found["title"][2]) > 0.1, "titles of the file stand in for them"


def test_data_without_anything_public_say_so() -> None:
    with pytest.raises(DataError, match="no genres, and no texts with words in common"):
        auto_features(ratings(titles=("One", "Two", "Three")))


def test_groups_become_one_matrix_that_remembers_them() -> None:
    groups = {"flags": np.eye(3), "image": np.ones((3, 2))}
    model = odp.MatrixFactorization(items=3, rank=2, item_features=groups)
    assert model.features is not None
    assert model.features.shape == (3, 5)
    assert list(model.to_proto().item_feature_groups) == [3, 2]
    import dataclasses

    again = dataclasses.replace(model, rank=1)
    assert again.to_proto().item_feature_groups == model.to_proto().item_feature_groups
    plain = odp.MatrixFactorization(items=3, rank=2, item_features=model.features)
    assert plain.features_sha256 == model.features_sha256
    assert not plain.to_proto().item_feature_groups, "one group is told as before"


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({}, "1 to 16 groups"),
        ({"": np.eye(3)}, "names"),
        ({"flags": np.eye(2)}, "group 'flags': .*one row per item, 3"),
        ({"image": np.full((3, 1), np.nan)}, "group 'image': .*finite"),
    ],
)
def test_a_bad_group_is_refused_by_its_name(groups: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(odp.errors.ConfigurationError, match=message):
        odp.MatrixFactorization(items=3, rank=2, item_features=groups)
