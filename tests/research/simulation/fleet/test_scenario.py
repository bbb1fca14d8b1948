from __future__ import annotations

from pathlib import Path

import pytest

from odp.errors import ConfigurationError, DataError
from odp.research.simulation.fleet.device_data import load_data
from odp.research.simulation.fleet.scenario import load_scenario

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "fleet.toml"
SOURCE = '[data]\nsource = "x"\n'


def test_the_example_is_the_fleet_of_the_documentation() -> None:
    found = load_scenario(EXAMPLE)
    assert (found.faults.drop_outs, found.faults.crashes, found.faults.malicious) == (0.2, 0.05, 0.02)
    assert found.conditions.charging
    assert found.network.latency_ms == (20, 400)


def test_what_a_scenario_does_not_name_happens_to_nobody(tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(SOURCE)
    found = load_scenario(file)
    assert (found.faults.drop_outs, found.faults.crashes, found.faults.malicious) == (0.0, 0.0, 0.0)
    assert (found.network.lost_answers, found.clocks.jumps) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"Missing section \[data\]"),
        ("[data]\n", r"\[data\]: Expected one of source, examples and events \(got none\)"),
        (SOURCE + 'events = "x"', "got source, events"),
        ("[data]\nexamples = 5", "examples=5"),
        (SOURCE + "columns = 5", "columns=5"),
        ('[data]\nevents = "x"\ncolumns = {user = "a"}', "a table of source or examples"),
        (SOURCE + '[task]\nfile = "task.toml"\nsteps = 2', "file without further keys"),
        (SOURCE + "[task]\nfile = 5", "file=5"),
        ('data = "x"', r"section, \[data\]"),
        ('[data]\nsource = ""', "source=''"),
        (SOURCE + "[fault]\n", "did you mean 'faults'"),
        (SOURCE + "[faults]\ncrash = 1", "did you mean 'crashes'"),
        (SOURCE + "[faults]\ncrashes = 1.5", "crashes=1.5"),
        (SOURCE + "[faults]\ncrashes = 0.5\ndrop_outs = 0.5", "at most 0.95 together"),
        (SOURCE + '[faults]\nbehaviours = ["malformd"]', "did you mean 'malformed'"),
        (SOURCE + "[faults]\nbehaviours = []", "behaviours="),
        (SOURCE + "[network]\nlatency_ms = [5, 1]", "latency_ms=1"),
        (SOURCE + "[network]\nlatency_ms = 5", "two numbers"),
        (SOURCE + "[network]\nkilobits_per_second = [0, 5]", "kilobits_per_second=0"),
        (SOURCE + "[clocks]\njumps = true", "jumps=True"),
        (SOURCE + "[task]\nrank = 1.5", "rank=1.5"),
        (SOURCE + "[task]\nepsilon = 0", "epsilon=0"),
        (SOURCE + "[conditions]\nhours_between = 3", "no hours_between"),
        (SOURCE + "[conditions]\ncharging = 1", "true or false"),
        ("[data", "TOML"),
        ("\x00", "TOML"),
        ("#" * 70_000, "bytes"),
    ],
)
def test_a_scenario_that_makes_no_sense_is_refused_in_one_line_with_its_file(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_scenario(file)
    assert "scenario.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scenario_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml: no such file"):
        load_scenario(tmp_path / "none.toml")


def scenario(folder: Path, data: str) -> Path:
    file = folder / "scenario.toml"
    file.write_text(f'[data]\n{data}\n[task]\nfile = "task.toml"\n')
    return file


def test_a_fleet_takes_the_tables_that_devices_take(tmp_path: Path) -> None:
    (tmp_path / "mail.csv").write_text("reader,length,Verdict\nann,12,spam\nbob,?,ham\nann,x,ham\n,1,ham\nbob,3,ham\n")
    columns = 'columns = {user = "reader", label = "verdict", on_error = "skip"}'
    found = load_data(load_scenario(scenario(tmp_path, f'examples = "mail.csv"\n{columns}')), folder=tmp_path)
    assert found.examples is not None
    assert found.n_users == 2
    assert found.examples.user(0)["verdict"].tolist() == ["spam"]
    assert found.examples.user(1)["verdict"].tolist() == ["ham", "ham"]
    assert "2 bad rows were left out" in found.notes[0]
    with pytest.raises(DataError, match="2 of 5 rows are bad"):
        load_data(
            load_scenario(scenario(tmp_path, 'examples = "mail.csv"\ncolumns = {user = "reader", label = "verdict"}')),
            folder=tmp_path,
        )
    (tmp_path / "club.csv").write_text("member,item,stars\na,x,3\nb,y,4\n")
    found = load_data(
        load_scenario(scenario(tmp_path, 'source = "club.csv"\ncolumns = {user = "member"}')), folder=tmp_path
    )
    assert found.ratings is not None
    assert found.n_users == 2
    with pytest.raises(ConfigurationError, match="Expected a table for columns="):
        load_data(load_scenario(scenario(tmp_path, 'examples = "a.npz"\ncolumns = {user = "member"}')), folder=tmp_path)


def test_an_event_with_a_key_twice_is_refused_by_its_line(tmp_path: Path) -> None:
    event = '{"user": 0, "service": "s", "type": "t", "data": {"word": "a"%s}}'
    (tmp_path / "events.jsonl").write_text(event % "" + "\n" + event % ', "word": "b"' + "\n")
    with pytest.raises(DataError, match=r"events.jsonl:2: the key 'word' twice in one object"):
        load_data(load_scenario(scenario(tmp_path, 'events = "events.jsonl"')), folder=tmp_path)
