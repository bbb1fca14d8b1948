"""Limits of a listener: settings by name, refused in one line, and all of them documented."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from odp.errors import ConfigurationError
from odp.transport import limits
from odp.transport.limits import Limits

OPERATING = Path(__file__).resolve().parents[2] / "docs" / "operating.md"


def test_settings_change_the_limits_that_they_name() -> None:
    changed = Limits().changed(["queued=7", "message_seconds=2.5"])
    assert (changed.queued, changed.message_seconds) == (7, 2.5)
    assert dataclasses.replace(changed, queued=512, message_seconds=10.0) == Limits()


@pytest.mark.parametrize("setting", ["queued", "queued=", "queued=many", "queues=7", "queued=0", "share_of_address=2"])
def test_a_bad_setting_is_refused_in_one_line(setting: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Limits().changed([setting])
    assert "\n" not in str(caught.value)


def test_r391_two_listeners_take_half_of_the_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda which: (1024, 2**20))
    assert 2 * Limits().most_connections() == 512


def test_every_limit_is_documented_with_its_value() -> None:
    text = OPERATING.read_text(encoding="utf-8")
    for field in dataclasses.fields(Limits):
        value = getattr(Limits(), field.name)
        shown = f"{value:g}"
        if field.name.endswith("_bytes"):
            shown = f"{value // 2**20} MiB" if value % 2**20 == 0 else f"{value // 2**10} KiB"
        assert f"| `{field.name}` | {shown} |" in text, (field.name, shown)
