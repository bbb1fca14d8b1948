"""The app and the service of `docs/device-in-an-app.md` run as the page shows them."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import urllib.request
from pathlib import Path

import pytest

import odp

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "device-in-an-app.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def _block(of: str) -> str:
    (found,) = (block for block in BLOCKS if of in block)
    return str(found)


@pytest.mark.skipif(sys.platform != "linux", reason="services need Linux")
@pytest.mark.processes
def test_the_app_of_the_page_runs_with_its_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = _block('service="radio.py", say=print')
    assert len(app.splitlines()) < 20
    (tmp_path / "radio.py").write_text(_block("class Radio"))
    monkeypatch.chdir(tmp_path)
    pages: dict[str, str] = {}

    def person(prompt: str) -> str:
        """Looks at what was printed, before the app ends."""
        printed = capsys.readouterr().out
        for name, url in re.findall(r"your (\w+): (http://\S+)", printed):
            with urllib.request.urlopen(url, timeout=60) as answer:
                pages[name] = answer.read().decode()
        frame = re.search(r'src="(http://[^"]+)"', pages["mix"])
        assert frame is not None
        with urllib.request.urlopen(frame[1], timeout=60) as answer:
            pages["frame"] = answer.read().decode()
        return ""

    monkeypatch.setattr(builtins, "input", person)
    names: dict[str, object] = {}
    exec(compile(app, "docs/device-in-an-app.md", "exec"), names)
    assert "More calm" in pages["mix"]
    assert '<h2>calm</h2><a href="event/like?genre=calm">' in pages["frame"]
    assert "More calm" in pages["privacy"]
    assert names["genre"] in (0, 1, 2)


def test_the_task_of_the_page_asks_for_the_examples_of_its_service() -> None:
    names: dict[str, object] = {"odp": odp}
    exec(compile(_block('name="next-track"'), "docs/device-in-an-app.md", "exec"), names)
    task = names["task"]
    assert isinstance(task, odp.Task)
    assert task.definition().data.table == "events.radio"


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_block_of_the_page_is_python(block: str) -> None:
    assert ast.parse(block).body


def test_every_limit_stands_on_the_page() -> None:
    from device_runtime.person.limits import Limits
    from device_runtime.view.privacy_page import LIMITS

    text = (DOCS / "device.md").read_text(encoding="utf-8")
    assert set(LIMITS) == set(vars(Limits()))
    assert all(f"`{name}`" in text for name in LIMITS)
