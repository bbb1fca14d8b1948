"""MovieLens: each published form, made small, and the real files where they are."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest

from odp.datasets import load
from odp.datasets.movielens import load_movielens
from odp.errors import ConfigurationError, DataError

DAT = "2::10::5::300\n2::40::3::100\n1::10::4::50\n2::30::1::200\n"
MOVIES_DAT = "10::Café (1999)::Drama|War\n20::Unseen (1990)::Western\n30::B, The (1)::Comedy\n40::C::Drama\n"


def write_ml_1m(folder: Path, text: str = DAT) -> Path:
    (folder / "ratings.dat").write_bytes(text.encode())
    (folder / "movies.dat").write_bytes(MOVIES_DAT.encode("latin-1"))
    return folder


def test_ml_1m_is_read_with_dense_ids_titles_genres_and_order(tmp_path: Path) -> None:
    ratings = load_movielens(write_ml_1m(tmp_path))
    assert ratings.user_ids is not None
    assert ratings.user_ids.tolist() == [1, 2]
    assert ratings.item_ids is not None
    assert ratings.item_ids.tolist() == [10, 30, 40]
    assert ratings.offsets.tolist() == [0, 1, 4]
    assert ratings.items.tolist() == [0, 0, 1, 2]
    assert ratings.values.tolist() == [4, 5, 1, 3]
    assert ratings.order is not None
    assert ratings.order.tolist() == [0, 2, 1, 0]
    assert ratings.titles == ("Café (1999)", "B, The (1)", "C")
    assert ratings.feature_names == ("Comedy", "Drama", "War", "Western")
    assert ratings.features is not None
    assert ratings.features.tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0]]
    assert (ratings.low, ratings.high) == (1.0, 5.0)


def test_the_whole_catalogue_does_not_follow_from_the_ratings(tmp_path: Path) -> None:
    """Without the one user who rated 30, the items that somebody rated are others; those of the movie file are not."""
    without = "\n".join(line for line in DAT.splitlines() if "::30::" not in line) + "\n"
    found = []
    for name, text in (("all", DAT), ("without", without)):
        (tmp_path / name).mkdir()
        found.append(load(write_ml_1m(tmp_path / name, text), whole_catalogue=True))
    for ratings in found:
        assert ratings.item_ids is not None
        assert ratings.item_ids.tolist() == [10, 20, 30, 40]
        assert ratings.titles == ("Café (1999)", "Unseen (1990)", "B, The (1)", "C")
        assert ratings.features is not None
        assert ratings.features.tolist() == [[0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]
    assert found[0].items.tolist() == [0, 0, 2, 3]
    assert found[1].items.tolist() == [0, 0, 3]


def test_without_a_movie_file_there_is_no_whole_catalogue(tmp_path: Path) -> None:
    (tmp_path / "ratings.dat").write_bytes(DAT.encode())
    with pytest.raises(DataError, match="there is no movie file"):
        load(tmp_path, whole_catalogue=True)


def test_without_arrow_the_text_forms_name_the_extra_and_arrays_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'odp-platform\[data\]'"):
        load(write_ml_1m(tmp_path))
    (tmp_path / "ratings.dat").unlink()
    columns = {"user": [1], "item": [10], "rating_halfstars": [8], "order": [0]}
    np.savez(tmp_path / "ratings.npz", **{name: np.array(column) for name, column in columns.items()})
    assert load(tmp_path).values.tolist() == [4]


def test_windows_line_ends_and_gzip_change_nothing(tmp_path: Path) -> None:
    (tmp_path / "ratings.dat.gz").write_bytes(gzip.compress(DAT.replace("\n", "\r\n").encode()))
    ratings = load_movielens(tmp_path)
    assert ratings.values.tolist() == [4, 5, 1, 3]
    assert ratings.titles is None
    assert ratings.features is None


def test_the_array_form_equals_the_text_form(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "arrays").mkdir()
    text = load(write_ml_1m(tmp_path / "text"))
    np.savez(
        tmp_path / "arrays" / "ratings.npz",
        user=np.array([2, 2, 1, 2], dtype=np.uint16),
        item=np.array([10, 40, 10, 30], dtype=np.uint16),
        rating_halfstars=np.array([10, 6, 8, 2], dtype=np.uint8),
        order=np.array([2, 0, 0, 1], dtype=np.uint16),
    )
    (tmp_path / "arrays" / "movies.dat").write_bytes(MOVIES_DAT.encode("latin-1"))
    arrays = load(tmp_path / "arrays")
    for name in ("offsets", "items", "values", "order", "features", "user_ids", "item_ids"):
        assert getattr(arrays, name).tolist() == getattr(text, name).tolist(), name
    assert arrays.titles == text.titles


def test_ml_100k_is_read_with_its_nineteen_flags(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("7\t2\t3\t881250949\n3\t1\t5\t881250950\n")
    flags = ["0"] * 19
    flags[8] = "1"
    lines = [f"{n}|Título {n}|01-Jan-1995||http://x|{'|'.join(flags)}\n" for n in (1, 2, 3)]
    (tmp_path / "u.item.gz").write_bytes(gzip.compress("".join(lines).encode("latin-1")))
    ratings = load_movielens(tmp_path / "u.data")
    assert ratings.items.tolist() == [0, 1]
    assert ratings.values.tolist() == [5, 3]
    assert ratings.titles == ("Título 1", "Título 2")
    assert ratings.features is not None
    assert ratings.features.shape == (2, 19)
    assert ratings.feature_names is not None
    assert ratings.feature_names[8] == "Drama"
    assert ratings.features[:, 8].tolist() == [1, 1]
    assert ratings.features.sum() == 2


def test_ml_latest_is_read_with_half_stars_quotes_and_no_genre(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_bytes(b"userId,movieId,rating,timestamp\r\n1,3,0.5,9\r\n1,2,4.5,8\r\n")
    movies = 'movieId,title,genres\r\n2,"Pianist, The ""x""",Drama|Ä\r\n3,Amélie,(no genres listed)\r\n'
    (tmp_path / "movies.csv").write_bytes(movies.encode())
    ratings = load_movielens(tmp_path / "ratings.csv")
    assert ratings.values.tolist() == [4.5, 0.5]
    assert ratings.titles == ('Pianist, The "x"', "Amélie")
    assert ratings.feature_names == ("Drama", "Ä")
    assert ratings.features is not None
    assert ratings.features.tolist() == [[1, 1], [0, 0]]
    assert (ratings.low, ratings.high) == (0.5, 5.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1::2::3::4\n1::2::3\n", r"1 of 2 .* 3 fields where user::item::rating::timestamp has 4: line 2"),
        ("1::2::3::4\n\n1::3::3::4::\n", r"1 of 2 .* 5 fields where .*: line 3"),
        ("1::2::3::4\n1::2::nan::4\n", r"no number as a value \(column 'rating'\): line 2"),
        ("1::2::1.2.3::4\n", r"no number as a value .*: line 1"),
        ("1::2::-::4\n", r"no number as a value .*: line 1"),
        ("1::2::1-2::4\n1::3::::4\n", r"2 x no number as a value .*: line 1, 2"),
        ("1::2::3::4\n1::::3::4\n", r"no item \(column 'movieId'\): line 2"),
        ("1::2::3::4::5\n1::2::3\n", r"1 x 5 fields .*: line 1; 1 x 3 fields .*: line 2"),
        ("1::2::3::4\n1::3::6::4\n1::4::7::4\n", r"2 of 3 .* value outside \[1, 5\] .*: line 2, 3"),
        ("1::2::3::x\n", "column 'timestamp' has no time, but texts such as 'x'; expected numbers, or dates such as"),
        ("", r"ratings\.dat: the file is empty"),
        ("1::10::3::4\n1::x::3::4\n", "1 rated movies are not in the movie file .*x"),
        ("1::10::3::4\n1::99::3::4\n", "1 rated movies are not in the movie file .*99"),
    ],
)
def test_a_malformed_rating_file_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_movielens(write_ml_1m(tmp_path, text))


def test_malformed_movie_files_are_refused_by_line(tmp_path: Path) -> None:
    write_ml_1m(tmp_path)
    (tmp_path / "movies.dat").write_text("10::A::Drama\n30::B\n")
    with pytest.raises(DataError, match=r"movies\.dat:2: expected MovieID::Title::Genres"):
        load_movielens(tmp_path)
    (tmp_path / "u.data").write_text("1\t1\t3\t4\n")
    (tmp_path / "u.item").write_text("1|A|d||u|" + "|".join("0" * 18) + "\n")
    with pytest.raises(DataError, match=r"u\.item:1: expected 5 fields and 19"):
        load_movielens(tmp_path / "u.data")
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,1,3,4\n")
    (tmp_path / "movies.csv").write_text("movieId,title,genres\n1,A,Drama\n2,B\n")
    with pytest.raises(DataError, match=r"movies\.csv:3: expected movieId,title,genres"):
        load_movielens(tmp_path / "ratings.csv")
    (tmp_path / "movies.csv").write_bytes(b"movieId,title,genres\n1,Caf\xe9,Drama\n")
    with pytest.raises(DataError, match=r"movies\.csv:2: not UTF-8"):
        load_movielens(tmp_path / "ratings.csv")


def test_movie_files_are_utf_8_where_they_are_and_name_each_movie_once(tmp_path: Path) -> None:
    write_ml_1m(tmp_path)
    (tmp_path / "movies.dat").write_bytes(MOVIES_DAT.encode())
    titles = load_movielens(tmp_path).titles
    assert titles is not None
    assert titles[0] == "Café (1999)"
    (tmp_path / "movies.dat").write_bytes((MOVIES_DAT + "\n10::Other::Drama\n").encode())
    with pytest.raises(DataError, match=r"movies\.dat:6: movie 10 stands in an earlier line"):
        load_movielens(tmp_path)
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,1,3,4\n")
    (tmp_path / "movies.csv").write_bytes("\ufeffmovieId,title,genres\r\n\r\n1,A,Drama\r\n1,B,Drama\r\n".encode())
    with pytest.raises(DataError, match=r"movies\.csv:4: movie 1 stands"):
        load_movielens(tmp_path / "ratings.csv")


def test_a_csv_error_counts_the_header_line(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,1,3,4\n1,2,9,4\n")
    with pytest.raises(DataError, match=r"ratings\.csv: .*value outside \[0\.5, 5\] .*: line 3"):
        load_movielens(tmp_path / "ratings.csv")
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,1,3,4\n1,2,x,4\n")
    with pytest.raises(DataError, match=r"ratings\.csv: .*no number as a value .*: line 3"):
        load_movielens(tmp_path / "ratings.csv")
    assert load(tmp_path, on_error="skip").n_ratings == 1
    (tmp_path / "ratings.csv").write_text("user,item\n1,1\n")
    with pytest.raises(DataError, match=r"ratings\.csv:1: expected the header line"):
        load_movielens(tmp_path / "ratings.csv")


def test_a_cut_gzip_file_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ratings.dat.gz").write_bytes(gzip.compress(DAT.encode() * 50)[:-9])
    with pytest.raises(DataError, match=r"ratings\.dat\.gz: cannot be read"):
        load_movielens(tmp_path)
    (tmp_path / "ratings.dat.gz").unlink()
    with pytest.raises(DataError, match=r"no MovieLens files; expected ratings\.dat"):
        load_movielens(tmp_path)
    with pytest.raises(DataError, match="no MovieLens files"):
        load_movielens(tmp_path)


def test_the_array_form_without_an_array_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "ratings.npz", user=np.ones(2), rating_halfstars=np.ones(2))
    with pytest.raises(DataError, match="expected an npz file with user, item"):
        load_movielens(tmp_path)


@pytest.mark.parametrize(
    ("folder", "ratings", "users", "items", "genres", "mean"),
    [
        ("ml-1m", 1_000_209, 6_040, 3_706, 18, 3.581564),
        ("ml-100k", 100_000, 943, 1_682, 19, 3.52986),
        ("ml-latest-small", 100_836, 610, 9_724, 19, 3.501557),
    ],
)
def test_the_real_files_have_their_published_counts(
    shared_data: Path, folder: str, ratings: int, users: int, items: int, genres: int, mean: float
) -> None:
    loaded = load(shared_data / folder)
    assert (loaded.n_ratings, loaded.n_users, loaded.n_items, loaded.duplicates) == (ratings, users, items, 0)
    assert loaded.features is not None
    assert loaded.features.shape == (items, genres)
    assert loaded.titles is not None
    assert loaded.titles[0] == "Toy Story (1995)"
    assert float(loaded.values.mean(dtype=np.float64)) == pytest.approx(mean, abs=1e-5)
    assert int(loaded.counts().min()) >= 20


def test_the_real_ml_1m_is_the_same_in_both_forms(shared_data: Path, tmp_path: Path) -> None:
    with np.load(shared_data / "ml-1m" / "ratings.npz") as file:
        kept = file["user"] <= 500
        columns = np.stack(
            [file["user"][kept], file["item"][kept], file["rating_halfstars"][kept] // 2, file["timestamp"][kept]],
            axis=1,
        )
    (tmp_path / "ratings.dat").write_text("".join("::".join(map(str, row)) + "\n" for row in columns.tolist()))
    text = load(tmp_path)
    arrays = load(shared_data / "ml-1m").select_users(np.arange(500))
    assert text.n_ratings == arrays.n_ratings > 50_000
    assert text.offsets.tolist() == arrays.offsets.tolist()
    assert text.item_ids is not None
    assert arrays.item_ids is not None
    assert np.array_equal(text.item_ids[text.items], arrays.item_ids[arrays.items])
    assert np.array_equal(text.values, arrays.values)
    assert text.order is not None
    assert arrays.order is not None
    assert np.array_equal(text.order, arrays.order)


def test_a_quote_in_a_title_joins_no_lines_of_a_movie_file_in_silence(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,1,3,4\n1,5,3,4\n")
    movies = tmp_path / "movies.csv"
    movies.write_text('movieId,title,genres\n1,"Quote begins,Drama\n3,X,War\n4,it ends" here,War\n5,Y,War\n')
    with pytest.raises(DataError, match=r"movies\.csv"):
        load_movielens(tmp_path / "ratings.csv", whole_catalogue=True)
    movies.write_text('movieId,title,genres\n1,"Two\nlines",Drama\n5,Y,War\n')
    ratings = load_movielens(tmp_path / "ratings.csv")
    assert ratings.titles == ("Two\nlines", "Y")
    assert "1 lines go on in the next one, inside of quotes (the first is line 2)" in ratings.notes
    movies.write_bytes("movieId,title,genres\n1,Amélie,Drama\n5,Y,War\n".encode("utf-16"))
    assert load_movielens(tmp_path / "ratings.csv").titles == ("Amélie", "Y")
