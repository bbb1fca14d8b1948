"""A program's description comes from a stranger: whatever it is, it is read exactly or refused by one clear error."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from odp.errors import ConfigurationError
from odp.models.litert.program import MOST_DESCRIPTION, Parameter, Program

from .compile_mlp import stored


def described(change: Callable[[dict[str, Any]], None]) -> str:
    given = json.loads(stored().to_json())
    change(given)
    return json.dumps(given)


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the last of ``path`` at the place that the others name."""

    def change(given: Any) -> None:
        for key in path[:-2]:
            given = given[key]
        given[path[-2]] = copy.deepcopy(path[-1])

    return change


def test_a_description_is_read_back() -> None:
    program = stored()
    assert Program.from_json(program.to_json(), program.flatbuffer) == program


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("metrics", ["fine\x1b[2J"]), "name of a metric to be printable"),
        (put("metrics", ["ok\u202egnp"]), "name of a metric to be printable"),
        (put("metrics", ["m" * 201]), "name of a metric to be printable text of 1 to 200"),
        (put("metrics", [""]), "name of a metric"),
        (put("metrics", ["a", "a"]), "a name of its own"),
        (put("metrics", ["loss"]), "not 'loss'"),
        (put("metrics", [f"m{place}" for place in range(65)]), "at most 64 metrics"),
        (put("parameters", 0, "name", "line\nbreak"), "description of a compiled network"),
        (put("parameters", 0, "name", "k" * 10_000), "description of a compiled network"),
        (put("batch", True), "batch=True"),
        (put("classes", 5.0), "classes=5.0"),
        (put("threshold", 10**400), "threshold=1"),
        (put("metrics", "accuracy"), "description of a compiled network"),
        (put("metrics", [1]), "description of a compiled network"),
        (put("proximal", 1), "description of a compiled network"),
        (put("threshold", float("nan")), "description of a compiled network"),
        (put("parameters", 0, "offset", 0.0), "description of a compiled network"),
        (put("parameters", 0, "offset", False), "description of a compiled network"),
        (put("parameters", 0, "offset", float("inf")), "description of a compiled network"),
        (put("parameters", 0, "local", "false"), "description of a compiled network"),
        (put("parameters", 0, "name", None), "description of a compiled network"),
        (put("parameters", 0, "shape", "67"), "description of a compiled network"),
        (put("parameters", 0, "shape", [[6], 7]), "description of a compiled network|extent"),
        (put("features", 0, "name", 7), "description of a compiled network"),
        (put("features", 0, "dtype", ["float32"]), "description of a compiled network"),
        (put("target", {}), "description of a compiled network"),
        (put("flatbuffer", "x"), "description of a compiled network"),
        (put("more", 1), "description of a compiled network"),
    ],
)
def test_a_hostile_description_is_refused_by_one_error(change: Callable[[dict[str, Any]], None], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        Program.from_json(described(change), stored().flatbuffer)
    text = str(refused.value)
    assert len(text) < 1000
    assert text.isprintable()


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", '"a"', "[" * 100_000, '{"a":' * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000],
    ids=["nothing", "null", "list", "text", "open lists", "open objects", "nested"],
)
def test_text_that_describes_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="description of a compiled network"):
        Program.from_json(text, stored().flatbuffer)


def test_a_description_of_ten_megabytes_is_refused_before_it_is_read() -> None:
    text = described(put("metrics", ["m" * 10**7]))
    with pytest.raises(ConfigurationError, match=f"at most {MOST_DESCRIPTION} characters"):
        Program.from_json(text, stored().flatbuffer)


def test_a_name_that_stands_twice_is_refused() -> None:
    text = stored().to_json()[:-1] + ', "batch": 3}'
    with pytest.raises(ConfigurationError, match="description of a compiled network"):
        Program.from_json(text, stored().flatbuffer)


@pytest.mark.parametrize("name", ["", "line\nbreak", "k" * 201])
def test_the_name_of_a_parameter_is_printable_and_short(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name of a parameter to be printable text of 1 to 200 characters"):
        Parameter(name, (2,), 0)
