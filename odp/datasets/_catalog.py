"""The public data sets by name: the addresses of their files, their digests, and their licences.

The digests of the archives are those that independent public sources (ml-100k: one) state. Where no digest is stated
anywhere, ``sha256`` is None, and a fetch asks its caller for one.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class SourceFile:
    """One file to download: its address, and the SHA-256 (hex) of its bytes where that is known."""

    url: str
    sha256: str | None

    @property
    def name(self) -> str:
        """The file's own name: the end of its address."""
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class DatasetSource:
    """A public data set.

    Attributes:
      name: the name to load and fetch it by.
      kind: "ratings" or "images".
      files: what to download; a ``.zip`` is unpacked.
      homepage: the publisher's page.
      licence: the terms in one line; the publisher's page has the full text.
      summary: content in one line.
    """

    name: str
    kind: str
    files: tuple[SourceFile, ...]
    homepage: str
    licence: str
    summary: str


_GROUPLENS = "https://files.grouplens.org/datasets/movielens"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_LIGHTGCN = (
    "https://raw.githubusercontent.com/geon0325/LightGCNpp/a18af1e1f65dc4b6a432ce5aeaae5bbe75ac1c2e/data/gowalla"
)

_ALL = (
    DatasetSource(
        name="ml-1m",
        kind="ratings",
        files=(
            SourceFile(
                url=f"{_GROUPLENS}/ml-1m.zip",
                sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
            ),
        ),
        homepage="https://grouplens.org/datasets/movielens/1m/",
        licence="research use with acknowledgement; no redistribution, no commercial use without permission",
        summary="MovieLens-1M: 1,000,209 ratings 1..5 of 3,706 movies by 6,040 users",
    ),
    DatasetSource(
        name="ml-100k",
        kind="ratings",
        files=(
            SourceFile(
                url=f"{_GROUPLENS}/ml-100k.zip",
                sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
            ),
        ),
        homepage="https://grouplens.org/datasets/movielens/100k/",
        licence="research use with acknowledgement; no redistribution, no commercial use without permission",
        summary="MovieLens-100K: 100,000 ratings 1..5 of 1,682 movies by 943 users",
    ),
    DatasetSource(
        name="ml-latest-small",
        kind="ratings",
        files=(
            SourceFile(
                url=f"{_GROUPLENS}/ml-latest-small.zip",
                sha256="696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
            ),
        ),
        homepage="https://grouplens.org/datasets/movielens/latest/",
        licence="research use with acknowledgement; may be passed on under the same terms, no commercial use",
        summary="MovieLens latest-small: 100,836 ratings 0.5..5 of 9,724 movies by 610 users",
    ),
    DatasetSource(
        name="jester",
        kind="ratings",
        files=(
            SourceFile(
                "https://eigentaste.berkeley.edu/dataset/archive/jester_dataset_1_1.zip",
                "cb7841756ded125b15f3d95c9f8241224065e96354c132a46ae4214deeab7615",
            ),
        ),
        homepage="https://eigentaste.berkeley.edu/dataset/",
        licence="research use with citation of the Eigentaste paper",
        summary="Jester 1, part 1: 1,810,455 ratings -10..10 of 100 jokes by 24,983 users",
    ),
    DatasetSource(
        name="gowalla",
        kind="ratings",
        files=tuple(SourceFile(f"{_LIGHTGCN}/{part}.txt", None) for part in ("train", "valid", "test")),
        homepage="https://snap.stanford.edu/data/loc-gowalla.html",
        licence="not stated by the source",
        summary="Gowalla check-ins (implicit, LightGCN split): 1,027,370 pairs of 29,858 users and 40,981 places",
    ),
    DatasetSource(
        name="mnist",
        kind="images",
        files=(
            SourceFile(
                url=f"{_MNIST}/train-images-idx3-ubyte.gz",
                sha256="440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            SourceFile(
                url=f"{_MNIST}/train-labels-idx1-ubyte.gz",
                sha256="3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            SourceFile(
                url=f"{_MNIST}/t10k-images-idx3-ubyte.gz",
                sha256="8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            SourceFile(
                url=f"{_MNIST}/t10k-labels-idx1-ubyte.gz",
                sha256="f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        homepage="http://yann.lecun.com/exdb/mnist/",
        licence="not stated by the source (commonly cited as CC BY-SA 3.0)",
        summary="MNIST: 60,000 + 10,000 handwritten digits, 28 x 28",
    ),
)

DATASETS = MappingProxyType({source.name: source for source in _ALL})
"""Read-only table from name to :class:`DatasetSource`."""
