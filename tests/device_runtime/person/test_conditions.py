from __future__ import annotations

import dataclasses
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from device_runtime.person.conditions import Conditions, Standing, readings, require
from device_runtime.person.sensors import MachineSensors, SimulatedSensors, Unreadable
from odp.errors import ConfigurationError, NotNow

EVERYTHING = """
idle = true
charging = true
battery_at_least = 0.5
unmetered = true
free_megabytes_at_least = 500
thermal_at_most = "warm"
windows = ["22:00-07:00", "12:30-13:00"]
hours_between = 24
"""
DAY = 24 * 3600.0
STANDING = Standing(last=0.0)


def at(text: str) -> Any:
    """A local time of day for any moment."""
    return lambda now: time.strptime(text, "%H:%M")


def policy(tmp_path: Path, text: str) -> Conditions:
    file = tmp_path / "conditions.toml"
    file.write_text(text)
    return Conditions.load(file)


def test_a_device_that_meets_everything_may_train(tmp_path: Path) -> None:
    found = readings(policy(tmp_path, EVERYTHING), SimulatedSensors(), STANDING, now=DAY, local=at("23:10"))
    assert [one.name for one in found] == [
        "idle", "charging", "battery", "network", "storage", "thermal", "time", "separation",
    ]  # fmt: skip
    require(found)


@pytest.mark.parametrize(
    ("name", "sensors", "now", "clock", "standing", "read"),
    [
        ("idle", {"is_idle": False}, DAY, "23:10", STANDING, "in use"),
        ("charging", {"is_charging": False}, DAY, "23:10", STANDING, "on battery"),
        ("battery", {"charge": 0.49}, DAY, "23:10", STANDING, "49%"),
        ("network", {"is_unmetered": False}, DAY, "23:10", STANDING, "metered"),
        ("storage", {"free": 499_000_000}, DAY, "23:10", STANDING, "499 MB"),
        ("thermal", {"heat": 80.5}, DAY, "23:10", STANDING, "80 °C, hot"),
        ("thermal", {"heat": 96.0}, DAY, "23:10", STANDING, "96 °C, critical"),
        ("time", {}, DAY, "07:00", STANDING, "07:00"),
        ("separation", {}, DAY - 1, "23:10", STANDING, "24.0 h"),
        ("separation", {}, -1.0, "23:10", STANDING, "the clock went back"),
    ],
)
def test_a_condition_that_is_not_met_is_named_with_its_reading(
    tmp_path: Path, name: str, sensors: dict[str, Any], now: float, clock: str, standing: Standing, read: str
) -> None:
    found = readings(policy(tmp_path, EVERYTHING), SimulatedSensors(**sensors), standing, now=now, local=at(clock))
    assert [one.name for one in found if not one.met] == [name]
    with pytest.raises(NotNow, match=read) as caught:
        require(found)
    assert caught.value.names == (name,)


@pytest.mark.parametrize(
    ("sensor", "name"),
    [
        ("is_idle", "idle"), ("is_charging", "charging"), ("charge", "battery"), ("is_unmetered", "network"),
        ("free", "storage"), ("heat", "thermal"),
    ],
)  # fmt: skip
def test_a_sensor_that_cannot_be_read_is_a_condition_that_is_not_met(tmp_path: Path, sensor: str, name: str) -> None:
    sensors = dataclasses.replace(SimulatedSensors(), **{sensor: None})
    with pytest.raises(NotNow, match=f"{name}: cannot be read: simulated") as caught:
        require(readings(policy(tmp_path, EVERYTHING), sensors, STANDING, now=DAY, local=at("12:45")))
    assert caught.value.names == (name,)


def test_the_policy_of_the_documentation_is_one(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "device.md"
    (block,) = re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    found = policy(tmp_path, block)
    assert all(getattr(found, one.name) != one.default for one in dataclasses.fields(Conditions))


def test_no_conditions_ask_no_sensor() -> None:
    broken = SimulatedSensors(is_idle=None, is_charging=None, charge=None, is_unmetered=None, free=None, heat=None)
    assert readings(Conditions(), broken, Standing(last=None), now=0.0) == ()


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 1439))
def test_a_window_holds_from_its_start_up_to_its_end_also_over_midnight(start: int, end: int, minute: int) -> None:
    def text(value: int) -> str:
        return f"{value // 60:02d}:{value % 60:02d}"

    inside, step = start == end, start
    while step != end:  # walks the clock
        inside, step = inside or step == minute, (step + 1) % 1440
    conditions = Conditions(windows=(f"{text(start)}-{text(end)}",))
    (found,) = readings(conditions, SimulatedSensors(), STANDING, now=0.0, local=at(text(minute)))
    assert found.met is inside


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("charing = true", "charging"),
        ("idle = 1", "true or false"),
        ("battery_at_least = 50", "battery_at_least"),
        ('windows = ["9-17"]', "HH:MM-HH:MM"),
        ('windows = "22:00-07:00"', "list"),
        ("windows = [7]", "HH:MM-HH:MM"),
        ("hours_between = nan", "hours_between"),
        ('thermal_at_most = "warn"', "did you mean 'warm'"),
        ("thermal_at_most = 500", "thermal_at_most"),
        ("thermal_at_most = true", "thermal_at_most"),
        ("examples_at_least = 10", "Unknown key 'examples_at_least'"),
        ("idle = ", "TOML"),
        ("\x00", "TOML"),
        ("#" * 70_000, "bytes"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_in_one_line_with_its_file(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        policy(tmp_path, text)
    assert "conditions.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_policy_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        Conditions.load(tmp_path / "none.toml")


def test_this_machine_reads_what_it_can_and_says_what_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensors = MachineSensors(tmp_path)
    assert sensors.free_bytes() > 0
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 9.0, 9.0))
    assert sensors.idle()
    monkeypatch.setattr(os, "getloadavg", lambda: (0.31 * (os.cpu_count() or 1), 0.0, 0.0))
    assert not sensors.idle()
    with pytest.raises(Unreadable, match="metered"):
        sensors.unmetered()
    with pytest.raises(Unreadable, match="no such file"):
        MachineSensors(tmp_path / "none").free_bytes()


@pytest.mark.parametrize(
    ("battery", "level", "charging"),
    [((80.0, True), 0.8, True), ((15.0, False), 0.15, False), ((50.0, None), 0.5, None), (None, None, None)],
)
def test_the_battery_is_psutils_or_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, battery: Any, level: float | None, charging: bool | None
) -> None:
    psutil = pytest.importorskip("psutil")

    class Found:
        percent, power_plugged = battery or (None, None)

    monkeypatch.setattr(psutil, "sensors_battery", lambda: Found if battery else None, raising=False)
    sensors = MachineSensors(tmp_path)
    for read, expected in ((sensors.battery, level), (sensors.charging, charging)):
        if expected is None:
            with pytest.raises(Unreadable):
                read()
        else:
            assert read() == pytest.approx(expected)


def test_without_psutil_the_battery_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psutil", None)
    with pytest.raises(Unreadable, match="not installed"):
        MachineSensors(tmp_path).battery()


@pytest.mark.parametrize(
    ("most", "met"), [("nominal", False), ("warm", True), ("hot", True), (71.9, False), (72, True)]
)
def test_heat_is_compared_with_a_state_or_with_degrees(most: str | float, met: bool) -> None:
    found = readings(Conditions(thermal_at_most=most), SimulatedSensors(heat=72.0), STANDING, now=DAY)
    assert [(one.name, one.met, one.read) for one in found] == [("thermal", met, "72 °C, warm")]


@pytest.mark.parametrize(
    ("parts", "degrees"),
    [
        ({"cpu": [41.0, 67.5], "disk": [30.0]}, 67.5),
        ({"cpu": [0.0, None]}, None),
        ({"cpu": [255.0, 50.0]}, 50.0),
        ({}, None),
    ],
)
def test_the_temperature_is_the_hottest_that_psutil_shows_or_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: dict[str, list[float | None]], degrees: float | None
) -> None:
    shown = {name: [SimpleNamespace(current=value) for value in values] for name, values in parts.items()}
    monkeypatch.setattr("psutil.sensors_temperatures", lambda: shown, raising=False)
    if degrees is None:
        with pytest.raises(Unreadable, match="reports no temperature"):
            MachineSensors(tmp_path).temperature()
    else:
        assert MachineSensors(tmp_path).temperature() == degrees
