"""R180 to R185: what the outside sees of a device that accepted a task says nothing of its data, whatever these are.

Two devices whose data an attacker chose, or whose own code the attacker wrote, take part in one round of a hostile
server, over real connections. Their transcripts are compared whole: calls, order, sizes, answers, how it ended, what it
cost, and how long each was given.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fixed_times import impatient_times
from hypothesis import HealthCheck, given, settings, strategies as st
from transcripts import Transcript
from trust.enrolment.world import World as IssuerWorld

import device_runtime.network.addresses
import odp
from device_runtime.inference.candidates import CandidateModel, recommend_candidates
from device_runtime.network.services import Traffic
from device_runtime.round.admission import attesters_of
from device_runtime.round.examples import ROW_SECONDS, STORE_SECONDS, MadeExamples, examples
from device_runtime.round.fixed_times import FixedTimes
from device_runtime.rows.lookup import FoundTable
from device_runtime.store.keyed_ratings import rate
from device_runtime.store.store import Store
from device_runtime.tasks.assignment import open_assignment, open_model
from odp.algorithms.capabilities import Recommender
from odp.errors import OdpError
from odp.protocol.wire.model import ModelVersion, Slices
from odp.signed.tables.candidates import candidate_tables, stamp_of
from odp.trust.enrolment.attesters.roster import RosterVerifier

ITEMS = 600
KINDS = ("ratings", "implicit", "statistics", "masked", "events", "usable rows")
NUMBERS = itertools.count()
NOTHING = Slices(0, np.zeros(0, dtype=np.int64), np.zeros((0, 0), dtype=np.float32), {})
#: Numbers that a hostile server puts into a model.
HOSTILE = st.sampled_from([0.0, -0.0, 1e-45, -1.0, 1.0, 1e38, -1e38, float("nan"), float("inf"), float("-inf")])
VALUES = st.one_of(st.floats(allow_nan=False), st.sampled_from([1.0, 5.0, 0.999, 5.001, -1e308, 1e308, float("inf")]))
ANY_COLUMN = st.one_of(
    st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5), st.booleans(),
    st.none(), st.lists(st.integers(), max_size=2),
)  # fmt: skip


def task_of(kind: str) -> Any:
    if kind == "usable rows":
        return dataclasses.replace(task_of("events"), count_usable=odp.CountUsable()).usable_question()
    privacy = odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=20)
    cohort = odp.Cohort(minimum=2, goal=3)
    if kind in ("statistics", "masked"):
        return odp.Statistics(
            name="films",
            queries={
                "items": odp.Histogram(bins=8),
                "mean": odp.Mean(low=1, high=5, max_records=3),
                "seen": odp.Mean(
                    low=0, high=9, events=odp.Events(service="films", type="seen", item="film", value="stars")
                ),
            },
            privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
            cohort=odp.Cohort(minimum=2, goal=3, aggregation="masked") if kind == "masked" else cohort,
            population="people",
        )
    made = odp.Events(service="films", type="seen", item="film", value="stars", aggregate="sum", where=["stars != 3"])
    data = {
        "ratings": odp.RatingsData(low=1, high=5),
        "implicit": odp.ImplicitData(),
        "events": odp.RatingsData(low=1, high=5, events=made),
    }[kind]
    slices = {"slices_per_device": 40}
    return odp.Task(
        name="films", model=odp.MatrixFactorization(items=ITEMS, rank=2), data=data, privacy=privacy, cohort=cohort,
        training=odp.ImplicitDPAM(steps=1, **slices)
        if kind == "implicit"
        else odp.DPAM(steps=1, **slices),
        population="people",
    )  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def hostile(request: pytest.FixtureRequest, tmp_path_factory: Any, identity: Any, platform: Any, World: Any) -> Any:
    """Services of one task of each kind."""
    world = World(tmp_path_factory.mktemp(request.param), identity, platform, task_of(request.param))
    if request.param == "masked":
        # Of a masked contribution the enclave sees a seed: there is nothing to check.
        world.aggregator.check = lambda round, payload: None
    yield world
    world.close()


@pytest.fixture(scope="module")
def admitting(tmp_path_factory: Any, identity: Any, platform: Any, World: Any) -> Any:
    """As ``hostile``, of a population that admits devices with a token; round 0 alone is open."""
    folder = tmp_path_factory.mktemp("tokens")
    # A roster's statements have one length; the certificates of emulated devices vary by a few bytes at random.
    issuer = IssuerWorld(folder / "issuer", verifiers=[RosterVerifier(Everybody())])
    world = World(folder, identity, platform, task_of("ratings"), issuer=issuer)
    world.attesters = attesters_of(emulated_vendor=None, on_roster=True)
    yield world
    world.close()
    issuer.close()


class Everybody(frozenset[bytes]):
    """A roster that each new device of these tests stands on."""

    def __contains__(self, key: object) -> bool:
        return True


@dataclasses.dataclass
class Data:
    """What a device holds."""

    ratings: dict[int, float] = dataclasses.field(default_factory=dict)
    events: Sequence[dict[str, Any]] = ()
    keys: dict[str, float] = dataclasses.field(default_factory=dict)

    def put_into(self, store: Store) -> None:
        for key, value in self.keys.items():
            rate(store, key, value)
        items = np.array(sorted(self.ratings), dtype=np.int64)
        values = np.array([self.ratings[item] for item in items.tolist()], dtype=np.float64)
        store.fill(items, values, filled_from=b"data")
        for event in self.events:
            store.data("films").add_event("seen", event, time=1e9)


MANY = Data(dict.fromkeys(range(0, 100_000, 7), 5.0))
ONE_EACH = st.one_of(
    st.just(Data()),
    st.just(MANY),
    st.builds(
        Data,
        st.dictionaries(st.one_of(st.integers(0, 9), st.integers(-(2**62), 2**62)), VALUES, max_size=12),
        st.lists(st.fixed_dictionaries({"film": ANY_COLUMN, "stars": ANY_COLUMN}), max_size=6),
    ),
)


def seen_of(world: Any, data: Data, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    """All that a device with ``data`` shows in the round that is open: a new device, and a new process."""
    path = world.folder / f"{next(NUMBERS)}.sqlite"
    with Store.open_or_create(path, durable=False) as store:
        data.put_into(store)
    transcript, traffic = Transcript(), Traffic()
    with monkeypatch.context() as patch:
        patch.setattr(
            device_runtime.network.addresses, "connect", transcript.over(device_runtime.network.addresses.connect)
        )
        participant = dataclasses.replace(world.participant(), clock=lambda: 1e9 + 5.0, **changes)
        with Store.open(path, durable=False) as store:
            try:
                work = open_assignment(world.server.assignment, population="people")
                ended = participant.take_part(store, work, traffic).value
            except OdpError as error:
                ended = f"{type(error).__name__}: {error}"
            charged = [(one.terms.task_sha256, one.round) for one in store.charged()]
            lines = [(line.state, line.refusal) for line in store.ledger()]
    return transcript.calls, ended, charged, lines, traffic.up, traffic.down


def spoiled(broadcast: ModelVersion, rows: list[float], dense: list[float] | None) -> ModelVersion:
    """A model of a hostile server: every row from ``rows``, the dense tables from ``dense``."""
    tables = []
    for table in broadcast.tables:
        numbers = rows if table.keyed else dense
        made = table.rows if numbers is None else np.resize(np.array(numbers, dtype=np.float32), table.rows.shape)
        tables.append(dataclasses.replace(table, rows=made))
    return dataclasses.replace(broadcast, tables=tuple(tables))


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
@pytest.mark.slow
def test_devices_with_any_data_look_alike_to_a_hostile_server(
    hostile: Any, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    """Rows are as the server likes; its dense tables usable, so that the round goes on to the upload."""
    first, second = data.draw(ONE_EACH), data.draw(ONE_EACH)
    numbers = data.draw(st.lists(HOSTILE, min_size=1, max_size=7))
    round = data.draw(st.integers(0, len(hostile.algorithm.planned_releases()) - 1))
    hostile.open_round(round, spoiled(hostile.model_server.broadcast(hostile.state), numbers, None))
    seen = [seen_of(hostile, one, monkeypatch) for one in (first, second, Data())]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][1] == "sent"
    assert len(seen[0][2]) == 1


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.slow
def test_devices_refuse_a_hostile_model_alike_or_all_take_part(
    hostile: Any, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    first, second = data.draw(ONE_EACH), data.draw(ONE_EACH)
    numbers, dense = (data.draw(st.lists(HOSTILE, min_size=1, max_size=5)) for _ in range(2))
    last = len(hostile.algorithm.planned_releases()) - 1
    hostile.open_round(last, spoiled(hostile.model_server.broadcast(hostile.state), numbers, dense))
    assert seen_of(hostile, first, monkeypatch) == seen_of(hostile, second, monkeypatch)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.slow
def test_r239_devices_ask_for_tokens_alike_whatever_their_data_are(
    admitting: Any, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    seen = [seen_of(admitting, data.draw(ONE_EACH), monkeypatch) for _ in range(2)]
    seen.append(seen_of(admitting, Data(), monkeypatch))
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][1] == "sent"
    methods = [call.name for call in seen[0][0]]
    asked = [methods.index(name) for name in ("GetChallenge", "IssueToken")]
    assert methods.count("IssueToken") == 1
    # Before all that could depend on data.
    assert asked[0] < asked[1] < methods.index("Select") < methods.index("Submit")


def test_r239_devices_that_get_no_token_end_alike_whatever_their_data_are(
    admitting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [seen_of(admitting, data, monkeypatch, admission=None) for data in (Data(), MANY, Data({7: 4.0}))]
    assert seen[0] == seen[1] == seen[2]
    assert seen[0][1].startswith("EnrolmentError")
    assert seen[0][2] == [], "nothing was charged"


def only_with_item_seven(broadcast: ModelVersion) -> ModelVersion:
    """Of ratings: a solve that is singular for everybody who did not rate item 7, without a ridge and trust elsewhere.

    Of implicit data: weights and rows of which this item's alone are not zero.
    """
    tables = []
    for table in broadcast.tables:
        rows = np.zeros_like(table.rows)
        if table.keyed:
            rows[7] = 1.0
        tables.append(dataclasses.replace(table, rows=rows))
    return dataclasses.replace(broadcast, tables=tuple(tables))


def test_r180_a_model_that_is_singular_without_one_item_does_not_tell_who_rated_it(
    hostile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = len(hostile.algorithm.planned_releases())
    hostile.open_round(min(1, rounds - 1), only_with_item_seven(hostile.model_server.broadcast(hostile.state)))
    rated, not_rated = (Data({item: 4.0}, [{"film": item, "stars": 4}]) for item in (7, 9))
    assert seen_of(hostile, rated, monkeypatch) == seen_of(hostile, not_rated, monkeypatch)


@pytest.mark.parametrize("low", [1.0, 2.5, 4.0, 4.5])
def test_r181_a_range_of_values_does_not_tell_a_rating(
    tmp_path: Path, identity: Any, platform: Any, World: Any, low: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search over ranges: on whichever side of it the rating is."""
    task = dataclasses.replace(task_of("ratings"), data=odp.RatingsData(low=low, high=5.0))
    world = World(tmp_path, identity, platform, task)
    try:
        seen = [seen_of(world, Data({7: rating, -5: rating}), monkeypatch) for rating in (0.5, 3.0, 5.0, 7.0)]
    finally:
        world.close()
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert seen[0][1] == "sent"


def test_r433_a_vote_is_cast_alike_whether_rows_are_usable_or_not(
    tmp_path: Path, identity: Any, platform: Any, World: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rows, unusable ones alone, one usable row among many others, and usable ones alone."""
    usable, unusable = {"film": 3, "stars": 4}, {"film": ITEMS + 3, "stars": 4}
    world = World(tmp_path, identity, platform, task_of("usable rows"))
    held = ([], [unusable] * 40, [*[unusable] * 40, usable], [usable] * 40)
    try:
        votes = [vote_of(world, Data(events=events)) for events in held]
        seen = [seen_of(world, Data(events=events), monkeypatch) for events in held]
    finally:
        world.close()
    assert votes == [0, 1, 2, 3], "the votes differ"
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert (seen[0][1], len(seen[0][2])) == ("sent", 1)


def vote_of(world: Any, data: Data) -> int:
    """The place that a device with ``data`` votes for, which nobody outside sees."""
    definition = world.algorithm.definition
    with Store.open_or_create(world.folder / f"{next(NUMBERS)}.sqlite", durable=False) as store:
        data.put_into(store)
        rows = examples(store, definition, now=1e9 + 5.0)
    payload, _ = world.algorithm.client().contribute(NOTHING, rows, round=0, seed=1)
    (place,) = np.flatnonzero(np.frombuffer(payload, dtype="<i4"))
    return int(place)


class Code:
    """A developer's own code that does something else where a bit of the person's data is set."""

    def __init__(self, make: Callable[[], Any], keep: Callable[[Store], None] = lambda store: None) -> None:
        self._make, self._keep = make, keep

    def most_asked(self, model: Any) -> int:
        return 10_000

    def make(self, path: Path, model: Any) -> Any:
        return self._make()

    def keep(self, store: Store, made: Any) -> None:
        self._keep(store)


def raises(*_: Any) -> Any:
    raise RuntimeError("1")


def exhausts(*_: Any) -> Any:
    raise MemoryError


def fills(store: Store) -> None:
    """As many rows as an answer may have."""
    store.data("films").replace_events("example", [{"film": 1, "stars": 2}] * 10_000, time=1e9)


def removes(store: Store) -> None:
    store.data("films").replace_events("example", [], time=1e9)


QUIET = Code(list)
CODES = [
    Code(raises), Code(exhausts), Code(lambda: None), Code(list, raises), Code(list, fills),
    Code(list, removes),
]  # fmt: skip


@pytest.mark.parametrize("code", CODES, ids=["raises", "eats memory", "nonsense", "cannot be kept", "fills", "removes"])
@pytest.mark.slow
def test_r182_a_developers_own_code_tells_no_bit_by_how_it_ends(
    hostile: Any, code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile.open_round(0)
    data = Data({7: 4.0}, [{"film": 3, "stars": 4}])
    seen = [seen_of(hostile, data, monkeypatch, made_examples=timed(one)) for one in (QUIET, code)]
    assert seen[0] == seen[1]
    assert seen[0][1] == "sent"


def timed(code: Code) -> MadeExamples:
    return MadeExamples(maker=code, code_seconds=6.0)


@pytest.mark.parametrize("seconds", [0.0, 1.0, 5.9, 6.0, 600.0])
def test_r182_a_developers_own_code_tells_no_bit_by_how_long_it_runs(
    hostile: Any, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In simulated time: what follows starts when the slot ends, whether the code was through after ``seconds``."""
    hostile.open_round(0)
    now, started = [0.0], []
    over = threading.Event()

    whole = 6.0 + STORE_SECONDS + 10_000 * ROW_SECONDS

    def wait(wanted: float, finished: threading.Event) -> None:
        if wanted < whole:
            assert finished.wait(60)
        elif seconds <= wanted:
            over.set()
            assert finished.wait(60)
        now[0] += wanted

    begin = FixedTimes._begin

    def reading(*given: Any) -> Any:
        started.append(now[0])
        return begin(*given)

    monkeypatch.setattr(FixedTimes, "_begin", reading)
    made, fixed_times = timed(Code(lambda: over.wait(60))), impatient_times(wait=wait, monotonic=lambda: now[0])
    try:
        assert seen_of(hostile, Data({7: 4.0}), monkeypatch, made_examples=made, fixed_times=fixed_times)[1] == "sent"
    finally:
        over.set()
    assert started[0] == whole


def test_r183_a_computation_that_does_not_end_ends_in_an_upload_like_any_other(
    hostile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In real time."""
    hostile.open_round(0)
    in_time = seen_of(hostile, Data({7: 4.0}), monkeypatch)
    client, release = type(hostile.algorithm.client()), threading.Event()
    monkeypatch.setattr(client, "contribute", lambda *_, **__: release.wait(60))
    began = time.monotonic()
    try:
        assert seen_of(hostile, Data({7: 4.0}), monkeypatch, fixed_times=FixedTimes(speed=lambda: 0.0)) == in_time
    finally:
        release.set()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("fails", ["keys", "contribute"])
def test_r183_an_unforeseen_error_of_an_algorithm_ends_in_an_upload_like_any_other(
    hostile: Any, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile.open_round(0)
    honest = seen_of(hostile, Data({7: 4.0}), monkeypatch)
    client = type(hostile.algorithm.client())
    with monkeypatch.context() as patch:
        patch.setattr(client, fails, raises)
        assert seen_of(hostile, Data({7: 4.0}), monkeypatch) == honest


def test_r295_devices_fetch_their_catalogue_alike_whatever_items_they_know(
    tmp_path: Path, identity: Any, platform: Any, World: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device without data, with those of every version, with retired and new items, and with unknown ones."""
    catalogue = odp.items.Catalogue.make("people", [f"film {number}" for number in range(ITEMS)])
    for week in range(4):
        catalogue = catalogue.change(add=[f"new {week}"], retire=[f"film {week}"])
    model = odp.MatrixFactorization(items=ITEMS, rank=2, catalogue=catalogue)
    world = World(tmp_path, identity, platform, dataclasses.replace(task_of("ratings"), model=model))
    world.catalogues.steps = catalogue.steps
    known = [Data(), Data(keys=dict.fromkeys(catalogue.keys[::3], 4.0)), Data(keys={"film 0": 1.0, "new 3": 5.0}),
             Data({7: 4.0}, keys={"what no catalogue has": 2.0})]  # fmt: skip
    try:
        seen = [seen_of(world, one, monkeypatch) for one in known]
        assert seen[0] == seen[1] == seen[2] == seen[3]
        assert seen[0][1] == "sent"
        methods = [call.name for call in seen[0][0]]
        assert methods.count("GetCatalogueSteps") == 2, "the first version, and the block of the others"
        assert methods.index("GetCatalogueSteps") < methods.index("Select"), "before data are read"
        # A server that withholds the catalogue, or gives another one, gets one answer from all of them.
        for steps in ((), odp.items.Catalogue.make("people", ["fork"]).steps):
            world.catalogues.steps = steps
            refused = [seen_of(world, one, monkeypatch) for one in known]
            assert refused[0] == refused[1] == refused[2] == refused[3]
            assert refused[0][1].startswith("TransparencyError")
            assert refused[0][2] == [], "nothing was charged"
    finally:
        world.close()


class Lookups:
    """Stands in for ``Lookup``: answers with what a hostile distributor published, and notes what it was asked."""

    def __init__(self, rows: np.ndarray, dense: dict[str, np.ndarray], buckets: np.ndarray) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._rows, self._dense, self._buckets = rows, dense, buckets

    def rows(self, address: str, model: bytes, manifest: Any, keys: np.ndarray, *, count: int, traffic: Any) -> Slices:
        self.asked.append(("rows", count))
        assert len(keys) <= count
        return Slices(manifest.version, keys, self._rows[keys], self._dense)

    def select(self, table: FoundTable, keys: np.ndarray, *, requests: int = 1, traffic: Any = None) -> np.ndarray:
        self.asked.append(("select", requests))
        assert len(np.unique(keys)) <= requests * table.opened.rows_per_request
        return self._buckets[keys]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.slow
def test_r185_candidates_are_asked_for_alike_whatever_the_data_and_the_tables_are(
    hostile: Any, data: st.DataObject
) -> None:
    """Also where scoring the clusters fails, and where only some of the buckets are of this version of the model."""
    if not isinstance(hostile.algorithm, Recommender):
        pytest.skip("statistics train no model")
    numbers = data.draw(st.lists(HOSTILE, min_size=1, max_size=7))
    broadcast = spoiled(hostile.model_server.broadcast(hostile.state), numbers, None)
    hostile.open_round(1, broadcast)
    model = open_model(hostile.task, hostile.signed_manifest)
    width = broadcast.keyed.rows.shape[1]
    made = candidate_tables("films", hostile.model_server.broadcast(hostile.state), model.model_sha256, clusters=9)
    buckets = made.buckets.rows.copy()
    buckets[data.draw(st.lists(st.integers(0, 8)))] = data.draw(HOSTILE)
    opened: Any = SimpleNamespace(rows_per_request=3)
    centroids = np.resize(np.array(numbers, dtype=np.float32), (9, width))
    found = CandidateModel(model, "d:1", centroids, FoundTable(opened, "d:1"), stamp_of(model.model_sha256))
    asked = []
    for one in (data.draw(ONE_EACH), data.draw(ONE_EACH), Data()):
        lookups = Lookups(broadcast.keyed.rows, broadcast.dense, buckets)
        path = hostile.folder / f"{next(NUMBERS)}.sqlite"
        with Store.open_or_create(path, durable=False) as store:
            one.put_into(store)
            recommend_candidates(store, found, cast("Any", lookups), k=5)
        asked.append(lookups.asked)
    assert asked == [[("rows", 40), ("select", 1)]] * 3
