"""Simulations on a real Ray cluster of three nodes, one of which is killed: equal to this machine's to the bit."""

from __future__ import annotations

import functools
import importlib.util
import os
import threading

import numpy as np
import pytest

import odp
from odp.datasets.examples import ExamplesSplit, UsersExamples
from odp.errors import ConfigurationError, StateError
from odp.research.simulation.engines.ray_cluster import RayEngine, edges_of, parts_of, selected_of
from odp.research.simulation.engines.seam import using

pytestmark = [pytest.mark.slow, pytest.mark.processes]

# All nodes on loopback, and nothing told to anybody; read when Ray is imported.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
#: A node that does not answer is dead after 5 seconds, and one that is only slow after 25.
NOTICED_SOON = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 5,
}  # fmt: skip
# Ray itself is imported where a cluster starts: it takes a second, of every worker that collects this file.
if importlib.util.find_spec("ray") is None:
    pytest.skip("ray is not installed: pip install 'odp-platform[ray]'", allow_module_level=True)


@pytest.fixture(scope="module")
def cluster():
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": NOTICED_SOON},
    )
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def ratings():
    return odp.data.synthetic_movielens(n_users=160, n_items=60, ratings_per_user=15, seed=3)


def task(**changes):
    given = {
        "name": "films",
        "model": odp.MatrixFactorization(items=60, rank=4),
        "data": odp.RatingsData(low=1, high=5),
        "privacy": odp.UserLevelDP(epsilon=8, delta=1e-6, max_items_per_user=10),
        "training": odp.DPAM(steps=1),
        "cohort": odp.Cohort(minimum=50),
    }
    return odp.Task(**{**given, **changes})


def people(users=60, each=8, seed=4):
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((users * each, 5)).astype(np.float32)
    targets = (features.sum(axis=1) > 0).astype(np.float32)
    train = UsersExamples(features, targets, np.arange(users * each), np.arange(0, users * each + 1, each))
    test = UsersExamples(features[:50], targets[:50], np.arange(50), np.array([0, 50]))
    return ExamplesSplit(train, test, name="people")


def _tell(done, number, users, rounds):
    done[number] = users


def require_equal(ours, theirs):
    assert ours.metrics == theirs.metrics
    assert ours.epsilon == theirs.epsilon
    for mine, other in zip(ours.model.tables, theirs.model.tables, strict=True):
        np.testing.assert_array_equal(mine.rows, other.rows)


@pytest.mark.proof  # the next test compares 6 parts
@pytest.mark.parametrize("parts", [1, 7])
def test_any_number_of_parts_gives_the_same_model_and_tells_what_workers_use(cluster, ratings, parts):
    alone = odp.simulate(task(), ratings)
    workers, done = [], {}
    with RayEngine(cluster.address, parts=parts, on_worker=workers.append) as engine:
        told = functools.partial(_tell, done)
        require_equal(odp.simulate(task(), ratings, engine=engine, on_users=told), alone)
    assert len(workers) == parts * len(alone.rounds)
    assert all(worker.memory > 10 for worker in workers)
    assert done == dict.fromkeys(range(len(alone.rounds)), ratings.n_users)


def test_a_node_that_is_killed_in_the_middle_changes_nothing(cluster, ratings):
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    alone = odp.simulate(task(training=odp.DPAM(steps=1)), ratings)
    killed = threading.Event()

    def kill(worker):
        if not killed.is_set():
            killed.set()
            cluster.remove_node(nodes[0], allow_graceful=False)

    with RayEngine(cluster.address, parts=6, on_worker=kill) as engine:
        distributed = odp.simulate(task(training=odp.DPAM(steps=1)), ratings, engine=engine)
    assert killed.is_set()
    require_equal(distributed, alone)
    cluster.remove_node(nodes[1])


@pytest.mark.proof  # three minutes on two cores, most of them of starting; parts and trials are compared in CI
@pytest.mark.usefixtures("coarse_composition")
def test_sampled_rounds_and_networks_of_one_layer_are_equal_too(cluster, ratings):
    sampled = task(
        cohort=odp.Cohort(minimum=50, sampling="enclave_poisson", sampling_probability=0.4, most_contributions=1000)
    )
    implicit = task(data=odp.ImplicitData(), training=odp.ImplicitDPAM(steps=1))
    glm = odp.Task(
        name="glm",
        model=odp.Glm("logistic", 5),
        data=odp.Examples({"x": odp.Tensor((5,), -5.0, 5.0)}),
        privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
        training=odp.DPFedAvg(rounds=3),
        cohort=odp.Cohort(minimum=20, goal=60),
    )
    with RayEngine(cluster.address, parts=5) as engine:
        for one, data in ((sampled, ratings), (implicit, ratings), (glm, people())):
            require_equal(odp.simulate(one, data, engine=engine), odp.simulate(one, data))


# Each trial is a simulation on a worker, as a part of one is.
@pytest.mark.proof
def test_trials_run_on_the_cluster_and_give_the_same_scores(cluster, ratings):
    arguments = {"epsilons": (8.0,), "seeds": 1, "methods": ["user mean", "DPAM"]}
    with RayEngine(cluster.address) as engine:
        found = odp.compare(ratings, engine=engine, **arguments)
        searched = odp.tune(ratings, trials=2, private=False, engine=engine)
        with pytest.raises(ConfigurationError, match="private data"):
            odp.tune(ratings, trials=1, private=True, engine=engine)
    assert found.scores == odp.compare(ratings, **arguments).scores
    assert searched.best.score == odp.tune(ratings, trials=2, private=False).best.score


def test_a_run_goes_on_from_a_checkpoint_of_this_machine(cluster, ratings, tmp_path):
    class Stopped(Exception):
        pass

    def stop(result):
        if result.round == 1:
            raise Stopped

    with pytest.raises(Stopped):
        odp.simulate(task(), ratings, checkpoint=tmp_path / "run", on_round=stop)
    with RayEngine(cluster.address) as engine, using(engine):
        found = odp.simulate(task(), ratings, checkpoint=tmp_path / "run")
    require_equal(found, odp.simulate(task(), ratings))


def test_an_address_where_nobody_answers_is_one_line():
    with pytest.raises(StateError, match=r"no Ray cluster answers at 127\.0\.0\.1:1 "):
        RayEngine("127.0.0.1:1", wait_seconds=0.1).__enter__()
    with pytest.raises(ConfigurationError, match="parts"):
        RayEngine(parts=0)


def test_parts_are_all_users_once_with_their_own_rows():
    users = people().train
    seeds = np.arange(users.n_users, dtype=np.uint64)
    edges = edges_of(users.n_users, 7)
    parts = list(parts_of(users, seeds, edges))
    assert sum(part.users.n_users for part in parts) == users.n_users
    for part, first in zip(parts, edges[:-1], strict=True):
        assert len(part.users.features) == len(part.users.rows), "no rows of others"
        np.testing.assert_array_equal(part.users.of(0)[0], users.of(int(first))[0])
    chosen = np.array([0, 3, 30, 59])
    back = [edge + one for edge, some in zip(edges[:-1], selected_of(chosen, edges), strict=True) for one in some]
    assert back == chosen.tolist()
    assert selected_of(None, edges) == [None] * 7
