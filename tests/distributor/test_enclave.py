from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from distributor import enclave, interface
from distributor.enclave import DistributorCore
from distributor.interface import UnknownModel
from odp.algorithms.registry import algorithm_for
from odp.algorithms.statistics.task import Histogram, Statistics
from odp.crypto import HpkeKey, SignatureError, SigningKey
from odp.errors import ConfigurationError, StateError
from odp.protocol.terms import Cohort, UserLevelDP
from odp.protocol.wire.model import ModelVersion, TableValues
from odp.signed.task import open_task, sign_manifest, sign_task
from odp.trust.enclave.policy import SELECTIONS
from odp.v1 import common_pb2

KEY = HpkeKey.generate()


@pytest.fixture
def core() -> DistributorCore:
    return DistributorCore(KEY)


def install(core: DistributorCore, model: Any) -> tuple[bytes, ...]:
    return core.install(model.task, model.manifest, model.tables)


def refusal(core: DistributorCore, model: bytes, sealed_keys: bytes) -> str:
    with pytest.raises(ConfigurationError) as caught:
        core.select(model, sealed_keys)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


def test_selected_rows_are_the_models_rows_in_the_order_of_the_keys(core: Any, developer: Any, kit: Any) -> None:
    model = developer.model()
    install(core, model)
    keys = [39, 0, 7, 7, 3, 12, 0, 25]
    question = kit.ask(model, KEY.public, keys)
    rows = kit.answered_rows(model, question, core.select(model.id, question.sealed_keys))
    np.testing.assert_array_equal(rows, model.broadcast.keyed.rows[keys])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.lists(st.lists(st.integers(0, 39), min_size=8, max_size=8), min_size=1, max_size=9))
def test_the_scan_and_the_gather_answer_with_the_same_bytes(keys: list[list[int]], developer: Any, kit: Any) -> None:
    models = [developer.model(version) for version in range(2)]
    cores = [DistributorCore(KEY, select=select) for select in SELECTIONS]
    questions = [kit.ask(models[place % 2], KEY.public, chosen) for place, chosen in enumerate(keys)]
    answers = []
    for core in cores:
        for model in models:
            install(core, model)
        answers.append(core.select_many([(question.model, question.sealed_keys) for question in questions]))
    assert answers[0] == answers[1]
    for place, (question, answer) in enumerate(zip(questions, answers[0], strict=True)):
        rows = kit.answered_rows(models[place % 2], question, answer)
        np.testing.assert_array_equal(rows, models[place % 2].broadcast.keyed.rows[keys[place]])


def test_the_scan_is_the_default_and_the_gather_is_never_used_by_it(
    developer: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = enclave.ScannedTable.take
    monkeypatch.setattr(enclave.ScannedTable, "take", lambda self, keys: (taken.append(len(keys)), take(self, keys))[1])
    model = developer.model()
    for core in (DistributorCore(KEY), DistributorCore(KEY, select="direct")):
        install(core, model)
        core.select(model.id, kit.ask(model, KEY.public, range(8)).sealed_keys)
    assert taken == [8]


def test_requests_that_wait_share_a_pass_and_a_refused_one_changes_nothing_for_the_others(
    core: Any, developer: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = enclave.ScannedTable.take
    monkeypatch.setattr(enclave.ScannedTable, "take", lambda self, keys: (taken.append(len(keys)), take(self, keys))[1])
    model = developer.model()
    install(core, model)
    good = [kit.ask(model, KEY.public, [place] * 8) for place in range(3)]
    bad = kit.ask(model, KEY.public, [40] * 8)
    asked = [good[0], bad, good[1], kit.ask(developer.model(1), KEY.public, range(8)), good[2]]
    answers = core.select_many([(question.model, question.sealed_keys) for question in asked])
    assert taken == [24]
    for place, question in zip((0, 2, 4), good, strict=True):
        number = good.index(question)
        rows = kit.answered_rows(model, question, answers[place])
        np.testing.assert_array_equal(rows, model.broadcast.keyed.rows[[number] * 8])
    assert isinstance(answers[1], ConfigurationError)
    assert str(answers[1]) == "malformed select request"
    assert isinstance(answers[3], UnknownModel)
    assert core.select_many([(model.id, bad.sealed_keys)])[0].args == answers[1].args
    assert core.select_many([]) == []


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(keys=st.lists(st.integers(0, 39), min_size=8, max_size=8))
def test_requests_and_replies_have_one_length_whatever_the_keys(keys: list[int], developer: Any, kit: Any) -> None:
    core = DistributorCore(KEY)
    lengths = set()
    for model in (developer.model(0), developer.model(1)):
        install(core, model)
        for chosen in (keys, [0] * 8):
            question = kit.ask(model, KEY.public, chosen)
            lengths.add((len(question.sealed_keys), len(core.select(model.id, question.sealed_keys))))
    assert len(lengths) == 1


def test_reply_length_does_not_depend_on_the_values_of_the_rows(core: Any, developer: Any, kit: Any) -> None:
    model = developer.model()
    zeros = ModelVersion(1, tuple(replace(table, rows=np.zeros_like(table.rows)) for table in model.broadcast.tables))
    flat = developer.signed(zeros)
    lengths = set()
    for published in (model, flat):
        install(core, published)
        lengths.add(len(core.select(published.id, kit.ask(published, KEY.public, range(8)).sealed_keys)))
    assert len(lengths) == 1


def test_a_replayed_request_gets_the_same_bytes_and_nothing_more(core: Any, developer: Any, kit: Any) -> None:
    model = developer.model()
    install(core, model)
    question = kit.ask(model, KEY.public, range(8))
    assert core.select(model.id, question.sealed_keys) == core.select(model.id, question.sealed_keys)


def test_a_request_replayed_to_another_model_is_refused(core: Any, developer: Any, kit: Any) -> None:
    first, second = developer.model(0), developer.model(1)
    install(core, first)
    install(core, second)
    question = kit.ask(first, KEY.public, range(8))
    assert refusal(core, second.id, question.sealed_keys) == "malformed select request"


def test_every_malformed_request_gets_the_same_refusal(core: Any, developer: Any, kit: Any) -> None:
    model = developer.model()
    install(core, model)
    good = kit.ask(model, KEY.public, range(8)).sealed_keys
    flipped = bytes([good[0] ^ 1]) + good[1:]
    tampered = good[:-1] + bytes([good[-1] ^ 1])
    malformed = [
        b"",
        b"\0" * 48,
        b"\0" * len(good),
        flipped,
        tampered,
        good[:-1],
        good + b"\0",
        kit.ask(model, HpkeKey.generate().public, range(8)).sealed_keys,
        kit.ask(model, KEY.public, range(7)).sealed_keys,
        kit.ask(model, KEY.public, range(9)).sealed_keys,
        kit.ask(model, KEY.public, []).sealed_keys,
        kit.ask(model, KEY.public, [*range(7), 40]).sealed_keys,
        kit.ask(model, KEY.public, [*range(7), 2**32 - 1]).sealed_keys,
        kit.ask(model, KEY.public, range(8), table="other").sealed_keys,
        kit.ask(model, KEY.public, range(8), table="globals").sealed_keys,
        kit.ask(model, KEY.public, range(8), table="").sealed_keys,
        kit.ask(model, KEY.public, range(8), reply_key=b"short").sealed_keys,
        kit.ask(model, KEY.public, range(8), reply_key=bytes(31)).sealed_keys,
        # The right length in the wrong fields: one key less, and its 4 bytes in the reply key.
        kit.ask(model, KEY.public, range(7), reply_key=bytes(36)).sealed_keys,
        # The same with an unknown field: of 4 bytes beside one key less, and beside a request that is whole.
        kit.ask(model, KEY.public, range(7), more=b"\x78\x80\x80\x01").sealed_keys,
        kit.ask(model, KEY.public, range(8), more=b"\x78\x80\x80\x01").sealed_keys,
        kit.ask(model, KEY.public, range(8), bound_to=developer.model(1).id).sealed_keys,
    ]
    assert {refusal(core, model.id, sealed) for sealed in malformed} == {"malformed select request"}
    assert len(malformed[-4]) == len(malformed[-3]) == len(good)


def test_an_unknown_model_is_named_by_its_first_12_digits(core: Any) -> None:
    with pytest.raises(UnknownModel, match=r"^model abababababab is not held here") as caught:
        core.select(b"\xab" * 32, bytes(200))
    assert "\n" not in str(caught.value)
    assert "ab" * 7 not in str(caught.value)


def test_a_forgotten_model_is_unknown_and_may_be_forgotten_again(core: Any, developer: Any, kit: Any) -> None:
    model = developer.model()
    install(core, model)
    core.forget(model.id)
    core.forget(model.id)
    with pytest.raises(UnknownModel):
        core.select(model.id, kit.ask(model, KEY.public, range(8)).sealed_keys)


def test_a_manifest_of_another_signer_is_refused(core: Any, developer: Any) -> None:
    model = developer.model()
    manifest = common_pb2.ModelManifest.FromString(model.manifest.manifest)
    forged = sign_manifest(manifest, SigningKey.generate())
    with pytest.raises(SignatureError):
        core.install(model.task, forged, model.tables)
    assert core.models() == ()


def test_a_changed_task_is_refused(core: Any, developer: Any) -> None:
    model = developer.model()
    definition = common_pb2.TaskDefinition.FromString(model.task.definition)
    definition.dpam.slices_per_device = 5
    changed = common_pb2.SignedTask(definition=definition.SerializeToString(), signature=model.task.signature)
    with pytest.raises(SignatureError):
        core.install(changed, model.manifest, model.tables)


def test_a_manifest_of_another_task_of_the_same_developer_is_refused(core: Any, developer: Any, kit: Any) -> None:
    model = kit.Developer("books").model()
    with pytest.raises(ConfigurationError, match="another task"):
        core.install(developer.task, model.manifest, model.tables)
    assert core.models() == ()


def changed_byte(tables: dict[str, bytes]) -> dict[str, bytes]:
    return {**tables, "items": bytes([tables["items"][0] ^ 1]) + tables["items"][1:]}


@pytest.mark.parametrize(
    "spoil",
    [
        changed_byte,
        lambda tables: {**tables, "items": tables["items"][:-4]},
        lambda tables: {**tables, "items": tables["items"] + bytes(4)},
        lambda tables: {"items": tables["items"]},
        lambda tables: {**tables, "more": b""},
        lambda tables: {},
    ],
    ids=["changed", "short", "long", "missing", "undeclared", "none"],
)
def test_tables_other_than_the_manifests_are_refused_and_nothing_is_held(
    spoil: Callable[[dict[str, bytes]], dict[str, bytes]], core: Any, developer: Any
) -> None:
    model = developer.model()
    with pytest.raises(ConfigurationError):
        core.install(model.task, model.manifest, spoil(model.tables))
    assert core.models() == ()


def test_a_table_with_a_value_that_is_not_finite_is_refused(core: Any, developer: Any) -> None:
    model = developer.model()
    items = model.broadcast.keyed
    rows = items.rows.copy()
    rows[3, 1] = np.nan
    tables = tuple(TableValues("items", rows, True) if table.keyed else table for table in model.broadcast.tables)
    with pytest.raises(ConfigurationError, match="not finite"):
        install(core, developer.signed(ModelVersion(0, tables)))


def all_keyed(manifest: common_pb2.ModelManifest) -> None:
    for table in manifest.tables:
        table.keyed = True


def none_keyed(manifest: common_pb2.ModelManifest) -> None:
    for table in manifest.tables:
        table.keyed = False


def one_name(manifest: common_pb2.ModelManifest) -> None:
    for table in manifest.tables:
        table.name = "items"


def path_name(manifest: common_pb2.ModelManifest) -> None:
    manifest.tables[0].name = "../items"


def no_tables(manifest: common_pb2.ModelManifest) -> None:
    del manifest.tables[:]


def no_rows(manifest: common_pb2.ModelManifest) -> None:
    manifest.tables[0].rows = 0


def short_hash(manifest: common_pb2.ModelManifest) -> None:
    manifest.tables[0].sha256 = b"short"


def above_one_gib(manifest: common_pb2.ModelManifest) -> None:
    keyed = next(table for table in manifest.tables if table.keyed)
    keyed.rows, keyed.width = 2**24, 17


def reply_above_one_message(manifest: common_pb2.ModelManifest) -> None:
    dense = next(table for table in manifest.tables if not table.keyed)
    dense.rows, dense.width = 2**12, 2**10


@pytest.mark.parametrize(
    "change",
    [
        all_keyed, none_keyed, one_name, path_name, no_tables, no_rows, short_hash, above_one_gib,
        reply_above_one_message,
    ],
)  # fmt: skip
def test_a_manifest_that_declares_what_no_model_may_hold_is_refused_by_its_header(
    change: Callable[[common_pb2.ModelManifest], None], developer: Any
) -> None:
    model = developer.signed(developer.model().broadcast, change)
    with pytest.raises(ConfigurationError):
        interface.open_header(model.task, model.manifest)


def test_the_newest_three_versions_of_each_task_are_kept(core: Any, developer: Any, kit: Any) -> None:
    other = kit.Developer("books").model(0)
    install(core, other)
    models = [developer.model(version) for version in range(5)]
    replaced = [install(core, model) for model in models]
    assert replaced == [(), (), (), (models[0].id,), (models[1].id,)]
    assert set(core.models()) == {other.id, *(model.id for model in models[2:])}


def test_an_older_version_than_those_kept_is_refused(core: Any, developer: Any) -> None:
    for version in (2, 3, 4):
        install(core, developer.model(version))
    with pytest.raises(ConfigurationError, match=r"version=1 to be at least 2"):
        install(core, developer.model(1))
    assert len(core.models()) == 3


def test_contents_of_one_version_are_kept_by_hash_up_to_a_limit(core: Any, developer: Any, kit: Any) -> None:
    models = [developer.model(7, seed=seed) for seed in range(enclave.SAME_VERSION + 1)]
    for model in models[:-1]:
        install(core, model)
    for model in models[:-1]:
        question = kit.ask(model, KEY.public, range(8))
        rows = kit.answered_rows(model, question, core.select(model.id, question.sealed_keys))
        np.testing.assert_array_equal(rows, model.broadcast.keyed.rows[:8])
    with pytest.raises(ConfigurationError, match="version=7"):
        install(core, models[-1])
    assert install(core, models[0]) == ()


def test_a_full_enclave_refuses_the_next_model_and_keeps_what_it_holds(kit: Any) -> None:
    models = [kit.Developer(key=bytes(31) + bytes([number])).model(0) for number in range(3)]
    core = DistributorCore(KEY, capacity_bytes=len(models[0].payload) * 5 // 2)
    for model in models[:2]:
        install(core, model)
    with pytest.raises(StateError, match="no room for"):
        install(core, models[2])
    assert set(core.models()) == {model.id for model in models[:2]}


def test_statistics_have_a_table_to_download_and_nothing_to_select(core: Any, kit: Any) -> None:
    asked = Statistics(
        name="hours",
        queries={"hours": Histogram(bins=24)},
        privacy=UserLevelDP(epsilon=1, delta=1e-6),
        cohort=Cohort(minimum=2),
    )
    developer = kit.Developer()
    developer.task = sign_task(asked.definition(), developer.key)
    server = algorithm_for(open_task(developer.task)).server()
    model = developer.signed(server.broadcast(server.start()))
    install(core, model)
    for keys in ([0], [], list(range(kit.SLICES))):
        question = kit.ask(model, KEY.public, keys, table="statistics")
        assert refusal(core, model.id, question.sealed_keys) == "malformed select request"

    def keyed(manifest: common_pb2.ModelManifest) -> None:
        manifest.tables[0].keyed = True

    wrong = developer.signed(server.broadcast(server.start()), keyed)
    with pytest.raises(ConfigurationError, match="none for statistics"):
        enclave.open_header(wrong.task, wrong.manifest)
