"""The kinds of faults that a trial may meet: each strikes services and devices, at moments that ``draws`` picks."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e import shifted_clock
from faults.deployment import Deployment
from faults.device_host import DEVICES, DeviceHost

DAY = 86_400.0
_LEAPS = (400 * DAY, -400 * DAY, DAY, -DAY, 3600.0, -3600.0)
_SERVICES, _BOTH = "services", "both"
_pause = threading.Event().wait

#: (services, devices, whether the task is over, draws) -> what happened.
Kind = Callable[[Deployment, DeviceHost, Callable[[], bool], random.Random], str]


def _crash(deployment: Deployment, devices: DeviceHost, _: Callable[[], bool], draws: random.Random) -> str:
    """One to three programs are killed at random moments, or their enclave or platform process; or the database."""
    words = []
    for _round in range(draws.randint(1, 3)):
        _pause(draws.uniform(0.0, 1.5))
        name, inside = draws.choice([*deployment.names, DEVICES, *deployment.databases]), draws.choice((0, 0, 1, 2))
        if name == DEVICES:
            devices.kill()
            devices.start()
            inside = 0
        elif name in deployment.databases:
            deployment.crash_database()
            inside = 0
        else:
            deployment.kill(name, inside=inside)
            deployment.start(name)
        words.append(f"{name}{'+' * inside}")
    return " ".join(words)


def _power(deployment: Deployment, devices: DeviceHost, _: Callable[[], bool], draws: random.Random) -> str:
    """The machine of all services, that of all devices, or both lose their power at a random moment."""
    moment, whose = draws.uniform(0.0, 3.0), draws.choice((_SERVICES, DEVICES, _BOTH))
    _pause(moment)
    if whose != _SERVICES:
        devices.lose_power(draws)
    if whose != DEVICES:
        deployment.lose_power(draws)
    if whose != _SERVICES:
        devices.start()
    return f"{whose} after {moment:.1f} s"


def _clock(deployment: Deployment, devices: DeviceHost, _: Callable[[], bool], draws: random.Random) -> str:
    """The clock of services, devices or both leaps for some seconds; half the time, a program starts meanwhile."""
    seconds, lasts = draws.choice(_LEAPS), draws.uniform(1.0, 4.0)
    whose = draws.choice((_SERVICES, DEVICES, _BOTH))
    clocks = [deployment.clock] * (whose != DEVICES) + [devices.clock] * (whose != _SERVICES)
    _pause(draws.uniform(0.0, 1.0))
    names = [*deployment.names, DEVICES]
    restarted = draws.choice([*names, *[""] * len(names)])
    _kill(deployment, devices, restarted)
    _leap(clocks, seconds)
    _start(deployment, devices, restarted)
    _pause(lasts)
    _leap(clocks, -seconds)
    return f"{whose} {seconds / DAY:+.2g} days for {lasts:.0f} s {restarted}"


def _disk(deployment: Deployment, devices: DeviceHost, is_over: Callable[[], bool], draws: random.Random) -> str:
    """One program starts on a disk on which one write or one sync fails; a fault that is not met now is met later."""
    name, number = draws.choice([*deployment.names, DEVICES]), draws.randint(1, 60)
    code = draws.choice((errno.ENOSPC, errno.EIO))
    faults = draws.choice(({"FAULTS_FAIL_SYNC": str(number)}, {"FAULTS_FAIL_WRITE": f"{number}:{code}"}))
    _kill(deployment, devices, name)
    _start(deployment, devices, name, faults)
    until = time.monotonic() + draws.uniform(4.0, 8.0)
    while time.monotonic() < until and not is_over():
        if devices.has_ended() if name == DEVICES else deployment.has_ended(name):
            break
        _pause(0.1)
    return f"{name} {' '.join(f'{fault}={value}' for fault, value in faults.items())}"


def _upgrade(deployment: Deployment, devices: DeviceHost, _: Callable[[], bool], draws: random.Random) -> str:
    """The aggregator is handed over to the enclave of other code, and mostly something is killed meanwhile.

    Half the time, the devices die with the round open, and come back to the new enclave.
    """
    moment, away = draws.uniform(0.0, 1.0), draws.random() < 0.5
    _pause(moment)
    if away:
        devices.kill()
    happened = deployment.upgrade(draws)
    if away:
        devices.start()
    return f"{happened}{', devices away' * away}"


def _kill(deployment: Deployment, devices: DeviceHost, name: str) -> None:
    if name == DEVICES:
        devices.kill()
    elif name:
        deployment.kill(name)


def _start(deployment: Deployment, devices: DeviceHost, name: str, faults: dict[str, str] | None = None) -> None:
    if name == DEVICES:
        devices.start(**(faults or {}))
    elif name:
        deployment.start(name, **(faults or {}))


def _leap(clocks: Sequence[Path], seconds: float) -> None:
    for clock in clocks:
        shifted_clock.advance(clock, seconds)


KINDS: dict[str, Kind] = {"crash": _crash, "power": _power, "clock": _clock, "disk": _disk, "upgrade": _upgrade}
