"""Models as objects: what a kill leaves, an object store that fails, and large tables in parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pytest
from conformance.buckets import bucket

from distributor.model_objects import ModelObjects
from odp.errors import ConfigurationError, StateError
from odp.storage import s3
from odp.storage.s3 import S3Objects
from odp.v1 import common_pb2

FIRST, SECOND = b"\1" * 32, b"\2" * 32
TABLES = [b"table" * 100, b""]


class Killed(BaseException):
    """The process died."""


class Remembered:
    """``S3Objects`` in ``held``; dies at the change with the number ``dies_at``, before or after it."""

    def __init__(self, held: dict[str, bytes], *, dies_at: int = 0, after: bool = False) -> None:
        self.held, self._left, self._after = held, dies_at, after

    def put(self, key: str, pieces: Iterable[bytes | memoryview]) -> None:
        data = b"".join(map(bytes, pieces))
        self._change(lambda: self.held.__setitem__(key, data))

    def read(self, key: str, *, start: int = 0, length: int | None = None, size: int = 2**20) -> Iterator[bytes]:
        if key not in self.held:
            raise FileNotFoundError(key)
        data = self.held[key][start : None if length is None else start + length]
        return (data[first : first + size] for first in range(0, len(data), size))

    def keys(self, prefix: str) -> list[str]:
        return sorted(key for key in self.held if key.startswith(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self._change(lambda key=key: self.held.pop(key, None))

    def _change(self, change) -> None:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise Killed
        change()
        if self._left == 0:
            raise Killed


def publish(store: ModelObjects, model: bytes) -> None:
    with store.receive(model, common_pb2.SignedTask(definition=b"t" + model), common_pb2.SignedManifest(), 500) as one:
        for table in TABLES:
            one.write_table([table[:7], memoryview(table[7:])])
        one.commit()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("change", [lambda store: publish(store, FIRST), lambda store: store.remove(SECOND)])
def test_a_kill_between_any_two_steps_leaves_all_of_a_change_or_nothing(change, after: bool) -> None:
    for number in itertools.count(1):
        held: dict[str, bytes] = {}
        publish(ModelObjects(Remembered(held)), SECOND)
        before = set(ModelObjects(Remembered(held)).models())
        try:
            change(ModelObjects(Remembered(held, dies_at=number, after=after)))
            died = False
        except Killed:
            died = True
        store = ModelObjects(Remembered(held))
        models = set(store.models())
        assert models in (before, before ^ {FIRST}, before ^ {SECOND})
        for model in models:
            stored = store.load(model)
            assert [b"".join(store.chunks(model, index, 10)) for index in range(len(stored.tables))] == TABLES
        uploads = {key.split("/")[1] for key in held if key.startswith("data/")}
        assert len(uploads) == len(models), "leftovers are gone at the next start"
        if not died:
            assert number > 3
            return


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    with bucket() as found:
        yield found


def test_an_object_of_several_parts_is_one(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART_BYTES", 5 * 2**20)
    objects = S3Objects(f"{place}/parts")
    data = bytes(range(256)) * 4 * 10_400
    assert len(data) > 2 * s3.PART_BYTES
    objects.put("large", (memoryview(data)[first : first + 999_983] for first in range(0, len(data), 999_983)))
    assert b"".join(objects.read("large")) == data
    assert b"".join(objects.read("large", start=6_000_000, length=77)) == data[6_000_000:][:77]
    with pytest.raises(ConnectionResetError):
        objects.put("broken", _broken(data))
    assert objects.keys("") == ["large"]
    objects.delete(["large", "none"])
    assert objects.keys("") == []


def _broken(data: bytes) -> Iterator[bytes]:
    yield data
    raise ConnectionResetError("cut")


@pytest.mark.parametrize("wrong", ["models", "s3://", "s3://UPPER", "http://x/y", "s3://bucket/a b", "s3://b"])
def test_a_malformed_place_is_one_error(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="s3://bucket"):
        S3Objects(wrong)


def test_a_bucket_that_is_not_there_or_not_reachable_is_one_error(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StateError, match="refused"):
        S3Objects("s3://another-bucket")
    objects = S3Objects(f"{place}/lost")
    store = ModelObjects(objects)
    monkeypatch.setattr(s3, "_ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(StateError, match="cannot be used"):
        S3Objects(place)
    lost = S3Objects.__new__(S3Objects)
    lost.__dict__.update(objects.__dict__)
    boto3, config = pytest.importorskip("boto3"), pytest.importorskip("botocore.config")
    lost._client = boto3.client("s3", config=config.Config(connect_timeout=1, retries={"max_attempts": 0}))
    store._objects = lost
    with pytest.raises(StateError, match="cannot be used"):
        publish(store, FIRST)
    with pytest.raises(StateError):
        store.models()
