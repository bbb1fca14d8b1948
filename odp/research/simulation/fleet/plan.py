"""Who does what in which round of a simulated fleet: a function of the scenario, the number of devices and the seed.

In every round the same *number* of devices contributes, so that the number that closes a round is known before it: all
except those that drop out of it, and except the malicious ones whose contributions an honest enclave refuses. Other
devices drop out in each round; the malicious ones stay the same. Nothing here depends on time, on the number of
processes or on the order in which anything happens.

What one host of a simulated fleet is given, and what it tells of its progress.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from device_runtime import SimulatedSensors
from odp.errors import ConfigurationError
from odp.research.simulation.fleet.scenario import Scenario

DAY = 24 * 3600.0


class Point(enum.StrEnum):
    """The step at which a device vanishes or dies."""

    COMPUTING = "computing"
    PREPARED = "prepared"
    ANSWERED = "answered"


@dataclass(frozen=True, slots=True)
class Act:
    """What one device does in one round; without any of the three it takes part as it should."""

    drop_out: Point | None = None
    crash: Point | None = None
    behaviour: str | None = None
    lost_answer: bool = False
    #: Seconds by which its clock jumps before the round.
    clock_jump: float = 0.0
    #: Seconds after the beginning of the round's simulated day.
    arrives: float = 0.0

    @property
    def counted(self) -> bool:
        """Whether an honest aggregator counts it in this round."""
        return self.drop_out is None and self.behaviour in (None, "replayed")


@dataclass(frozen=True, slots=True)
class Character:
    """What is the same for a device in all rounds."""

    latency: float
    bytes_per_second: float
    skew: float
    plugged_from: float
    plugged_hours: float
    used_from: float


class Plan:
    """The plan of ``devices`` devices over ``rounds`` rounds.

    Args:
      minimum: contributions that a round needs.
      behaviours: the lies of malicious devices; by default those of the scenario.

    Raises:
      ConfigurationError: a round would have no contribution, or fewer than the task's minimum.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        devices: int,
        rounds: int,
        seed: int,
        minimum: int = 1,
        behaviours: Sequence[str] | None = None,
    ) -> None:
        self.scenario, self.devices, self.rounds, self.seed = scenario, devices, rounds, seed
        self._behaviours = scenario.faults.behaviours if behaviours is None else tuple(behaviours)
        faults = scenario.faults
        self._drop_outs, self._crashes = round(devices * faults.drop_outs), round(devices * faults.crashes)
        self.malicious = self._malicious(round(devices * faults.malicious))
        replaying = sum(behaviour == "replayed" for behaviour in self.malicious.values())
        self.goal = devices - self._drop_outs - len(self.malicious) + replaying
        if self.goal < minimum:
            raise ConfigurationError(
                f"Expected at least minimum_cohort={minimum} of {devices} devices to contribute "
                f"to a round, but {self.goal} would; take more --devices, fewer faults or a smaller minimum_cohort"
            )
        self._acts = [self._round(number) for number in range(rounds)]
        self._characters: dict[int, Character] = {}

    def act(self, device: int, round: int) -> Act:
        """What ``device`` does in ``round``."""
        return self._acts[round][device]

    def character(self, device: int) -> Character:
        """What ``device`` is like."""
        if device not in self._characters:
            self._characters[device] = self._draw_character(device)
        return self._characters[device]

    def _draw_character(self, device: int) -> Character:
        draw = self.generator("character", device)
        network, clocks = self.scenario.network, self.scenario.clocks
        (slow, fast), (narrow, wide) = network.latency_ms, network.kilobits_per_second
        # Networks differ by factors rather than by differences.
        bandwidth = narrow * (wide / narrow) ** draw.random()
        return Character(
            latency=(slow + (fast - slow) * draw.random()) / 1000.0,
            bytes_per_second=bandwidth * 1000.0 / 8.0,
            skew=clocks.skew_seconds * draw.standard_normal(),
            plugged_from=draw.uniform(18.0, 24.0),
            plugged_hours=draw.uniform(5.0, 10.0),
            used_from=draw.uniform(7.0, 12.0),
        )

    def sensors(self, device: int, now: float) -> SimulatedSensors:
        """Readings at ``now``: plugged in for some hours of each night, and then full and idle; cool but while used."""
        character = self.character(device)
        hour = now % DAY / 3600.0
        plugged = (hour - character.plugged_from) % 24.0 < character.plugged_hours
        used = (hour - character.used_from) % 24.0 < 2.0 and not plugged
        away = (hour - character.plugged_from - character.plugged_hours) % 24.0
        charge = 1.0 if plugged else max(1.0 - 0.05 * away, 0.1)
        return SimulatedSensors(
            is_charging=plugged, is_idle=not used, charge=charge, is_unmetered=plugged, heat=42.0 if used else 30.0
        )

    def generator(self, purpose: str, *numbers: int) -> np.random.Generator:
        """Randomness for one purpose, the same in every process."""
        digest = hashlib.sha256(f"odp fleet {self.seed} {purpose} {numbers}".encode()).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))

    def random_bytes(self, device: int) -> RandomBytes:
        """The source of the identity of ``device``: who knows the seed knows its secret."""
        return RandomBytes(f"{self.seed} {device}")

    def _malicious(self, count: int) -> dict[int, str]:
        chosen = self.generator("malicious").permutation(self.devices)[:count].tolist()
        kinds = self._behaviours
        return {device: kinds[place % len(kinds)] for place, device in enumerate(chosen)}

    def _round(self, number: int) -> list[Act]:
        draw = self.generator("round", number)
        order = [device for device in draw.permutation(self.devices).tolist() if device not in self.malicious]
        gone = set(order[: self._drop_outs])
        dying = set(order[self._drop_outs : self._drop_outs + self._crashes])
        points, early = list(Point), [Point.COMPUTING, Point.PREPARED]
        chances = draw.random((self.devices, 5))
        network, clocks = self.scenario.network, self.scenario.clocks
        return [
            Act(
                drop_out=early[int(2 * place)] if device in gone else None,
                crash=points[int(3 * place)] if device in dying else None,
                behaviour=self.malicious.get(device),
                lost_answer=bool(lost < network.lost_answers) and device not in gone,
                clock_jump=float((2 * far - 1) * DAY) if jump < clocks.jumps else 0.0,
                arrives=float(arrival * DAY / 2),
            )
            for device, (place, lost, jump, far, arrival) in enumerate(chances.tolist())
        ]


class RandomBytes:
    """Bytes that repeat for the same name: AES-256 in counter mode. For simulated devices alone."""

    def __init__(self, name: str) -> None:
        key = hashlib.sha256(f"odp simulated device {name}".encode()).digest()
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def __call__(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        return self._stream.update(bytes(count))


TASK_FILE, PROGRESS_FILE = "task.json", "progress.json"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What one host needs to know; ``first`` .. ``first + count - 1`` are its devices of ``devices``.

    ``closed`` rounds are over since an earlier run; ``task`` is the task's id in hex.
    """

    scenario: str
    folder: str
    seed: int
    devices: int
    first: int
    count: int
    rounds: int
    closed: int
    behaviours: tuple[str, ...]
    bad_byte: int
    day: float
    task: str
    population: str
    server: str
    ca: str
    reference_values: str
    stores: str
    wait_seconds: float


def earlier(folder: Path, rounds: int) -> list[dict[str, float]]:
    """What earlier runs of this host took in each round."""
    nothing = {"seconds": 0.0, "processor_seconds": 0.0, "simulated_hours": 0.0}
    try:
        stored = json.loads((folder / PROGRESS_FILE).read_bytes())["rounds"]
        return [{name: float(stored[number][name]) for name in nothing} for number in range(rounds)]
    except (OSError, ValueError, TypeError, LookupError):
        return [dict(nothing) for _ in range(rounds)]
