"""`odp data`: sizes of data sets, and digests as given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cli.conftest import Printed

from odp.cli.data import _digests
from odp.errors import ConfigurationError

Odp = Callable[..., Printed]


def test_info_prints_sizes_and_no_ratings(odp: Odp) -> None:
    data = "synthetic:n_users=130,n_items=30,ratings_per_user=12"
    found = odp("data", "info", data, "--json").json
    assert (found["users"], found["items"], found["low"], found["high"]) == (130, 30, 1.0, 5.0)
    assert found["density"] == pytest.approx(found["ratings"] / 3900)
    assert "users      130\n" in odp("data", "info", data).out


def test_list_names_what_can_be_fetched(odp: Odp) -> None:
    assert "ml-1m" in odp("data", "list").err


def test_digests_are_one_or_one_per_file() -> None:
    assert _digests([]) is None
    assert _digests(["ab"]) == "ab"
    assert _digests(["a.csv=ab", "b.csv=cd"]) == {"a.csv": "ab", "b.csv": "cd"}
    for mixed in (["ab", "cd"], ["ab", "b.csv=cd"]):
        with pytest.raises(ConfigurationError, match="one --sha256 DIGEST, or --sha256 FILE=DIGEST for each file"):
            _digests(mixed)
