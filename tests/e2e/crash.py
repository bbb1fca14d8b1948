"""Runs `odp` so that one of its processes ends at one exact step: ``python crash.py POINT [POINT ..] -- ARGUMENTS``.

A point is one of ``crashing.arming``, in the process that runs `odp`; or with ``enclave/`` or ``platform/`` before it,
in the enclave or the platform process that it starts. With ``--image`` as the first argument the enclave is the test
image whether it is armed or not: what one image sealed, no other image opens. With ``--noiseless`` the aggregator's is
the image that adds no noise, with ``--second`` one that does all that the real one does. With ``--clock=FILE`` the
program and its platform process have the clock of that file. With ``--unattacked`` the guards of its listeners look as
seldom as in processes of tests: else each takes a fiftieth of a processor, and a fifth while devices connect. With
``--last=OPTION`` that option follows all arguments.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent / "images"
IMAGE, NOISELESS, SECOND, CLOCK, LAST = "--image", "--noiseless", "--second", "--clock=", "--last="
UNATTACKED = "--unattacked"
ENCLAVE, PLATFORM = "enclave/", "platform/"
#: role -> (entry, packages) of the armed images.
ARMED = {
    "aggregator": ("crashing.aggregator", ("odp", "trusted_aggregator", "crashing")),
    "distributor": ("crashing.distributor", ("odp", "distributor", "crashing")),
}
ARMED["leaf"] = ARMED["aggregator"]  # a leaf is the code of its root
#: The aggregator's images, of a root and of its leaves, by the option that takes them.
AGGREGATORS = {
    NOISELESS: ("noiseless.aggregator", ("odp", "trusted_aggregator", "noiseless")),
    SECOND: ("second.aggregator", ("odp", "trusted_aggregator", "second")),
}
_PLATFORM_MAIN = "--platform-process"


def use_armed_images(points: list[str]) -> None:
    """Every enclave that this process starts is the armed one."""
    from crashing.arming import send_points

    from odp.trust.enclave import launcher
    from odp.trust.enclave.policy import EnclavePolicy

    launch = launcher.launch

    def armed(*, platform_folder: Path, entry: str, policy: bytes, images: None) -> Any:
        entry, packages = ARMED[EnclavePolicy.from_bytes(policy).role]
        launched = launch(platform_folder=platform_folder, entry=entry, policy=policy, packages=packages)
        send_points(launched.channel, points)
        return launched

    launcher.launch = armed


def use_image(image: tuple[str, tuple[str, ...]]) -> None:
    """The enclave that this process starts is that one."""
    from odp.trust.enclave import launcher

    launch = launcher.launch

    def launch_image(*, platform_folder: Path, entry: str, policy: bytes, images: None) -> Any:
        entry, packages = image
        return launch(platform_folder=platform_folder, entry=entry, policy=policy, packages=packages)

    launcher.launch = launch_image


def arm_platform(points: list[str]) -> None:
    """The platform process that this process starts is armed, or has a clock."""
    from odp.trust.enclave import launcher

    class Armed(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, command: list[str], **keywords: Any) -> None:
            at = command.index("odp.trust.enclave.platform_start")
            command = [*command[: at - 1], __file__, _PLATFORM_MAIN, *points, "--", *command[at + 1 :]]
            super().__init__(command, **keywords)

    class Module:
        Popen = Armed
        DEVNULL, TimeoutExpired = subprocess.DEVNULL, subprocess.TimeoutExpired

    launcher.subprocess = Module  # type: ignore[assignment]


def look_seldom() -> None:
    """The guards of this process's listeners look seldom: nobody attacks them."""
    from odp.transport import guard

    guard._SOON, guard._LATER = 20.0 * guard._SOON, 20.0 * guard._LATER


def main() -> None:
    sys.path.insert(0, str(IMAGES))
    sys.path.insert(0, str(Path(__file__).parent))
    from crashing.arming import arm

    end = sys.argv.index("--")
    given, rest = sys.argv[1:end], sys.argv[end + 1 :]
    clocks = [point for point in given if point.startswith(CLOCK)]
    last = [point.removeprefix(LAST) for point in given if point.startswith(LAST)]
    given = [point for point in given if not point.startswith((CLOCK, LAST))]
    for clock in clocks:
        import shifted_clock

        # Before anything of the program is loaded, which takes the clock as it finds it.
        shifted_clock.install(Path(clock.removeprefix(CLOCK)))
    if given[:1] == [_PLATFORM_MAIN]:
        from odp.trust.enclave import platform_process

        for point in given[1:]:
            arm(point)
        control, channel, image = map(int, rest[:3])
        platform_process.main(names=(), control=control, channel=channel, image=image)
        return
    inside = [point.removeprefix(ENCLAVE) for point in given if point.startswith(ENCLAVE)]
    below = [point.removeprefix(PLATFORM) for point in given if point.startswith(PLATFORM)]
    if inside or IMAGE in given:
        use_armed_images(inside)
    if UNATTACKED in given:
        look_seldom()
    for option in AGGREGATORS.keys() & set(given):
        use_image(AGGREGATORS[option])
    if below or clocks:
        arm_platform([*below, *clocks])
    for point in given:
        if not point.startswith((ENCLAVE, PLATFORM, IMAGE, UNATTACKED, *AGGREGATORS)):
            arm(point)
    sys.argv = ["odp", *rest, *last]
    from odp.cli.main import main as odp

    odp()


if __name__ == "__main__":
    main()
