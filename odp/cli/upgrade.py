"""`odp enclave upgrade`: the aggregator's populations go to the version of the code that this command belongs to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odp.cli.console import console, print_json, print_text
from odp.cli.enclave_image import Images
from odp.errors import ConfigurationError, ServiceError

if TYPE_CHECKING:
    from odp.trust.enclave.policy import EnclavePolicy
    from odp.trust.log.sources import LogServer
    from odp.v1 import hand_over_pb2

_LOG_SECONDS = 180.0
_LOOK_SECONDS = 2.0


def upgrade(
    services: Annotated[
        Path, typer.Option(help="State folder of a running `odp up`, with the defaults of all other options.")
    ] = Path("odp-state"),
    state: Annotated[
        Path | None,
        typer.Option(help="Empty state folder for the new version \\[default: <services>/aggregator.next]."),
    ] = None,
    platform: Annotated[Path | None, typer.Option(help="Folder of the emulated hardware of the old version.")] = None,
    aggregator: Annotated[str | None, typer.Option(help="host:port of the running aggregator.")] = None,
    aggregator_control: Annotated[str | None, typer.Option(help="host:port of its control listener.")] = None,
    server: Annotated[str | None, typer.Option(help="host:port of the server whose log has the endorsements.")] = None,
    endorsements: Annotated[
        Path | None, typer.Option(help="File of `odp enclave endorse`, which the server logs.")
    ] = None,
    endorser_key: Annotated[
        Path | None,
        typer.Option(help="Private key that endorses this version \\[default: <services>/endorser.key, if it exists]."),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM certificate of a server, for the control listener.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="PEM private key of --certificate.")] = None,
    ca: Annotated[Path | None, typer.Option(help="PEM certificate of the CA of all services.")] = None,
    images: Images = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for rounds that have to close first.")] = 3600.0,
    void_rounds: Annotated[
        bool,
        typer.Option(
            "--void-rounds",
            help="After --wait, end the rounds that are open: their devices contribute again, and pay once.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Hand the aggregator's populations, with their ledgers, to this version of the code.

    Run it from the new version's environment while the old version runs. The old enclave gives its ledger only
    to code that endorsers have endorsed in the log, and charges nothing afterwards. The command can be repeated.

    Streams go along. Rounds that hold contributions are waited for, in a tree those at its leaves, too.
    """
    from odp.operations.local.log_setup import endorse_image
    from odp.operations.local.successor import NEXT
    from odp.transport.channel import connect
    from odp.transport.logs import Log
    from odp.transport.tls import load_identity
    from odp.trust.enclave.host import launching
    from odp.trust.enclave.measurement import AGGREGATOR_ENTRY, measure
    from odp.trust.log.key_file import endorser_key as read_endorser
    from odp.trust.log.sources import LogServer
    from trusted_aggregator.host.upgrading import PredecessorClient, upgrade as take_over

    if images is not None and state is None:
        raise ConfigurationError("Expected --images with --state: `odp up` runs the images of its own installation")
    old = services / "aggregator"
    target = services / f"aggregator{NEXT}" if state is None else state
    identity = load_identity(
        certificate=services / "server" / "tls.pem" if certificate is None else certificate,
        key=services / "server" / "tls.key" if key is None else key,
        ca=services / "ca" / "ca.pem" if ca is None else ca,
    )
    address = _address(aggregator, old / "address", "--aggregator")
    control_address = _address(aggregator_control, old / "control-address", "--aggregator-control")
    log_address = _address(server, services / "server" / "address", "--server")
    listed = services / "endorsements.json" if endorsements is None else endorsements
    endorser = services / "endorser.key" if endorser_key is None else endorser_key
    with contextlib.ExitStack() as stack:
        public = stack.enter_context(connect(address, identity.ca_pem))
        control = stack.enter_context(connect(control_address, identity.ca_pem, identity=identity))
        source = LogServer(stack.enter_context(connect(log_address, identity.ca_pem)), log_address)

        measured = measure(AGGREGATOR_ENTRY, images=images).digest

        def excerpt(image: str, predecessor: str, policy: EnclavePolicy) -> hand_over_pb2.LogExcerpt:
            if endorser.is_file():
                endorse_image(listed, policy, image, read_endorser(endorser), now=time.time())
            return logged(source, listed, image, predecessor, policy)

        if not json:
            print_text(f"this version: {measured}")
        statement = take_over(
            target,
            services / "platform" if platform is None else platform,
            PredecessorClient(public, control, address=address, control_address=control_address),
            excerpt,
            image=measured,
            log=Log("upgrade"),
            waiting=lambda rounds: console().print(
                f"waiting for {rounds.rounds} rounds with {rounds.contributions} contributions to be closed"
            ),
            seconds=wait,
            void_rounds=void_rounds,
            launch=launching(images),
        )
    names = [population.population for population in statement.populations]
    if json:
        print_json({"state": str(target), "from": statement.predecessor_image, "to": measured, "populations": names})
        return
    print_text(f"taken over: {', '.join(names)}")
    if state is None:
        print_text(f"Stop the old version. `odp up --state {services}` of this version goes on where it was.")
    else:
        shipped = "" if images is None else f" --images {images}"
        print_text(f"Stop the old version, then run this one with `odp aggregator run --state {target}{shipped}`.")


def logged(
    source: LogServer,
    listed: Path,
    image: str,
    predecessor: str,
    policy: EnclavePolicy,
    *,
    seconds: float = _LOG_SECONDS,
    pause: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> hand_over_pb2.LogExcerpt:
    """The newest tree of the log, once it holds an endorsement of ``image``.

    With it come the newest endorsements of that image and of ``predecessor``, under the policy, of those that the file
    ``listed`` has. Raises ServiceError where the log does not hold one within ``seconds``; ConfigurationError where the
    file holds none.
    """
    from odp.crypto.note import Note
    from odp.trust.log.checkpoint import Checkpoint
    from odp.trust.log.endorsements import EndorsementFile, open_endorsement
    from odp.trust.log.excerpt import MOST_ENDORSEMENTS
    from odp.v1 import hand_over_pb2

    until = clock() + seconds
    while True:
        stated = [(entry, open_endorsement(entry)) for entry in EndorsementFile.load(listed).endorsements]
        ours = {
            entry.leaf: endorsement.image_digest
            for entry, endorsement in stated
            if endorsement.policy_sha256 == policy.sha256.hex() and endorsement.image_digest in (predecessor, image)
        }
        if image not in ours.values():
            raise ConfigurationError(
                f"{listed} endorses this version under the aggregator's policy nowhere: have an endorser add it "
                "(`odp enclave endorse`, or --endorser-key)"
            )
        note = source.note()
        leaves = source.leaves(Checkpoint.from_body(Note.parse(note).body).size)
        logged_leaves = frozenset(leaves)
        held = [entry for entry, _ in stated if entry.leaf in ours and entry.leaf in logged_leaves]
        if any(ours[entry.leaf] == image for entry in held):
            newest = [entry.encode() for entry in held[-MOST_ENDORSEMENTS:]]
            return hand_over_pb2.LogExcerpt(checkpoint=note, leaves=b"".join(leaves), endorsements=newest)
        if clock() >= until:
            raise ServiceError(
                f"the log does not hold the endorsement of this version after {seconds:.0f} s: does the server read "
                f"{listed} (`odp server run --endorsements`)?"
            )
        pause(_LOOK_SECONDS)


def _address(address: str | None, file: Path, option: str) -> str:
    if address is not None:
        return address
    try:
        return file.read_text().strip()
    except OSError:
        raise ConfigurationError(f"cannot read {file}: does the old version run? Or give {option}") from None
