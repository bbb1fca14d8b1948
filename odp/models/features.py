"""What a feature of labelled examples can be, and how columns of a store become the numbers that models read.

============================  ===================  ==========================  ===========================
feature                       columns hold         a network reads             an ``odp.Glm`` reads
============================  ===================  ==========================  ===========================
``Tensor(shape, low, high)``  numbers              the numbers, clamped        the same
``Category(n)``               numbers, or names    one whole number            n numbers: a 1 among zeros
``Text(vocabulary, length)``  text, or numbers of  ``length`` whole numbers    how often each token of the
                              tokens [length]                                  vocabulary occurs
============================  ===================  ==========================  ===========================

Numbers of tokens are 0 for padding, 1 for tokens that are not in the vocabulary, and 2 for its first token. What is
declared is public, so nothing here depends on the data of others. Device and simulator run the same code. Names and
tokens are compared in normal form C (``odp.identity``), as keys of a catalogue are.
"""

from __future__ import annotations

import collections
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from odp import _validate
from odp.errors import ConfigurationError
from odp.identity import normal
from odp.models.computing_cost import NUMBER_SECONDS, TOKEN_SECONDS
from odp.models.named_numbers import names_numbers, places_of
from odp.numerics.arrays import Float32Array, Float64Array

if TYPE_CHECKING:
    from odp.v1 import federated_pb2

MOST_AXES, MOST_NUMBERS = 8, 2**20
#: Of a vocabulary, or of the names of categories; and the characters of one.
MOST_TOKENS, MOST_CHARACTERS = 2**14, 64
MOST_LENGTH = 2**14
#: Numbers that stand for no token of the vocabulary.
PADDING, UNKNOWN = 0, 1
WORD, CHARACTER = "word", "character"

_RESERVED = 2
_LARGEST = 1e9
_WORDS = re.compile(r"\w+(?:['\u2019\u200c\u200d]\w+)*")


@_validate.strict_keywords
@dataclass(frozen=True)
class Tensor:
    """A feature of a fixed shape.

    Attributes:
      shape: of one example; () for a single number.
      low, high: declared range; numbers outside are clamped.
      scale: the model reads each number times this one; 1 / 255 makes bytes numbers from 0 to 1.

    Raises:
      ConfigurationError: a number is out of range.
    """

    kind: ClassVar[str] = "tensor"

    shape: Sequence[int]
    low: float
    high: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.shape, Sequence) or len(self.shape) > MOST_AXES:
            raise ConfigurationError(f"Expected shape={self.shape!r} to be at most {MOST_AXES} whole numbers")
        for size in self.shape:
            _validate.integer(low=1, high=MOST_NUMBERS, shape=size)
        object.__setattr__(self, "shape", tuple(self.shape))
        _validate.integer(low=1, high=MOST_NUMBERS, numbers=self.size)
        check_range(low=self.low, high=self.high)
        _validate.positive(scale=self.scale)
        _validate.within(low=1e-9, high=1e9, scale=self.scale)

    @property
    def size(self) -> int:
        """Numbers of one example."""
        return math.prod(self.shape)

    @property
    def encoded_size(self) -> int:
        """Numbers of one example that a generalised linear model reads."""
        return self.size

    @property
    def seconds(self) -> float:
        """What reading one example takes, on a device of the reference speed."""
        return self.size * NUMBER_SECONDS

    @property
    def unusable(self) -> str:
        """Why an example is left out whose numbers are none after ``clean``, for messages."""
        return "is not a number"

    def numbers(self, column: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """The column [n, *shape] as it is; None where it has another shape or holds no numbers."""
        return column if column.dtype.kind != "U" and column.shape[1:] == self.shape else None

    def clean(self, part: Float32Array) -> None:
        """Clamps and scales numbers [n, size] in place; what is no number stays."""
        np.clip(part, np.float32(self.low), np.float32(self.high), out=part)
        if self.scale != 1.0:
            part *= np.float32(self.scale)

    def encode(self, part: Float32Array, out: Float32Array) -> None:
        """Writes clean numbers [n, size] as they are to ``out`` [n, encoded_size]."""
        out[:] = part

    def spread(self, part: Float32Array) -> None:
        """Spreads numbers [n, size] from -1 to 1 over the declared range, in place: invented examples."""
        part *= np.float32((self.high - self.low) / 2)
        part += np.float32((self.high + self.low) / 2)

    def write(self, message: federated_pb2.TensorFeature) -> None:
        """Writes itself into a definition's feature."""
        message.shape.extend(self.shape)
        message.low, message.high, message.scale = self.low, self.high, self.scale


@_validate.strict_keywords
@dataclass(frozen=True)
class Category:
    """A feature that is one of some categories.

    An example of another number or name is left out.

    Attributes:
      classes: how many there are: columns hold whole numbers from 0; or the name of each: columns hold names. Whole
        numbers in a column are names where any name is a number or a truth value, as in ``("1", "2", "3", "more")``
        and ``("true", "false")``, and count the names from 0 where none is.

    Raises:
      ConfigurationError: the number is out of range, or names are malformed or not distinct.
    """

    kind: ClassVar[str] = "category"

    classes: int | Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.classes, int):
            _validate.integer(low=2, high=MOST_NUMBERS, classes=self.classes)
        else:
            object.__setattr__(self, "classes", checked_texts(self.classes, "classes", least=2))

    @property
    def count(self) -> int:
        """How many categories there are."""
        return self.classes if isinstance(self.classes, int) else len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example: one number."""
        return ()

    @property
    def size(self) -> int:
        """Numbers of one example."""
        return 1

    @property
    def encoded_size(self) -> int:
        """Numbers of one example that a generalised linear model reads: one per category."""
        return self.count

    @property
    def seconds(self) -> float:
        """As of a tensor: a name is looked up."""
        return TOKEN_SECONDS

    @property
    def unusable(self) -> str:
        """As of a tensor."""
        return f"is none of its {self.count:,} categories"

    def numbers(self, column: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Numbers [n] of a column of numbers, as they are, or of names, where an unknown name is not a number.

        None where the column has another shape, names where none are declared, or truth values where other names are.
        """
        if column.shape[1:] != ():
            return None
        if isinstance(self.classes, int):
            return None if column.dtype.kind == "U" else column
        if column.dtype.kind == "U" or self._names_numbers:
            return places_of(column, self.classes)
        # Truth values have no place among other names.
        return None if column.dtype.kind == "b" else column

    @property
    def _names_numbers(self) -> bool:
        return not isinstance(self.classes, int) and names_numbers(self.classes)

    def column(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The opposite of :meth:`numbers`: what a column holds for clean numbers [n]."""
        if isinstance(self.classes, int) or not self._names_numbers:
            return numbers
        valid = (numbers >= 0) & (numbers < self.count) & (numbers == np.floor(numbers))
        names = np.array([*self.classes, ""])
        return names[np.where(valid, numbers, self.count).astype(np.int64)]

    def clean(self, part: Float32Array) -> None:
        """Makes what is no category of numbers [n, 1] not a number, in place."""
        _keep_whole(part, self.count)

    def encode(self, part: Float32Array, out: Float32Array) -> None:
        """Writes clean numbers [n, 1] to ``out`` [n, encoded_size]: a 1 at the place of the category among zeros."""
        out[:] = 0.0
        np.put_along_axis(out, part.astype(np.int64), 1.0, axis=1)

    def spread(self, part: Float32Array) -> None:
        """Spreads numbers [n, 1] from -1 to 1 over the categories, in place: invented examples."""
        _spread_whole(part, 0, self.count)

    def write(self, message: federated_pb2.TensorFeature) -> None:
        """Writes itself into a definition's feature."""
        message.category.classes = self.count
        if not isinstance(self.classes, int):
            message.category.names.extend(self.classes)


@_validate.strict_keywords
@dataclass(frozen=True)
class Text:
    """A feature that is text, read as the numbers of its first tokens.

    Attributes:
      vocabulary: the tokens that have a number of their own: words in lower case, or single characters. It is part of
        the public task: take it from public text, never from the devices' data.
      length: how many tokens are read; shorter text is padded.
      unit: "word", a lower-cased run of letters with their marks (accents, vowel signs), digits, underscores, and
        apostrophes and joiners between these; or "character".

    Raises:
      ConfigurationError: a token is not one of its unit or occurs twice, or a number is out of range.
    """

    kind: ClassVar[str] = "text"

    vocabulary: Sequence[str]
    length: int
    unit: str = WORD

    def __post_init__(self) -> None:
        _validate.one_of(_SPLIT, unit=self.unit)
        _validate.integer(low=1, high=MOST_LENGTH, length=self.length)
        tokens = checked_texts(self.vocabulary, "vocabulary", least=1)
        for token in tokens:
            if list(_SPLIT[self.unit](token)) != [normal(token)]:
                lower = ", in lower case" if self.unit == WORD else ""
                raise ConfigurationError(f"Expected {token!r} of vocabulary to be one {self.unit}{lower}")
        object.__setattr__(self, "vocabulary", tokens)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the numbers of one example."""
        return (self.length,)

    @property
    def size(self) -> int:
        """Numbers of one example."""
        return self.length

    @property
    def count(self) -> int:
        """Different numbers that a token may have."""
        return len(self.vocabulary) + _RESERVED

    @property
    def encoded_size(self) -> int:
        """Numbers of one example that a generalised linear model reads: one per token of the vocabulary."""
        return len(self.vocabulary)

    @property
    def seconds(self) -> float:
        """As of a tensor: each token is looked up."""
        return self.size * TOKEN_SECONDS

    @property
    def unusable(self) -> str:
        """As of a tensor."""
        return "has a number that is no token's"

    def numbers(self, column: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        """Numbers [n, length] of a column of text [n]; of numbers, as it is. None where it has another shape."""
        if column.dtype.kind != "U":
            return column if column.shape[1:] == self.shape else None
        if column.shape[1:] != ():
            return None
        number_of = {normal(token): number for number, token in enumerate(self.vocabulary, start=_RESERVED)}
        split = _SPLIT[self.unit]
        numbers = np.full((len(column), self.length), PADDING, dtype=np.float32)
        for row, text in zip(numbers, column.tolist(), strict=True):
            for place, token in zip(range(self.length), split(text), strict=False):
                row[place] = number_of.get(token, UNKNOWN)
        return numbers

    def clean(self, part: Float32Array) -> None:
        """Makes what is no token's number of numbers [n, length] not a number, in place."""
        _keep_whole(part, self.count)

    def encode(self, part: Float32Array, out: Float32Array) -> None:
        """Writes how often each token occurs in clean numbers [n, length] to ``out`` [n, encoded_size]."""
        out[:] = 0.0
        rows, places = np.nonzero(part >= _RESERVED)
        np.add.at(out, (rows, part[rows, places].astype(np.int64) - _RESERVED), 1.0)

    def spread(self, part: Float32Array) -> None:
        """Spreads numbers [n, length] from -1 to 1 over the vocabulary's tokens, in place: invented examples."""
        _spread_whole(part, _RESERVED, self.count)

    def write(self, message: federated_pb2.TensorFeature) -> None:
        """Writes itself into a definition's feature."""
        from odp.v1 import federated_pb2

        message.text.vocabulary.extend(self.vocabulary)
        message.text.length = self.length
        message.text.unit = federated_pb2.TextFeature.Unit.Value(f"UNIT_{self.unit.upper()}")  # type: ignore[assignment]


Feature = Tensor | Category | Text
#: By the name of each kind in a task file.
KINDS: Mapping[str, type[Feature]] = MappingProxyType({cls.kind: cls for cls in (Tensor, Category, Text)})


def feature_of(message: federated_pb2.TensorFeature) -> Feature:
    """The feature of a definition. Raises ConfigurationError where its kind is unknown or a field is out of range."""
    if (kind := message.WhichOneof("kind")) is None:
        return Tensor(tuple(message.shape), message.low, message.high, message.scale)
    if message.shape or message.low or message.high or message.scale:
        raise ConfigurationError(f"Expected feature {message.name!r} to be a tensor or a {kind}, not both")
    if kind == "category":
        category = message.category
        if category.names and len(category.names) != category.classes:
            raise ConfigurationError(
                f"Expected {category.classes} names of the categories of feature {message.name!r} (got "
                f"{len(category.names)})"
            )
        return Category(tuple(category.names) or category.classes)
    text = message.text
    units = {number: name for name, number in type(text).Unit.items() if number}
    if text.unit not in units:
        raise ConfigurationError(
            f"Expected unit={text.unit} of text feature {message.name!r} to be one of {', '.join(units.values())}; a "
            "newer one needs a newer version of this program"
        )
    return Text(tuple(text.vocabulary), text.length, units[text.unit].removeprefix("UNIT_").lower())


def described(feature: Feature) -> str:
    """What a column of the feature holds, for messages."""
    match feature:
        case Tensor():
            return f"numbers of shape {[*feature.shape]} per example"
        case Category():
            return (
                "one whole number per example" if isinstance(feature.classes, int) else "one name or number per example"
            )
        case Text():
            return f"one text per example, or {feature.length} numbers of tokens"


@dataclass(frozen=True)
class Encoding:
    """How a generalised linear model reads the numbers of examples: categories among zeros, text as counts."""

    features: tuple[Feature, ...]

    @classmethod
    def of(cls, features: Iterable[Feature]) -> Encoding | None:
        """That of some features; None where all are tensors, which a model reads as they are."""
        listed = tuple(features)
        return None if all(isinstance(feature, Tensor) for feature in listed) else cls(listed)

    @property
    def size(self) -> int:
        """Numbers of one example that the model reads."""
        return sum(feature.encoded_size for feature in self.features)

    def __call__(self, numbers: Float32Array) -> Float32Array:
        """Float32 [n, size] of clean numbers [n, width], all of them finite."""
        encoded = np.empty((len(numbers), self.size), dtype=np.float32)
        start = begin = 0
        for feature in self.features:
            end, stop = start + feature.size, begin + feature.encoded_size
            feature.encode(numbers[:, start:end], encoded[:, begin:stop])
            start, begin = end, stop
        return encoded


def check_range(**bounds: float) -> None:
    """Raises ConfigurationError unless the two bounds are finite, not too large, and ascending."""
    _validate.finite(**bounds)
    (low_name, low), (high_name, high) = bounds.items()
    if not -_LARGEST <= low < high <= _LARGEST:
        raise ConfigurationError(
            f"Expected {low_name}={low!r} to be below {high_name}={high!r}, both within {_LARGEST:g}"
        )


def _words(text: str) -> Iterable[str]:
    folded = normal(text.lower())
    # Marks are part of the word that they stand in, and no letters for a regular expression.
    letters = folded if folded.isascii() else "".join(map(_letter, folded))
    return (folded[match.start() : match.end()] for match in _WORDS.finditer(letters))


def _letter(character: str) -> str:
    return "a" if unicodedata.category(character)[0] == "M" else character


def _characters(text: str) -> Iterable[str]:
    return iter(normal(text))


_SPLIT: Mapping[str, Callable[[str], Iterable[str]]] = MappingProxyType({WORD: _words, CHARACTER: _characters})


def checked_texts(texts: Sequence[str], name: str, *, least: int) -> tuple[str, ...]:
    """``texts`` as a tuple. Raises ConfigurationError unless it is some distinct short texts."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ConfigurationError(f"Expected {name} to be a tuple of texts (got {type(texts).__name__})")
    _validate.integer(low=least, high=MOST_TOKENS, **{name: len(texts)})
    for token in texts:
        if not isinstance(token, str) or not 1 <= len(token) <= MOST_CHARACTERS or not _is_stored(token):
            raise ConfigurationError(
                f"Expected {token!r} of {name} to be text of 1 to {MOST_CHARACTERS} characters that does not end with "
                "a null character"
            )
    spelled = [normal(token) for token in texts]
    if len(set(spelled)) != len(texts):
        (twice, _), *_ = collections.Counter(spelled).most_common(1)
        raise ConfigurationError(f"Expected {name} to be distinct (got {twice!r} more than once)")
    return tuple(texts)


def _is_stored(token: str) -> bool:
    """Whether columns can hold it: arrays of text drop null characters at the end."""
    return not token.endswith("\0") and not any("\ud800" <= character <= "\udfff" for character in token)


def _keep_whole(part: Float32Array, count: int) -> None:
    with np.errstate(invalid="ignore"):
        part[~((part >= 0) & (part < count) & (part == np.floor(part)))] = np.nan


def _spread_whole(part: Float32Array, first: int, end: int) -> None:
    numbers: Float64Array = np.floor((part.astype(np.float64) + 1.0) / 2.0 * (end - first))
    part[:] = first + np.clip(numbers, 0, end - first - 1)
