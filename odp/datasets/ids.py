"""Ids of users and items, which are texts, as arrays: the rules of ``odp.identity`` for many rows at once.

The text ``"12"`` and the number 12 are one id in every form of file. An array of ids is int64 where all of them are
digits of such a number, which takes less memory, and text otherwise. That is packing: what an id is, its key and its
place among others follow from its own text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from odp.errors import DataError
from odp.identity import LARGEST, LEAST, exact_bits, id_text, integer_of, is_missing

if TYPE_CHECKING:
    import pyarrow as pa

Longs = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]
"""Ids: int64, or text as ``numpy.dtypes.StringDType``."""


def text_type() -> Any:
    """The type of text ids; numpy 1, which the environment of TensorFlow Federated has, lacks it."""
    return np.dtypes.StringDType()


def checked_ids(ids: npt.ArrayLike, *, what: str, where: str) -> Ids:
    """``ids`` packed: int64 where all are digits of one, otherwise text (``StringDType``).

    Raises:
      DataError: one is no id.
    """
    array = np.asarray(ids)
    if array.dtype.kind == "i" or array.size == 0 or (array.dtype.kind == "u" and array.max() <= LARGEST):
        return np.ascontiguousarray(array, dtype=np.int64)
    if array.dtype.kind not in "UT":
        try:
            texts = [id_text(value) for value in array.ravel()]
        except DataError as error:
            raise DataError(f"{where}: {what}: {error}") from None
        array = np.array(texts, dtype=text_type()).reshape(array.shape)
    flat = array.ravel()
    # Ids in their order end with what is no number.
    if integer_of(str(flat[-1])) is None:
        return array.astype(text_type())
    numbers = [integer_of(text) for text in flat.tolist()]
    if None in numbers:
        return array.astype(text_type())
    return np.array(numbers, dtype=np.int64).reshape(array.shape)


def joined(numbers: Longs, others: list[str]) -> Ids:
    """Ids packed in their order: numbers ascending, then other texts by code points.

    Which of two ids comes first follows from these two alone.
    """
    if not others:
        return numbers
    return np.array([*map(str, numbers.tolist()), *others], dtype=text_type())


def in_order(texts: Iterable[str]) -> list[str]:
    """Ids in their order, see :func:`joined`."""

    def place(text: str) -> tuple[bool, int, str]:
        number = integer_of(text)
        return number is None, number or 0, text

    return sorted(texts, key=place)


def id_keys(ids: Ids | None, count: int) -> Longs:
    """A number for each id that depends on its text alone, int64 [count]; numbers from 0 without ids.

    The digits of a number of 64 bits have that number; other text is hashed to 64 bits (BLAKE2b, RFC 7693).
    """
    if ids is None:
        return np.arange(count, dtype=np.int64)
    if ids.dtype.kind != "T":
        return ids
    return np.fromiter((_key(text) for text in ids), dtype=np.int64, count=len(ids))


def _key(text: str) -> int:
    if (number := integer_of(text)) is not None:
        return number
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def packed(ids: Ids) -> Ids:
    """The same in a form of fixed width that numpy's files hold without pickle: int64, or fixed-width text.

    Raises:
      DataError: an id ends with a zero byte, which text of fixed width loses: another id would come back.
    """
    if ids.dtype.kind != "T":
        return ids
    fixed = ids.astype(f"U{max(int(np.strings.str_len(ids).max(initial=1)), 1)}")
    if (unpacked(fixed) != ids).any():
        raise DataError("an id ends with a zero byte, which files of numpy do not hold; mend it")
    return fixed


def unpacked(ids: Ids) -> Ids:
    """The opposite of :func:`packed`."""
    return ids.astype(text_type()) if ids.dtype.kind == "U" else ids


Codes = npt.NDArray[np.int32]

MOST_ID_BYTES = 1024
_DIGITS = r"^(0|-?[1-9][0-9]{0,18})$"
_POINT_ZERO = r"^(-?[0-9]+)\.0*$"


def coded(column: pa.ChunkedArray, *, where: str, place: Callable[[int], str]) -> tuple[Ids, Codes]:
    """(distinct ids in their order, position of each row's id among them or -1 where it has none).

    Args:
      column: numbers or text, which may be a dictionary.
      where: the table and the column in messages.
      place: what messages call a row.

    Raises:
      DataError: the column holds values that are no ids, an id is longer than 1,024 bytes or has a zero byte, or two
        ids differ only in spaces at their ends, in their Unicode form, or by ".0".
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        chunks = _dictionaries(column).chunks
    except DataError as error:
        raise DataError(f"{where} of ids {error}") from None
    if not chunks or not len(chunks[0].dictionary):
        return np.empty(0, dtype=np.int64), np.full(len(column), -1, dtype=np.int32)
    values = chunks[0].dictionary
    if pa.types.is_string(values.type):
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            raise DataError(f"{where} of ids holds text that is not UTF-8; write it again") from None
    parts = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32) for chunk in chunks]
    codes = np.concatenate(parts)
    if pa.types.is_integer(values.type):
        ids: Ids = np.unique(values.drop_null().to_numpy()).astype(np.int64)
        return ids, _renumbered(values, pa.array(ids), codes)
    values = pc.if_else(pc.equal(pc.binary_length(values), 0), pa.scalar(None, values.type), values)
    # A category of no row is no id. Rows without one have the place -1, which is the last.
    present = np.zeros(len(values) + 1, dtype=np.bool_)
    for part in parts:
        present[part] = True
    values = pc.if_else(pa.array(present[:-1]), values, pa.scalar(None, values.type))
    distinct = values.drop_null().unique()
    _check_texts(distinct, values, codes, where, place)
    plain, numbers = _split(distinct)
    others = plain.take(pc.sort_indices(plain))  # by code points
    ids = joined(numbers, others.to_pylist())
    order = pa.concat_arrays([pa.array(numbers).cast(values.type), others])
    return ids, _renumbered(values, order, codes)


def decoded(column: Any) -> Any:
    """A column of values or times without a dictionary, and text of one kind."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        chunks = [_one_text(chunk.dictionary).take(chunk.indices) for chunk in column.chunks]
        return pa.chunked_array(chunks, _one_text(pa.array([], column.type.value_type)).type)
    return _one_text(column)


def _one_text(column: Any) -> Any:
    import pyarrow as pa

    several = pa.types.is_large_string(column.type) or str(column.type) == "string_view"
    return column.cast(pa.string()) if several else column


def used(ids: Ids, codes: Codes) -> tuple[Ids, Codes]:
    """Without the ids of no row, such as unused categories and those of bad rows."""
    present = np.bincount(codes, minlength=len(ids)) > 0
    if present.all():
        return ids, codes
    place = np.cumsum(present, dtype=np.int32) - 1
    return ids[present], place.astype(np.int32)[codes]


def id_texts(values: Iterable[object], *, where: str, place: Callable[[int], str]) -> pa.ChunkedArray:
    """A column of ids from values of several kinds, one by one; None and NaN are missing.

    Raises:
      DataError: one is no id; the message says where it is.
    """
    import pyarrow as pa

    texts: list[str | None] = []
    for row, value in enumerate(values):
        if is_missing(value):
            texts.append(None)
            continue
        try:
            text = id_text(value)
            text.encode()
        except DataError as error:
            raise DataError(f"{where}: {place(row)}: {error}") from None
        except UnicodeEncodeError:
            raise DataError(f"{where}: {place(row)}: half a character (a lone surrogate); write it again") from None
        texts.append(text)
    return pa.chunked_array([pa.array(texts, pa.string())])


def value_texts(values: Iterable[object]) -> pa.ChunkedArray:
    """A column of text from values of several kinds: whole numbers as ids, truth as "true" and "false"."""
    import pyarrow as pa

    return pa.chunked_array([pa.array([_value_text(value) for value in values], pa.string())])


def _value_text(value: Any) -> str | None:
    if value is None or value != value:
        return None
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    try:
        return id_text(value)
    except DataError:
        return str(value)


def _dictionaries(column: Any) -> Any:
    """The column with one dictionary of int64 or text, and codes of 32 bits."""
    import pyarrow as pa

    kind = column.type
    if not pa.types.is_dictionary(kind):
        return _id_values(column).dictionary_encode().unify_dictionaries()
    # Arrow unifies no dictionary of text views, and Polars codes with unsigned numbers.
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int32()), _id_values(chunk.dictionary))
        for chunk in column.chunks
    ]
    if len({chunk.type for chunk in chunks}) > 1:  # one block's numbers have 64 bits, another's have more
        text = pa.dictionary(pa.int32(), pa.string())
        chunks = [pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pa.string())) for chunk in chunks]
        return pa.chunked_array(chunks, text).unify_dictionaries()
    return pa.chunked_array(chunks, chunks[0].type if chunks else None).unify_dictionaries() if chunks else column


def _id_values(column: Any) -> Any:
    """The column as int64 or text. Raises DataError where it holds neither."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    column = _one_text(column)
    if pa.types.is_string(column.type):
        return column
    if pa.types.is_integer(kind):
        if kind == pa.uint64() and (pc.max(column).as_py() or 0) > LARGEST:
            return column.cast(pa.string())
        return column.cast(pa.int64())
    if pa.types.is_null(kind):
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        # Whole numbers beside missing ones, which pandas keeps as floats.
        bits = exact_bits(np.dtype(kind.to_pandas_dtype()))
        column = column.cast(pa.float64())
        column = pc.if_else(pc.is_finite(column).fill_null(False), column, pa.scalar(None, pa.float64()))
        if (pc.max(pc.abs(column)).as_py() or 0) >= 2.0**bits:
            raise DataError(f"holds floats of 2**{bits} or more, which are not exact; expected whole numbers or text")
        if pc.any(pc.not_equal(pc.floor(column), column)).as_py():
            raise DataError("holds fractions; expected whole numbers or text")
        return column.cast(pa.int64())
    if pa.types.is_decimal(kind):
        digits = column.cast(pa.string())
        if pc.any(pc.match_substring_regex(digits, r"\.[0-9]*[1-9]|E")).as_py():
            raise DataError("holds fractions; expected whole numbers or text")
        return pc.replace_substring_regex(digits, r"\.0*$", "")
    raise DataError(f"is of type {kind}; expected whole numbers or text")


def _split(distinct: Any) -> tuple[Any, npt.NDArray[np.int64]]:
    """(texts that are no digits of a number of 64 bits, the numbers of the others ascending)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    shaped = pc.match_substring_regex(distinct, _DIGITS)
    # Texts of one length are in the order of their numbers.
    above = pc.and_(pc.equal(pc.binary_length(distinct), 19), pc.greater(distinct, str(LARGEST)))
    below = pc.and_(pc.equal(pc.binary_length(distinct), 20), pc.greater(distinct, str(LEAST)))
    fits = pc.and_(shaped, pc.invert(pc.or_(above, below)))
    numbers = distinct.filter(fits).cast(pa.int64()).to_numpy()
    return distinct.filter(pc.invert(fits)), np.sort(numbers)


def _check_texts(distinct: Any, values: Any, codes: Codes, where: str, place: Callable[[int], str]) -> None:
    """Raises DataError where an id is too long or has a zero byte, or two ids look alike."""
    import pyarrow.compute as pc

    def row_of(text: str) -> str:
        return place(int(np.flatnonzero(codes == pc.index(values, text).as_py())[0]))

    for wrong, why, mend in (
        (pc.greater(pc.binary_length(distinct), MOST_ID_BYTES), f"of more than {MOST_ID_BYTES} bytes", "shorten it"),
        (pc.match_substring(distinct, "\0"), "with a zero byte", "mend it"),
    ):
        if pc.any(wrong).as_py():
            raise DataError(f"{where} holds an id {why} in {row_of(distinct.filter(wrong)[0].as_py())}; {mend}")
    folded = pc.utf8_normalize(pc.utf8_trim_whitespace(distinct), "NFC")
    folded = pc.replace_substring_regex(folded, _POINT_ZERO, r"\1")
    if len(folded.unique()) == len(distinct):
        return
    counts = pc.value_counts(folded)
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))[0]
    first, second = distinct.filter(pc.equal(folded, twice)).to_pylist()[:2]
    raise DataError(
        f"{where} writes one id in two ways, in {row_of(first)} and in {row_of(second)}: they differ only by '.0', by "
        "spaces at the ends, or by their Unicode form; write it in one"
    )


def _renumbered(values: Any, order: Any, codes: Codes) -> Codes:
    """The place in ``order`` of each row's value; -1 where it has none."""
    import pyarrow.compute as pc

    if not len(values):
        return codes
    place = pc.index_in(values, order).fill_null(-1).to_numpy().astype(np.int32)
    return np.where(codes < 0, np.int32(-1), place[codes])
