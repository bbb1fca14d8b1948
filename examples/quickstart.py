"""Simulate a private model on invented ratings, print what it cost and gained, and save a picture.

python examples/quickstart.py [PICTURE.png]
"""

import sys

import matplotlib as mpl

import odp

mpl.use("Agg")
from matplotlib import pyplot

picture = sys.argv[1] if len(sys.argv) > 1 else "quickstart.png"
ratings = odp.data.synthetic_movielens(n_users=600, n_items=80, ratings_per_user=30, seed=7)
task = odp.Task(
    name="films",
    model=odp.MatrixFactorization(items=ratings.n_items, rank=2),
    data=odp.RatingsData(low=ratings.low, high=ratings.high),
    privacy=odp.UserLevelDP(epsilon=8, delta=1e-6),
    cohort=odp.Cohort(minimum=100, goal=ratings.n_users),
)
result = odp.simulate(task, ratings, seed=1)
for done in result.rounds:
    error = done.metrics["test_rmse"]
    print(f"round {done.round}: test RMSE {error:.4f}, ε spent {done.epsilon:.4f} of {task.privacy.epsilon:g}")
print("user 0 may like", ", ".join(f"item {item} ({score:.2f})" for item, score in result.recommend(0, count=3)))

errors = [done.metrics["test_rmse"] for done in result.rounds]
pyplot.plot([done.epsilon for done in result.rounds], errors, marker="o")
pyplot.xlabel("ε spent, per user")
pyplot.ylabel("test RMSE")
pyplot.savefig(picture, dpi=120)
print("picture:", picture)
