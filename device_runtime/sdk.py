"""One device inside an app: a music player, a home hub, a browser's companion.

Example::

    import odp

    with odp.Device("player-data", service="music.py") as device:
        device.record("play", {"track": 12, "seconds": 180})
        mix = device.ask("player", {"count": 10})
        print(device.show(mix))                   # an address for the person's own browser

The app gives and asks; no method here tells it what the service found, nor whether a handler that sees private data
failed. That is shown to the person, in a page that can send nothing (``device_runtime.view``), or told with noise out
of a budget (``best_value``). The app's own code runs in the process that opens the store, so this is a contract that
keeps an honest app from holding private data; behind walls is the service's code (docs/device-in-an-app.md, "What
remains").
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from device_runtime.environment import EXAMPLE, THIS_MACHINE, DeviceFolder, Environment, Isolation, OwnService
from device_runtime.host.learned import Learned, contributions_of, outcome_of, wait_for
from device_runtime.host.newest import newest_of
from device_runtime.host.program import Config, Running, start
from device_runtime.inference.best_value import best_value
from device_runtime.inference.offline import Available, indexed_model, recommend_indexed
from device_runtime.inference.predict import MOST_EXAMPLES, Predictor, ranked_in_words, shown as shown_predictions
from device_runtime.inference.recommend import Recommendation, recommend
from device_runtime.inference.shown_results import NoResults, Notes, Shown
from device_runtime.isolated import ServiceCode
from device_runtime.person.conditions import Conditions, Reading
from device_runtime.person.limits import Limits
from device_runtime.store.database import Bounds, require_space
from device_runtime.store.keyed_ratings import own_catalogue, rate, require_item
from device_runtime.store.retention import Retention
from device_runtime.store.side import say
from device_runtime.store.store import Store, store_path
from device_runtime.view import View, start_view
from device_runtime.view.overview import explain, overview_for_app
from device_runtime.view.privacy_page import DeviceControls
from device_runtime.view.sanitizer import require_sanitizer
from device_runtime.view.shown_items import ShownItems, titles_of, write_lines
from odp import _validate
from odp._system.closing import Closing
from odp.algorithms.predicting import Predictions, RankedItems
from odp.errors import ConfigurationError, DataError, OdpError
from odp.identity import normal
from odp.isolated import Declined
from odp.models.side_prior import SidePrior
from odp.privacy.mechanisms.randomized_response import MOST_CHOICES
from odp.protocol.catalogues.catalogue import Catalogue
from odp.services.folder import NAME, ServicesFolder
from odp.serving.ranking import IndexedModel
from odp.transport.logs import Log

__all__ = ["EXAMPLE", "RECOMMENDED", "Device", "Environment", "Isolation", "Learned", "Limits", "Shown"]

#: Local data of a service that the runtime sets: the best items of a personal model, as JSON [[item, score], ..], or
#: with ranges [[item, score, low, high], ..].
RECOMMENDED = "odp.recommended"
#: What a rating takes in a store, at most.
_RATING_BYTES = 64


class Device(Closing):
    """The device of the person at this machine, and at most one service on it. A context manager.

    Only what trains, fetches a model or predicts makes network calls.

    Args:
      state: folder of the device's store, keys and records.
      service: the developer's on-device code, a module file or a package folder; None for an app without any.
      limits: while the person sets none of their own; by default those that the folder was last used with.
      conditions: when the device may train; by default as for limits.
      retention: how long rows are kept; by default as for limits. What is past it goes when the device is opened, and
        every hour while it trains.
      say: a callback for lines that an app may see, about restrictions that are not enforced; failures of private
        handlers are on the person's page alone.
      environment: which store it is, how it is opened, how code is held, and what the machine says of itself.

    Raises:
      ConfigurationError: the service is no such file, or a value is out of range.
      StateError: the store cannot be used, or was made with another key.
    """

    def __init__(
        self,
        state: Path | str,
        *,
        service: Path | str | None = None,
        limits: Limits | None = None,
        conditions: Conditions | None = None,
        retention: Retention | None = None,
        say: Callable[[str], None] = lambda line: None,
        environment: Environment = THIS_MACHINE,
    ) -> None:
        self.state, self._environment = Path(state), environment
        self._index, self._clock = environment.index, environment.clock
        code = None if service is None else ServiceCode.load(Path(service))
        self.service = environment.name or (code.module if code is not None else "app")
        _validate.identifier(name=self.service)
        folder = DeviceFolder.prepared(self.state, environment, limits, conditions, retention)
        self._key, self._gate, self._housekeeping = folder.key, folder.gate, folder.housekeeping
        self._notes = Notes()
        self._service = None if code is None else OwnService(
            code, environment.isolation, name=self.service, path=folder.path, open_store=self._open_at,
            notes=self._notes, say=say, clock=self._clock,
        )  # fmt: skip
        self._view: View | None = None
        self._running: list[Running] = []
        self._shown: ShownItems | None = None
        self._predictors: dict[tuple[str, str], Predictor] = {}
        self._catalogue: Catalogue | None = None

    # What the app gives

    def record(self, type: str, data: Mapping[str, Any], *, time: float | None = None) -> None:
        """Notes that something happened, as an event of the service; a task's data specification may ask for it.

        Raises:
          ConfigurationError: the type or a column's name is no name.
          DataError: the event is too large, or the store has no room for it.
        """
        with self._open() as store:
            store.data(self.service).add_event(type, data, time=self._clock() if time is None else time)

    def rate(self, item: int | str, value: float) -> None:
        """Sets the person's rating of an item, in the table ``ratings``, which ``odp.RatingsData()`` of a task reads.

        An item is a key of the population's catalogue, or a number where tasks name no catalogue. Numbers of numpy are
        numbers, and a key counts in normal form C, in which catalogues have theirs.

        Raises:
          ConfigurationError: the item is not in the catalogue, no number from 0 and no key, or the value is not finite.
          DataError: the store has no room.
        """
        item = normal(item) if isinstance(item, str) else _plain(item)
        value = _plain(value)
        _validate.within(low=-1e300, high=1e300, value=value)
        if self._catalogue is not None:
            require_item(self._catalogue, item)
        with self._open() as store:
            require_space(store, _RATING_BYTES, Bounds(), whose="ratings")
            rate(store, item, value)

    def use_catalogue(self, catalogue: Catalogue | Path | str) -> None:
        """Has ``rate`` take items of this catalogue, or of this file of one, and no others. Raises DataError."""
        self._catalogue = own_catalogue(catalogue)

    def about(self, said: Mapping[str, str | None]) -> None:
        """Keeps what the person says of themselves, ``{"age_group": "25-34"}``; None forgets one. It is never sent.

        Raises as ``device_runtime.store.side.say``.
        """
        with self._open() as store:
            say(store, said, time=self._clock())

    def add_examples(self, columns: Mapping[str, npt.ArrayLike], *, time: float | None = None) -> int:
        """Keeps labelled examples of the service; ``odp.Examples(table="examples.SERVICE")`` of a task asks for them.

        Args:
          columns: numbers [n, ..] or text [n] by name, features and labels: ``{"image": images, "digit": digits}``.
          time: when they were made, seconds since the epoch; by default now.

        Returns the number of examples, n.

        Raises:
          ConfigurationError: a column's name is no name.
          DataError: columns are neither numbers nor text or differ in length, an example is too large, or the store
            has no room.
        """
        with self._open() as store:
            return store.data(self.service).examples.add(columns, time=self._clock() if time is None else time)

    def tell(self, type: str, data: Mapping[str, Any]) -> None:
        """Passes an event to ``on_event``, which returns the rows to keep.

        The handler sees private data, so neither what it keeps nor that it fails is told; how long it takes is.

        Raises:
          DataError: ``data`` are too large, or not what JSON can hold.
        """
        isolated = self._isolated()
        with self._open() as store, self._notes.failures():
            isolated.private.event(store.data(self.service), type, data, now=self._clock())

    def update(self, version: str, entries: Mapping[str, bytes]) -> int:
        """Gives the service a new version of its downloaded data; how many rows ``on_download`` keeps.

        Raises HandlerFailed, and DataError as ``AppData.download``.
        """
        isolated = self._isolated()
        with isolated.undisturbed(), self._open() as store:
            return isolated.public.download(store.data(self.service), version, entries, now=self._clock())

    def use_model(
        self,
        population: str = "default",
        *,
        services: Path | str = NAME,
        count: int = 100,
        level: float | None = None,
        explore: bool = False,
        side: Path | None = None,
        allow_private_addresses: bool = False,
    ) -> str | None:
        """Gives the service the best items of the newest model: the local value ``odp.recommended``, as JSON.

        The model is fetched whole, so nobody learns what the device reads of it, and the items are scored here. While
        nobody answers it is the last complete one. With ``level`` or ``explore``, as of ``device_runtime.recommend``,
        each item has its range too; ``side`` is of ``odp.items.side_prior``. Returns why it may be outdated, or None.

        Raises as ``learn``; ServiceError also where the population has no model yet.
        """
        prior = None if side is None else SidePrior.load(side)
        ways: dict[str, Any] = {"k": count, "level": level, "explore": explore, "side": prior}
        return self._best(population, services, allow_private_addresses, **ways)[0].offline

    def recommend(
        self,
        population: str = "default",
        *,
        services: Path | str = NAME,
        count: int = 10,
        titles: Path | str | None = None,
        why: bool = False,
        allow_private_addresses: bool = False,
    ) -> None:
        """Prints the person's best items to their terminal, and puts them on their page (``show``), as ``use_model``.

        With ``why`` each has the person's own three items that move its prediction most, and by how much.
        Items have their titles in the file ``titles``, found by key, else their keys. The app gets no value. Raises as
        ``use_model``; DataError also where the file of titles cannot be read, or is of other items.
        """
        model, best = self._best(population, services, allow_private_addresses, k=count, why=why)
        named = titles_of(titles, model.downloaded.model.definition, model.downloaded.catalogue)
        self._shown = best.shown(named, offline=model.offline)
        write_lines(self._shown.lines())

    def _best(
        self, population: str, services: Path | str, allow_private_addresses: bool, **ways: Any
    ) -> tuple[Available, Recommendation]:
        """The newest model, and its best items by ``device_runtime.recommend``, which the service gets."""
        model = self._newest(population, services, allow_private_addresses)
        with self._open() as store:
            best = recommend(store, model.downloaded, clock=self._clock, **ways)
            self._keep(store, best)
        return model, best

    def use_index(
        self,
        index: Path | str | IndexedModel,
        *,
        count: int = 100,
        candidates: Sequence[int] | None = None,
        population: str | None = None,
        sha256: str | None = None,
    ) -> None:
        """Gives the service the best items of an index file, as ``use_model`` does, without any network call.

        ``index`` is a file of ``odp task export TASK items.index``, for catalogues of up to millions of items; or
        ``device_runtime.indexed_model`` of it, which checks the file once for several calls. ``candidates`` are numbers
        of the items to choose from; ``population`` and ``sha256`` (of ``odp.items.ItemIndex``) refuse other files.

        Raises DataError for a damaged or another file, ConfigurationError for ``count``, StateError as ``rate``.
        """
        _validate.integer(low=1, high=2**31, count=count)
        model = indexed_model(index, population=population, sha256=sha256)
        with self._open() as store:
            best = recommend_indexed(store, model, k=count, candidates=candidates, clock=self._clock)
            self._keep(store, best)

    def _keep(self, store: Store, best: Recommendation) -> None:
        """Gives the service its recommendations."""
        # A service that filled its local data would tell the app so.
        with self._notes.failures(DataError):
            store.data(self.service).set(RECOMMENDED, json.dumps(best.rows()).encode(), time=self._clock())

    # What the app asks

    def predict(
        self,
        examples: Mapping[str, npt.ArrayLike],
        population: str = "default",
        *,
        services: Path | str = NAME,
        refresh: bool = False,
        allow_private_addresses: bool = False,
    ) -> Predictions:
        """What a population's newest model says of examples that the app has: columns [n, ..] by the features' names.

        Nothing that the device holds is read, so the app gets the result. The model is fetched whole at the first call
        and used for later ones, until one with ``refresh``. While nobody answers it is the last complete one, and
        ``Predictions.offline`` says so. A network runs in a process without network and files.

        Raises:
          ConfigurationError: the model predicts no numbers or classes of examples, has layers that stay on devices
            (``show_predictions`` has those), or is a network and this device runs none.
          DataError: a feature is missing, or an example cannot be used.
          HandlerFailed: the network failed.
          ServiceError: as ``use_model``.
        """
        return self._predictor(population, services, refresh, allow_private_addresses).predict(examples)

    def rank(
        self,
        examples: Mapping[str, npt.ArrayLike],
        population: str = "default",
        *,
        count: int = 10,
        services: Path | str = NAME,
        refresh: bool = False,
        allow_private_addresses: bool = False,
    ) -> RankedItems:
        """The ``count`` best items for examples that the app has, by a model that ranks items (``odp.TwoTower``).

        ``examples`` have all features but the item's, and are few. Raises as ``predict``.
        """
        _validate.integer(low=1, high=2**31, count=count)
        return self._predictor(population, services, refresh, allow_private_addresses).rank(examples, count=count)

    def show_predictions(
        self,
        examples: Mapping[str, npt.ArrayLike] | None = None,
        population: str = "default",
        *,
        count: int = 10,
        services: Path | str = NAME,
        refresh: bool = False,
        allow_private_addresses: bool = False,
    ) -> None:
        """Prints predictions to the person's terminal, and puts them on their page (``show``); the app gets no value.

        Of ``examples``, or of the newest ``count`` that the device itself has; of a model that ranks items, the best
        ``count`` but the person's own ones, as their newest example describes them. Layers that stay on devices are
        found of the person's own examples. What fails there is told on the page alone. Raises as ``predict`` for what
        is public.
        """
        _validate.integer(low=1, high=MOST_EXAMPLES, count=count)
        predictor = self._predictor(population, services, refresh, allow_private_addresses)
        rows = None if examples is None else predictor.rows(examples)
        with self._open() as store, self._notes.failures(OdpError):
            if rows is None and predictor.ranked_feature is not None:
                self._shown = ranked_in_words(predictor.rank_for_person(store, count=count))
            else:
                self._shown = shown_predictions(predictor.of_person(store, rows, count=count))
            write_lines(self._shown.lines())

    def _predictor(
        self, population: str, services: Path | str, refresh: bool, allow_private_addresses: bool
    ) -> Predictor:
        key = population, str(services)
        if refresh and (before := self._predictors.pop(key, None)) is not None:
            before.close()
        if key not in self._predictors:
            self._predictors[key] = Predictor(
                self._newest(population, services, allow_private_addresses, of_examples=True), clock=self._clock
            )
        return self._predictors[key]

    def _newest(
        self, population: str, services: Path | str, allow_private_addresses: bool, *, of_examples: bool = False
    ) -> Available:
        return newest_of(
            ServicesFolder(Path(services)), population, state=self.state, clock=self._clock,
            allow_private_addresses=allow_private_addresses, of_examples=of_examples,
        )  # fmt: skip

    def ask(self, app: str, asked: Mapping[str, Any] | None = None) -> Shown | Declined:
        """Asks the service for something on behalf of ``app``.

        Returns a number of the result, before there is one, or why the service declined, which it decided without
        seeing anything private, in a process that waits for no other handler. Neither how long ``on_execute`` takes nor
        that it fails reaches the app; the page says.

        Raises:
          HandlerFailed: ``on_request`` failed; nothing was kept of it.
          DataError: the request is too large.
        """
        isolated = self._isolated()
        _validate.identifier(app=app)
        with isolated.undisturbed(), self._open() as store:
            data = store.data(self.service)
            accepted = isolated.public.request(data, app, dict(asked or {}), now=self._clock())
        return accepted if isinstance(accepted, Declined) else Shown(isolated.results.begin(accepted))

    def best_value(self, shown: Shown, *, app: str, choices: int, epsilon: float, column: str = "best") -> int:
        """Tells ``app``, which asked, the best of ``choices``, with noise; charged to the person's ledger first.

        ``column`` of the result is the true choice, from 0 to ``choices`` - 1; 0 where there is none or the service
        failed, which the noise hides as it hides every choice. It is waited for: how long that takes is not hidden.

        Raises as ``device_runtime.person.ledger.best_value``.
        """
        _validate.integer(low=2, high=MOST_CHOICES, choices=choices)
        truth = self._isolated().results.choice(shown.id, column, choices, app=app)
        with self._open() as store:
            return best_value(store, self._gate, truth, service=self.service, app=app, choices=choices, epsilon=epsilon)

    # What the person sees

    def show(self, shown: Shown | None = None, *, port: int = 0) -> str:
        """The address of a result, or of the person's own page, in a local view that starts on first use.

        Everybody with the address sees the page: open it in the person's browser, and keep it secret.

        Raises ConfigurationError where a result cannot be shown: nh3, of the extra ``device``, is missing.
        """
        if shown is not None:
            require_sanitizer()
        if self._view is None:
            results = NoResults() if self._service is None else self._service.results
            self._view = start_view(
                controls=DeviceControls(
                    store_path(self.state, self._index), self._gate, open_store=self._open_at,
                    name=f"device {self._index}" if self._service is None else self.service,
                    notes=self._notes.lines, clock=self._clock, recommended=lambda: self._shown,
                ),
                results=results,
                record=results,
                port=port,
                clock=self._clock,
            )  # fmt: skip
        return self._view.url if shown is None else f"{self._view.url}results/{shown.id}"

    def privacy(self) -> dict[str, Any]:
        """Data that were read, sent and charged, as ``odp device privacy --json`` prints it, without counts of rows."""
        with self._open() as store:
            return overview_for_app(store, self._gate, now=self._clock())

    def explain(self) -> tuple[Reading, ...]:
        """Whether the device would train now, with every reason that could stop it."""
        with self._open() as store:
            return explain(store, self._gate)

    # Training

    def examples(self, *, population: str, task: str) -> None:
        """Has ``on_training_examples`` make the examples that tasks may ask for, in place of earlier ones.

        They are events of type ``example``. ``train`` does so before each contribution; call it to try the handler. It
        sees private data, so how many it makes, and that it fails (earlier examples stay then), is not told.
        """
        isolated = self._isolated()
        with self._open() as store, self._notes.failures():
            isolated.keep_examples(store, population=population, task=task)

    def train(
        self,
        population: str,
        *,
        server: str,
        ca: Path,
        reference_values: Path,
        until_finished: bool = False,
        allow_private_addresses: bool = False,
        roster: Path | None = None,
    ) -> Running:
        """Starts the scheduler: the device checks in when its conditions hold, and takes part within its limits.

        Before a contribution to a task that asks for events of type ``example`` of the service,
        ``on_training_examples`` makes them anew. It gets a fixed time (two seconds more than ``CallLimits.seconds``),
        after which the device goes on whatever it did; where it fails, earlier examples stay.

        Args:
          population: what it checks in for.
          server: ``host:port`` of the developer's server.
          ca: PEM file of the authority of the services' certificates.
          reference_values: JSON file of the enclaves that the device accepts, and of their addresses.
          until_finished: end when the population's task has no round left.
          allow_private_addresses: names of services may lead to addresses that are not public.
          roster: file of the devices that may take part, where tasks or their issuer of tokens name one.

        Returns what stops it. Raises as ``device_runtime.start``.
        """
        return self._start(
            server, ca, reference_values, population=population, until_finished=until_finished,
            allow_private_addresses=allow_private_addresses, roster=roster,
        )  # fmt: skip

    def learn(
        self,
        population: str = "default",
        *,
        services: Path | str = NAME,
        turns: int = 1,
        wait: float = 0.0,
        progress: Callable[[str], None] | None = None,
        allow_private_addresses: bool = False,
        roster: Path | None = None,
    ) -> Learned:
        """Takes part now, if a round is open and the person's conditions and limits allow it.

        The services are those of a local `odp up`, and the device trusts what `odp device run --services` trusts: the
        authority and the enclaves of that folder. The outcome, and how long it takes, follow from public facts and the
        person's decisions; what this process and its children use meanwhile follows from the data, too.

        Args:
          population: what it checks in for: the task's, which by default is the task's name.
          services: state folder of `odp up`, relative to the working folder.
          turns: contributions to make, at most one per round.
          wait: seconds after which the device begins with nothing more; 0 is one look at what the server offers.
          progress: gets a line for each contribution, and for each reason to wait.
          allow_private_addresses, roster: as for ``train``.

        Raises:
          ConfigurationError: ``services`` is no such folder, or a value is out of range.
          ServiceUnavailable, ServiceError, AttestationError, TransparencyError: a service cannot be used.
          StateError: the store cannot be used, or ``train`` runs.
        """
        _validate.integer(low=1, high=2**31, turns=turns)
        _validate.within(low=0.0, high=1e9, wait=wait)
        folder, contributions = ServicesFolder(Path(services)), functools.partial(contributions_of, self._open)
        before = contributions()
        running = self._start(
            folder.server_address(), folder.ca, folder.reference_values, population=population,
            most_contributions=turns, end_after=wait, log=Log("devices", stream=io.StringIO()),
            allow_private_addresses=allow_private_addresses, roster=roster,
        )  # fmt: skip
        try:
            wait_for(running, progress, contributions)
        finally:
            self._running.remove(running)
            running.stop()
        made = tuple(each for key, each in contributions().items() if key not in before)
        return outcome_of(population, made, running, wanted=turns)

    def _start(
        self, server: str, ca: Path, reference_values: Path, *, log: Log | None = None, **settings: Any
    ) -> Running:
        config = Config(
            state=self.state, server=server, ca=ca, reference_values=reference_values, count=1, first=self._index,
            threads=1, key_file=self._environment.key_file, keyring=self._environment.keyring,
            limits=self._gate.limits, conditions=self._gate.conditions, retention=self._housekeeping.retention,
            **settings,
        )  # fmt: skip
        self._housekeeping.step_in_fixed_time()
        made = None if self._service is None else self._service.made_examples()
        running = start(
            config, log=log, clock=self._clock, sensors=self._environment.sensors, made_examples=made,
            housekeeping=self._housekeeping,
        )  # fmt: skip
        self._running.append(running)
        return running

    def close(self) -> None:
        """Ends training, the view and the service's processes. Idempotent."""
        for running in self._running:
            # What went wrong there is told by its own ``wait``, ``join`` and ``stop``.
            with contextlib.suppress(OdpError):
                running.stop()
        self._running.clear()
        for predictor in self._predictors.values():
            predictor.close()
        self._predictors.clear()
        if self._view is not None:
            self._view.stop()
            self._view = None
        if self._service is not None:
            self._service.close()

    def __repr__(self) -> str:
        """What the app knows itself; nothing that was recorded."""
        number = f", number {self._index}" if self._index else ""
        return f"<device of {self.service!r} in {str(self.state)!r}{number}>"

    def _open(self) -> Store:
        return self._open_at(store_path(self.state, self._index))

    def _open_at(self, path: Path) -> Store:
        return Store.open(path, key=self._key)

    def _isolated(self) -> OwnService:
        if self._service is None:
            raise ConfigurationError("Expected a device with service=FILE: this one has no on-device code")
        return self._service


def _plain(number: Any) -> Any:
    """A number of numpy as Python's own, and anything else as it is."""
    return number.item() if isinstance(number, np.integer | np.floating) else number
