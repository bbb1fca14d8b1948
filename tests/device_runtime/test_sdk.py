from __future__ import annotations

import functools
import http.client
import re
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import numpy as np
import pytest

import odp
from device_runtime.host.housekeeping import Housekeeping
from device_runtime.isolated import CallLimits
from device_runtime.sdk import EXAMPLE, Device, Environment, Isolation, Shown
from device_runtime.store.keyed_ratings import ratings_by_key
from device_runtime.store.retention import Retention
from device_runtime.store.store import Store, store_path
from odp.errors import ConfigurationError, DataError, PrivacyError, StateError

pytestmark = pytest.mark.processes
NOW = 1_800_000_000.0

SERVICE = """
import time

import odp.isolated as on

class Films(on.IsolatedService):
    def on_request(self, request, stores):
        if "genre" not in request.asked:
            return on.Declined("name a genre")
        return on.Accepted({"genre": request.asked["genre"]})

    def on_execute(self, execution, stores):
        if execution.work["genre"] == "broken":
            raise RuntimeError("secret-of-the-person")
        if execution.work["genre"] == "endless":
            while not stores.events(type="over"):
                time.sleep(0.1)
        seen = [event.data["film"] for event in stores.events(type="seen")]
        return on.Executed({"title": f"After {len(seen)}", "films": seen, "best": len(seen)}, rows=[{"n": len(seen)}])

    def on_render(self, rendering, stores):
        films = "".join(f"<li>{film}</li>" for film in rendering.result["films"])
        return on.Rendered(f'<ul>{films}</ul><a href="event/liked?film=7">like</a><script>steal()</script>')

    def on_event(self, happening, stores):
        if happening.data["film"] == "broken":
            raise RuntimeError("secret-of-the-person")
        copies = 5 if happening.data["film"] == "too many" else 1
        return on.Noted([on.NewEvent(happening.type, happening.data)] * copies)

    def on_training_examples(self, training, stores):
        for event in stores.events(type="seen"):
            yield on.Example({"film": event.data["film"], "weight": 1})
"""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def device(tmp_path: Path, said: list[str]) -> Iterator[Device]:
    service = tmp_path / "films.py"
    service.write_text(SERVICE)
    limits = CallLimits(seconds=120.0, processor_seconds=20)
    with odp.Device(
        tmp_path / "state", service=service, say=said.append,
        environment=Environment(keyring=False, clock=lambda: NOW, isolation=Isolation(limits=limits)),
    ) as device:  # fmt: skip
        yield device


def _get(url: str, path: str | None = None) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    try:
        connection.request("GET", parts.path if path is None else path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def _frame(page: str) -> str:
    return urlsplit(page.split("<iframe")[1].split('src="')[1].split('"')[0]).path


def test_a_result_is_shown_to_the_person_and_never_to_the_app(device: Device) -> None:
    for film in (3, 5):
        device.record("seen", {"film": film})
    shown = device.ask("cinema", {"genre": "noir"})
    assert isinstance(shown, Shown)
    # It counts nothing, and nobody guesses another.
    assert re.fullmatch("[0-9a-f]{32}", shown.id)
    assert list(vars(shown)) == ["id"]
    status, page = _get(device.show(shown))
    assert (status, "After 2" in page) == (200, True)
    rendered = _get(device.show(shown), _frame(page))[1]
    assert "<li>3</li><li>5</li>" in rendered
    assert "steal" not in rendered
    assert "After 2" in _get(device.show())[1]


def test_an_event_link_reaches_the_service_and_the_store(device: Device) -> None:
    shown = device.ask("cinema", {"genre": "noir"})
    assert isinstance(shown, Shown)
    address = device.show(shown)
    frame = _frame(_get(address)[1])
    assert _get(address, f"{frame}event/liked?film=7")[0] == 204
    with Store.open(store_path(device.state, 0)) as store:
        (event,) = store.data("films").events(type="liked")
    assert (dict(event.data), event.request, event.time) == ({"film": "7"}, 1, NOW)  # type: ignore[arg-type]


def test_a_service_declines_by_what_was_asked_alone(device: Device) -> None:
    answer = device.ask("cinema")
    assert isinstance(answer, odp.isolated.Declined)
    assert answer.reason == "name a genre"


def test_that_the_service_fails_is_told_to_the_person_and_not_to_the_app(device: Device, said: list[str]) -> None:
    shown = device.ask("cinema", {"genre": "broken"})
    assert isinstance(shown, Shown)
    _, page = _get(device.show(shown))
    rendered = _get(device.show(shown), _frame(page))[1]
    front = _get(device.show())[1]
    assert "could not make this: its code raised an error" in rendered
    assert "on_execute of the service failed: its code raised an error" in front
    assert not said, "what the app gave hears nothing of it"
    assert "secret-of-the-person" not in rendered + page + front
    # Noise hides what there is, and that there is nothing.
    assert 0 <= device.best_value(shown, app="cinema", choices=3, epsilon=0.5) < 3


def test_an_app_asks_again_while_the_service_is_at_work(device: Device) -> None:
    """How long ``on_execute`` takes would else show in how long the next question waits."""
    device.ask("cinema", {"genre": "noir"})
    first = device.ask("cinema", {"genre": "endless"})
    for _ in range(3):
        assert isinstance(device.ask("cinema", {"genre": "noir"}), Shown)
    assert isinstance(first, Shown)
    front = _get(device.show())[1]
    assert first.id not in front, "it is at work still"
    device.record("over", {})


def test_one_app_is_told_nothing_of_what_another_asked(device: Device) -> None:
    shown = device.ask("cinema", {"genre": "noir"})
    assert isinstance(shown, Shown)
    with pytest.raises(ConfigurationError, match="for app='radio'"):
        device.best_value(shown, app="radio", choices=4, epsilon=0.5)
    assert not device.privacy()["answers"]


def test_handlers_that_see_private_data_answer_an_app_alike_whatever_they_do(device: Device, said: list[str]) -> None:
    """They would else pass a number, or that they failed."""
    for film in (1, "too many", "broken"):
        device.tell("seen", {"film": film})
        assert device.examples(population="films", task="next") is None  # type: ignore[func-returns-value]
    with Store.open(store_path(device.state, 0)) as store:
        assert len(store.data("films").events(type="seen")) == 1 + 5
    assert not said
    assert not {"services", "examples", "empty_contributions"} & set(device.privacy())
    assert "on_event of the service failed" in _get(device.show())[1]


def test_a_noisy_answer_is_charged_and_limited(device: Device) -> None:
    device.record("seen", {"film": 3})
    shown = device.ask("cinema", {"genre": "noir"})
    assert isinstance(shown, Shown)
    assert 0 <= device.best_value(shown, app="cinema", choices=4, epsilon=0.8) < 4
    found = device.privacy()
    assert found["spent"]["total"]["epsilon"] == pytest.approx(0.8, abs=1e-6)
    assert [one["app"] for one in found["answers"]] == ["cinema"]
    with pytest.raises(PrivacyError, match="max_answers_epsilon_30_days"):
        device.best_value(shown, app="cinema", choices=4, epsilon=0.8)


def test_examples_are_replaced_as_a_whole(device: Device) -> None:
    device.record("seen", {"film": 3})
    for _ in range(2):
        device.examples(population="films", task="next")
    with Store.open(store_path(device.state, 0)) as store:
        (event,) = store.data("films").events(type=EXAMPLE)
    assert event.data == {"film": 3, "weight": 1}


def test_a_device_without_a_service_records_and_shows_its_privacy_page(tmp_path: Path) -> None:
    with Device(tmp_path / "state", environment=Environment(keyring=False, clock=lambda: NOW)) as device:
        device.record("play", {"track": 1})
        assert _get(device.show())[0] == 200
        with pytest.raises(ConfigurationError, match="service=FILE"):
            device.ask("player")


def test_a_store_that_is_not_there_is_not_made_by_looking_at_it(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="does not exist; check --state and --device"):
        Device(tmp_path / "nowhere", environment=Environment(create=False))
    assert not (tmp_path / "nowhere").exists()


def test_the_folder_is_the_persons_alone(device: Device) -> None:
    path = store_path(device.state, 0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    device.record("seen", {"film": 987654})
    for file in device.state.rglob("*"):
        assert not file.is_file() or b"987654" not in file.read_bytes()


def test_what_is_past_its_period_goes_when_the_device_is_opened_and_the_page_says_so(tmp_path: Path) -> None:
    days, now = 86400.0, NOW
    keep = Retention(events=7.0, local=None)
    with Device(
        tmp_path / "state", retention=keep, environment=Environment(keyring=False, clock=lambda: now)
    ) as device:
        device.record("play", {"track": 1}, time=NOW - 8 * days)
        device.record("play", {"track": 2}, time=NOW - 6 * days)
    now += days / 2
    # The folder remembers what the app said first.
    with Device(tmp_path / "state", environment=Environment(keyring=False, clock=lambda: now)) as device:
        with Store.open(store_path(device.state, 0)) as store:
            assert [event.data for event in store.data("app").events()] == [{"track": 2}]
        page = _get(device.show())[1]
    assert "events 7 days" in page
    assert "local for ever" in page


def test_r422_a_device_that_stays_open_forgets_before_it_learns_at_most_once_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, services = NOW, tmp_path / "services"
    ended = SimpleNamespace(join=lambda seconds: True, stop=lambda: None, reason=("idle", "no round"), outage=None)
    monkeypatch.setattr("device_runtime.sdk.start", lambda config, **options: ended)
    housekeeping = functools.partial(Housekeeping, monotonic=lambda: now)
    monkeypatch.setattr("device_runtime.environment.Housekeeping", housekeeping)
    (services / "server").mkdir(parents=True)
    (services / "ca").mkdir()
    for path, text in {"server/address": "127.0.0.1:1\n", "ca/ca.pem": "", "reference_values.json": "{}"}.items():
        (services / path).write_text(text)
    environment = Environment(keyring=False, clock=lambda: now)
    with Device(tmp_path / "state", retention=Retention(events=1.0), environment=environment) as device:
        device.record("play", {"track": 1}, time=NOW - 86400.0 + 4000.0)

        def kept_after(seconds: float) -> int:
            nonlocal now
            now = NOW + seconds
            assert device.learn("music", services=services).reason == "no round"
            with Store.open(store_path(device.state, 0)) as store:
                return store.data("app").count("events")

        assert [kept_after(seconds) for seconds in (3500.0, 3700.0, 4100.0, 7500.0)] == [1, 1, 1, 0]


def test_an_app_without_a_service_keeps_labelled_examples(tmp_path: Path) -> None:
    environment = Environment(name="camera", keyring=False, clock=lambda: NOW)
    with odp.Device(tmp_path / "state", environment=environment) as device:
        assert device.add_examples({"image": np.zeros((2, 28, 28), np.uint8), "digit": [3, 7]}) == 2
        assert device.add_examples({"image": np.ones((1, 28, 28)), "digit": [1]}, time=NOW - 9.0) == 1
        with pytest.raises(odp.errors.DataError, match="the same length"):
            device.add_examples({"image": np.ones((1, 28, 28)), "digit": []})
    with Store.open(store_path(tmp_path / "state", 0)) as store:
        rows = store.examples("examples.camera").read({"image": odp.Tensor((28, 28), -1, 1)}, label="digit")
        assert rows.values.tolist() == [1.0, 3.0, 7.0]
        assert rows.features["image"][:, 0, 0].tolist() == [1.0, 0.0, 0.0]


def test_an_item_that_the_catalogue_does_not_have_is_an_error_where_the_app_hands_it_in(tmp_path: Path) -> None:
    catalogue = odp.items.Catalogue.make("shop", ["SKU0700", "SKU0701"])
    catalogue.save(tmp_path / "items.catalogue")
    with odp.Device(tmp_path / "app", environment=Environment(keyring=False)) as device:
        with pytest.raises(DataError, match="cannot read the catalogue"):
            device.use_catalogue(tmp_path / "none")
        device.use_catalogue(tmp_path / "items.catalogue")
        device.rate("SKU0700", 5.0)
        with pytest.raises(ConfigurationError, match=r"item='SKU700' to be in version 1.*did you mean 'SKU0700'"):
            device.rate("SKU700", 5.0)
        for number in (0, True, 1.5):
            with pytest.raises(ConfigurationError, match="such as 'SKU0700': a number names no item"):
                device.rate(number, 5.0)  # type: ignore[arg-type]
    with Store.open(store_path(device.state, 0)) as store:
        assert ratings_by_key(store) == {"SKU0700": 5.0}
        assert not len(store.ratings().items)


def test_a_rating_of_the_app_is_the_table_that_tasks_read(tmp_path: Path) -> None:
    with odp.Device(tmp_path / "app", environment=Environment(keyring=False)) as device:
        device.rate(7, 4.5)
        device.rate(3, 1)
        device.rate(7, 2)
        for item, value in ((-1, 1.0), (0, float("nan")), (2**31, 1.0)):
            with pytest.raises(ConfigurationError):
                device.rate(item, value)
        device.rate(np.int64(5), np.float32(4.5))  # type: ignore[arg-type]
        device.rate(unicodedata.normalize("NFD", "Amélie"), np.int64(3))
    with Store.open(store_path(device.state, 0)) as store:
        rows = store.ratings()
        assert ratings_by_key(store) == {"Amélie": 3.0}
    assert dict(zip(rows.items.tolist(), rows.values.tolist(), strict=True)) == {3: 1.0, 5: 4.5, 7: 2.0}
