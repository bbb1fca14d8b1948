"""The terminal: results on stdout, everything else on stderr, an error is one line."""

from __future__ import annotations

import json

import pytest

from odp.cli.console import console, print_error, print_json, print_text


def test_json_is_one_line_of_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1, "ε\n"]})
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": [1, "ε\n"]}
    assert err == ""


def test_what_json_cannot_say_is_never_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError):
        print_json({"epsilon": float("inf")})
    assert capsys.readouterr().out == ""


def test_an_error_of_many_lines_becomes_one(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("first\n  second\r\nthird")
    assert capsys.readouterr() == ("", "odp: first second third\n")


def test_text_ends_with_one_newline(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("a")
    print_text("b\n")
    assert capsys.readouterr().out == "a\nb\n"


def test_progress_goes_to_stderr_and_a_pipe_has_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("[bold red]loud[/bold red]")
    assert capsys.readouterr() == ("", "loud\n")
