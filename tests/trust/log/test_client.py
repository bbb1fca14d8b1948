"""What a device remembers of a log, what it refuses to follow, and what it lets the log know."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trust.log.world import NOW, LogWorld, filler

from odp.crypto.note import Kind, NoteKey
from odp.errors import StateError, TransparencyError
from odp.trust.log.client import MOST_WATCHED, PAGE, TILE, LogMemory, LogView
from odp.trust.log.merkle import leaf_hash

MONTH = 30.5 * 24 * 3600
#: The end of the world's endorsements, in days.
UNTIL = int(NOW + 300 * 86400)


@pytest.fixture
def fetched(world: LogWorld, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Every question that the log is asked."""
    asked: list[tuple[int, int, int]] = []
    answer = world.log.hashes

    def record(level: int, start: int, count: int) -> list[bytes]:
        asked.append((level, start, count))
        return answer(level, start, count)

    monkeypatch.setattr(world.log, "hashes", record)
    return asked


def test_a_device_follows_a_log_over_many_tiles_and_restarts(world: LogWorld, tmp_path: Path) -> None:
    file, sizes = tmp_path / "view.json", []
    for count in (0, 1, 200, 50, 1, 255, 256, 300, 2100, 3):
        world.append(*filler(count, first=world.log.size))
        memory = world.memory(file)
        checkpoint = memory.accept(world.log.note, now=NOW)
        assert checkpoint == world.log.checkpoint
        assert (memory.view.size, memory.view.root) == (checkpoint.size, checkpoint.root)
        sizes.append(memory.view.size)
    assert sizes == sorted(sizes)
    assert LogView.decode(file.read_bytes()) == memory.view


def test_a_new_device_needs_no_leaf_of_complete_tiles(world: LogWorld, fetched: list[tuple[int, int, int]]) -> None:
    world.append(*filler(5 * TILE))
    world.memory().accept(world.log.note, now=NOW)
    assert [level for level, _start, _count in fetched] == [8, 0]
    assert fetched[1][1] == 5 * TILE


def test_what_a_device_asks_says_at_most_the_number_of_a_tile(
    world: LogWorld, fetched: list[tuple[int, int, int]]
) -> None:
    """Devices that saw any of 256 neighbouring sizes ask alike; so does one that needs a few leaves or many."""
    asked: dict[int, set[tuple[tuple[int, int, int], ...]]] = {}
    notes = []
    for _ in range(40):
        world.append(*filler(17, first=world.log.size))
        notes.append(world.log.note)
    for last in range(0, len(notes) - 1, 3):
        memory = world.memory()
        seen = memory.accept(notes[last], now=NOW).size
        fetched.clear()
        memory.accept(notes[-1], now=NOW)
        asked.setdefault(seen // TILE, set()).add(tuple(fetched))
    assert len(asked) >= 3
    for tile, questions in asked.items():
        assert len(questions) == 1, f"tile {tile}"
        for _level, start, count in next(iter(questions)):
            assert start % TILE == 0
            assert count % TILE == 0
            assert count <= PAGE


def test_equal_sizes_with_another_root_are_a_split_view(world: LogWorld, tmp_path: Path) -> None:
    other = LogWorld(tmp_path / "other", key=world.key)
    memory = world.memory()
    memory.accept(world.log.note, now=NOW)
    assert other.log.size == world.log.size
    with pytest.raises(TransparencyError) as caught:
        memory.accept(other.log.note, now=NOW)
    assert caught.value.reason == "split_view"
    memory.accept(world.log.note, now=NOW)
    other.close()


@pytest.mark.parametrize("grown", [1, 300])
def test_a_larger_tree_that_does_not_continue_the_old_one_is_refused(
    world: LogWorld, tmp_path: Path, grown: int
) -> None:
    other = LogWorld(tmp_path / "other", key=world.key)
    other.append(*filler(grown))
    memory, fork = world.memory(), other.memory()
    memory.accept(world.log.note, now=NOW)
    before = memory.view
    fork.accept(other.log.note, now=NOW)
    # Both hashes that the fork has, and those of the true log: neither goes with what was seen and what is signed.
    for hashes in (other.log.hashes, world.log.hashes):
        memory._fetch = hashes
        with pytest.raises(TransparencyError) as caught:
            memory.accept(other.log.note, now=NOW)
        assert caught.value.reason == "inconsistent"
        assert memory.view == before, "a refusal changes nothing"
    other.close()


def test_an_older_checkpoint_is_taken_again_only_where_this_process_took_it_before(
    world: LogWorld, tmp_path: Path
) -> None:
    file = tmp_path / "view.json"
    old = world.log.note
    first, second = world.memory(file), world.memory(file)
    first.accept(old, now=NOW)
    world.append(*filler(1))
    first.accept(world.log.note, now=NOW)
    assert first.accept(old, now=NOW).size == first.view.size - 1
    with pytest.raises(TransparencyError) as caught:
        second.accept(old, now=NOW)
    assert caught.value.reason == "shrunk"


def test_two_programs_of_one_person_share_what_was_seen(world: LogWorld, tmp_path: Path) -> None:
    file, fork = tmp_path / "view.json", LogWorld(tmp_path / "fork", key=world.key)
    one, two = world.memory(file), world.memory(file)
    one.accept(world.log.note, now=NOW)
    with pytest.raises(TransparencyError, match="split_view"):
        two.accept(fork.log.note, now=NOW)
    fork.close()


def test_a_view_that_nobody_changed_is_not_read_again_and_one_that_another_program_changed_is(
    world: LogWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    decode = LogView.decode
    monkeypatch.setattr(LogView, "decode", lambda data: (decoded.append(data), decode(data))[1])
    file = tmp_path / "view.json"
    first, second = world.memory(file), world.memory(file)
    first.accept(world.log.note, now=NOW)
    first.accept(world.log.note, now=NOW)
    decoded.clear()
    for _ in range(5):
        first.accept(world.log.note, now=NOW)
    assert decoded == []
    world.append(*filler(3))
    second.accept(world.log.note, now=NOW)
    decoded.clear()
    first.accept(world.log.note, now=NOW)
    assert decoded == [file.read_bytes()]
    assert first.view == second.view
    older = file.read_bytes()
    world.append(*filler(1))
    first.accept(world.log.note, now=NOW)
    file.write_bytes(older)
    first.accept(world.log.note, now=NOW)
    assert decoded[-1] == older
    assert LogView.decode(file.read_bytes()) == first.view


def test_a_newer_signature_of_the_same_tree_is_kept_and_an_older_one_is_not(world: LogWorld) -> None:
    memory, older = world.memory(), world.log.note
    world.log.sign_again(now=NOW + 60)
    memory.accept(world.log.note, now=NOW + 60)
    memory.accept(older, now=NOW + 60)
    assert memory.view.note == world.log.note


def test_a_damaged_memory_is_named_and_never_taken_for_a_new_one(world: LogWorld, tmp_path: Path) -> None:
    file = tmp_path / "view.json"
    world.memory(file).accept(world.log.note, now=NOW)
    data = file.read_text()
    for damaged in ("", "{}", data.replace('"tail": [', '"tail": [\n"' + "00" * 32 + '",'), data[:-20]):
        file.write_text(damaged)
        with pytest.raises(StateError, match=r"view\.json is damaged"):
            world.memory(file).accept(world.log.note, now=NOW)


def test_another_pinned_log_starts_anew(world: LogWorld, tmp_path: Path) -> None:
    file = tmp_path / "view.json"
    world.memory(file).accept(world.log.note, now=NOW)
    other = LogWorld(tmp_path / "other", key=NoteKey.generate("example.com/another"))
    assert other.memory(file).accept(other.log.note, now=NOW) == other.log.checkpoint
    other.close()


def test_a_withdrawal_is_found_wherever_it_stands(world: LogWorld, tmp_path: Path) -> None:
    """In an old complete tile, in the tile at hand, and among leaves that come later."""
    leaf = world.withdrawals["aggregator"].leaf
    index = world.log.index_of(world.endorsements[0].leaf)
    assert index is not None
    watching = world.memory(tmp_path / "view.json")
    watching.accept(world.log.note, now=NOW)
    watching.require_not_withdrawn(leaf, until=UNTIL, index=index)
    world.append(world.withdrawals["aggregator"].encode())
    for count in (0, 10, 2 * TILE):
        world.append(*filler(count, first=1000))
        fresh = world.memory()
        for memory in (watching, fresh):
            memory.accept(world.log.note, now=NOW)
            with pytest.raises(TransparencyError) as caught:
                memory.require_not_withdrawn(leaf, until=UNTIL, index=index)
            assert caught.value.reason == "withdrawn"
            other = world.log.index_of(world.endorsements[1].leaf)
            assert other is not None
            memory.require_not_withdrawn(world.withdrawals["distributor"].leaf, until=UNTIL, index=other)


def test_a_log_that_hides_the_leaf_of_a_withdrawal_is_refused(world: LogWorld) -> None:
    leaf = world.withdrawals["aggregator"].leaf
    world.append(world.withdrawals["aggregator"].encode(), *filler(TILE))

    def hiding(level: int, start: int, count: int) -> list[bytes]:
        hashes = world.log.hashes(level, start, count)
        return [bytes(32) if value == leaf else value for value in hashes]

    memory = LogMemory(world.policy(), None, hiding)
    memory.accept(world.log.note, now=NOW)
    with pytest.raises(TransparencyError) as caught:
        memory.require_not_withdrawn(leaf, until=UNTIL, index=0)
    assert caught.value.reason == "inconsistent"


@pytest.mark.parametrize("answer", [[], [b"x"], [bytes(32)] * 3, [bytes(31)] * 400])
def test_a_log_that_does_not_show_its_hashes_is_refused(world: LogWorld, answer: list[bytes]) -> None:
    memory = LogMemory(world.policy(), None, lambda level, start, count: answer)
    with pytest.raises(TransparencyError) as caught:
        memory.accept(world.log.note, now=NOW)
    assert caught.value.reason == "inconsistent"
    assert memory.view == LogView()


def test_a_log_that_nobody_pinned_is_not_followed(world: LogWorld, tmp_path: Path) -> None:
    pinned = world.policy()
    stranger = LogWorld(tmp_path / "stranger", key=NoteKey.generate(world.key.name))
    with pytest.raises(TransparencyError) as caught:
        LogMemory(pinned, None, stranger.log.hashes).accept(stranger.log.note, now=NOW)
    assert caught.value.reason == "wrong_log_key"
    assert stranger.key.public(Kind.NOTE).text not in pinned.log_keys
    stranger.close()


# A device that lives for long


def endorsed(world: LogWorld, *, months: float) -> tuple[bytes, bytes, int, int]:
    """An endorsement from now on, in the log: its withdrawal as an entry and as a leaf, its end, its place."""
    now = (world.clock() - NOW) / 86400
    entry, withdrawal = world.endorsed("aggregator", days=(now - 1, now + months * MONTH / 86400))
    world.append(entry.encode())
    index = world.log.index_of(entry.leaf)
    assert index is not None
    return withdrawal.encode(), withdrawal.leaf, int(world.clock() + months * MONTH), index


@pytest.mark.slow
def test_over_ten_years_of_monthly_endorsements_a_device_remembers_little_and_misses_no_withdrawal(
    world: LogWorld, tmp_path: Path
) -> None:
    file, sizes, standing = tmp_path / "view.json", [], []
    for month in range(120):
        world.clock.now = NOW + month * MONTH
        entry, leaf, until, index = endorsed(world, months=3)
        standing = [one for one in standing if one[2] > world.clock()] + [[leaf, index, until, False]]
        if month % 5 == 0:
            world.append(entry)
            standing[-1][3] = True
        world.append(*filler(600, first=600 * month))
        # Another process every month.
        memory = world.memory(file)
        memory.accept(world.log.note, now=world.clock())
        for leaf, index, until, withdrawn in standing:
            if withdrawn:
                with pytest.raises(TransparencyError, match="withdrawn"):
                    memory.require_not_withdrawn(leaf, until=until, index=index)
            else:
                memory.require_not_withdrawn(leaf, until=until, index=index)
        assert len(memory.view.watched) <= 5
        sizes.append(file.stat().st_size)
    assert world.log.size > 70_000
    assert max(sizes) < 2**15
    with pytest.raises(TransparencyError, match="shrunk"):
        world.memory(file).accept(LogWorld(tmp_path / "short", key=world.key, clock=world.clock).log.note,
                                  now=world.clock())  # fmt: skip


def test_what_was_pruned_is_found_again_where_a_clock_made_it_look_ended(world: LogWorld, tmp_path: Path) -> None:
    """A device whose clock was years ahead, together with a log that vouched for that time."""
    entry, leaf, until, index = endorsed(world, months=6)
    world.append(entry, *filler(2 * TILE))
    memory = world.memory(tmp_path / "view.json")
    memory.accept(world.log.note, now=NOW)
    with pytest.raises(TransparencyError, match="withdrawn"):
        memory.require_not_withdrawn(leaf, until=until, index=index)
    world.log.sign_again(now=NOW + 48 * MONTH)
    memory.accept(world.log.note, now=NOW + 48 * MONTH)
    assert memory.view.watched == ()
    with pytest.raises(TransparencyError, match="withdrawn"):
        memory.require_not_withdrawn(leaf, until=until, index=index)


def test_a_log_prunes_nothing_by_a_time_that_the_device_does_not_share(world: LogWorld, tmp_path: Path) -> None:
    entry, leaf, until, index = endorsed(world, months=1)
    memory = world.memory(tmp_path / "view.json")
    memory.accept(world.log.note, now=NOW)
    memory.require_not_withdrawn(leaf, until=until, index=index)
    world.append(entry)
    world.log.sign_again(now=NOW + 12 * MONTH)
    with pytest.raises(TransparencyError, match="not_yet_valid"):
        memory.accept(world.log.note, now=NOW)
    assert memory.view.watch(leaf) is not None
    world.log.sign_again(now=NOW)
    memory.accept(world.log.note, now=NOW)
    with pytest.raises(TransparencyError, match="withdrawn"):
        memory.require_not_withdrawn(leaf, until=until, index=index)


def test_more_valid_endorsements_than_are_watched_are_refused_until_some_end(world: LogWorld, tmp_path: Path) -> None:
    file = tmp_path / "view.json"
    memory = world.memory(file)
    memory.accept(world.log.note, now=NOW)
    for number in range(MOST_WATCHED):
        memory.require_not_withdrawn(leaf_hash(b"%d" % number), until=int(NOW + MONTH), index=0)
    with pytest.raises(TransparencyError, match="some have to end first"):
        memory.require_not_withdrawn(leaf_hash(b"one more"), until=UNTIL, index=0)
    assert file.stat().st_size < 2**16
    world.log.sign_again(now=NOW + 2 * MONTH)
    memory.accept(world.log.note, now=NOW + 2 * MONTH)
    memory.require_not_withdrawn(leaf_hash(b"one more"), until=UNTIL, index=0)
    assert len(json.loads(file.read_bytes())["watched"]) == 1
