"""Devices predict of examples with the model that they trained: what the app may know is told, the rest is shown."""

from __future__ import annotations

import contextlib
import json
import urllib.request

import numpy as np
import pytest
from e2e.world import POPULATION, World

import odp
from device_runtime.inference.predict import Predictor
from device_runtime.sdk import Environment
from odp.cli.main import main
from odp.errors import DataError, ServiceUnavailable

DEVICES = 20
NAMES = ("no", "yes")
DATA = odp.Examples({"age": odp.Tensor((), 0, 100, 0.01), "kind": odp.Category(("film", "book"))}, label="likes",
                    classes=NAMES)  # fmt: skip


def people() -> odp.data.ExampleColumns:
    """Who is older likes books, who is younger films."""
    generator = np.random.default_rng(2)
    age, kind = generator.integers(0, 101, 400), generator.integers(0, 2, 400)
    columns = {
        "age": age, "kind": np.array(["film", "book"])[kind],
        "likes": np.array(NAMES)[((age > 50) == (kind == 1)).astype(int)],
    }  # fmt: skip
    return odp.data.ExampleColumns.of_users(columns, np.arange(400) % DEVICES)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    task = odp.Task(
        name="likes", population=POPULATION, model=odp.Glm("logistic", features=3), data=DATA,
        training=odp.DPFedAvg(rounds=2, epochs=3, batch=5, rate=0.5),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-5), cohort=odp.Cohort(minimum=20, goal=DEVICES, round_seconds=600),
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        world = World(tmp_path_factory.mktemp("world")).start(stack)
        (world.root / "server" / "address").write_text(f"{world.server.address}\n")
        handle = world.connection.submit(task)
        world.finish(handle, world.devices(examples=people()))
        yield world, handle


ASKED = {"age": [20, 80, 20], "kind": ["film", "film", "book"]}


def expected(handle, columns) -> np.ndarray:
    """The probability of "yes", in numpy."""
    vector = handle.model().dense["parameters"][:, 0].astype(np.float64)
    film = np.array([kind == "film" for kind in columns["kind"]], dtype=float)
    x = np.column_stack((np.array(columns["age"]) * 0.01, film, 1 - film))
    return 1 / (1 + np.exp(-(x @ vector[:3] + vector[3])))


def test_an_app_is_told_what_depends_on_its_own_examples_alone(trained, capsys) -> None:
    world, handle = trained
    with odp.Device(world.root / "devices", environment=Environment(create=False, keyring=False)) as device:
        answer = device.predict(ASKED, POPULATION, services=world.root)
        np.testing.assert_allclose(answer.probabilities[:, 1], expected(handle, ASKED), rtol=1e-5)
        assert (answer.classes, answer.offline, answer.version) == (NAMES, None, handle.model().version)
        assert set(answer.labels) <= set(NAMES)
        with pytest.raises(DataError, match=r"example 1 .*'kind' is none of its 2"):
            device.predict({"age": [1, 2], "kind": ["film", "disc"]}, POPULATION, services=world.root)

        assert device.show_predictions(population=POPULATION, services=world.root, count=3) is None
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["example", "prediction"]
        assert [line.split()[0] for line in lines[1:]] == ["0", "1", "2"]
        page = device.show()
        assert page.startswith("http")


def test_r458_what_fails_for_the_person_is_told_on_their_page_alone(trained, capsys, monkeypatch) -> None:
    world, _ = trained
    with odp.Device(world.root / "devices", environment=Environment(create=False, keyring=False)) as device:
        monkeypatch.setattr(Predictor, "of_person", failing)
        assert device.show_predictions(population=POPULATION, services=world.root) is None
        assert capsys.readouterr().out == ""
        with urllib.request.urlopen(device.show(), timeout=30) as answer:
            assert "the program failed on these rows" in answer.read().decode()


def failing(*_: object, **__: object) -> None:
    raise DataError("the program failed on these rows")


def test_the_command_prints_the_same(trained, capsys) -> None:
    world, handle = trained
    where = ["--population", POPULATION, "--state", str(world.root / "devices"), "--server", world.server.address,
             "--ca", str(world.ca), "--reference-values", str(world.reference_values)]  # fmt: skip
    texts = [json.dumps({"age": age, "kind": kind}) for age, kind in zip(*ASKED.values(), strict=True)]
    options = [part for text in texts for part in ("--example", text)]
    printed = json.loads(run(capsys, *where, *options, "--json").splitlines()[-1])["predictions"]
    np.testing.assert_allclose([row["probabilities"]["yes"] for row in printed], expected(handle, ASKED), rtol=1e-5)
    assert len(run(capsys, *where, "--count", "2").splitlines()) == 3
    with pytest.raises(SystemExit):
        run(capsys, *where, "--example", "{}", "--example", "[]")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `odp device predict` prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["odp", "device", "predict", *arguments])
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
    return capsys.readouterr().out


def test_without_services_the_last_model_answers_and_says_so(trained, capsys) -> None:
    """The last test: it ends the server."""
    world, handle = trained
    with odp.Device(world.root / "devices", environment=Environment(create=False, keyring=False)) as device:
        device.predict(ASKED, POPULATION, services=world.root)
        before = expected(handle, ASKED)
        world.server.stop()
        again = device.predict(ASKED, POPULATION, services=world.root, refresh=True)
        assert again.offline is not None
        assert "version" in again.offline
        np.testing.assert_allclose(again.probabilities[:, 1], before, rtol=1e-5)
        with pytest.raises(ServiceUnavailable):
            device.predict(ASKED, "others", services=world.root)
