"""Relational data sets as Arrow tables: MovieLens 1M, nycflights13, and a generated shop of any size."""

from __future__ import annotations

import functools
import zipfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from fedactors.data.catalogue import Dataset, describe
from fedactors.data.storage import locate
from fedactors.errors import BadInput

_LATE_MINUTES = 15


@functools.lru_cache(maxsize=2)
def load_tables(name: str) -> dict[str, pa.Table]:
    """Load the tables of a relational data set by their names; repeated calls in one process share them.

    Raises:
        BadInput: unknown name, or a file that does not hold what the catalogue states.
        DataMissing: a file is not on this machine.
    """
    dataset = describe(name)
    base = dataset.name.partition(":")[0]
    if base == "movielens-1m":
        made, fact = _movielens(), "ratings"
    elif base == "nycflights13":
        made, fact = _flights(), "flights"
    elif base == "orders":
        made, fact = _orders(dataset), "orders"
    else:
        raise BadInput(f"data: {name!r} is of kind {dataset.kind}; a data set of several tables is needed here")
    if made[fact].num_rows != dataset.rows:
        raise BadInput(f"{name}: {fact} holds {made[fact].num_rows} rows, expected {dataset.rows}")
    return made


def _movielens() -> dict[str, pa.Table]:
    """Read ratings (three or four fields), users, and movies with one row per genre."""
    with zipfile.ZipFile(locate("movielens-1m", "movielens-1m/ml-1m.zip")) as archive:
        with archive.open("ml-1m/ratings.dat") as stream:
            ratings = _double_colons(stream, ("user_id", "movie_id", "rating", "timestamp"))
        with archive.open("ml-1m/users.dat") as stream:
            users = _double_colons(stream, ("user_id", "gender", "age", "occupation", "zip"))
        lines = archive.read("ml-1m/movies.dat").decode("latin-1").splitlines()
    ids: list[int] = []
    titles: list[str] = []
    years: list[int] = []
    genres: list[str] = []
    for line in lines:
        movie, title, kinds = line.split("::")
        for genre in kinds.split("|"):
            ids.append(int(movie))
            titles.append(title)
            years.append(int(title.rstrip()[-5:-1]))
            genres.append(genre)
    movies = pa.table({"movie_id": ids, "title": titles, "year": years, "genre": genres})
    return {"ratings": ratings, "users": users, "movies": movies}


def _double_colons(stream: Any, names: tuple[str, ...]) -> pa.Table:
    """Read ``a::b::c``: to a parser with the delimiter ``:`` every second field is empty."""
    table = pa_csv.read_csv(
        stream,
        read_options=pa_csv.ReadOptions(autogenerate_column_names=True, encoding="latin-1"),
        parse_options=pa_csv.ParseOptions(delimiter=":", quote_char=False),
        convert_options=pa_csv.ConvertOptions(column_types={"f8": pa.string()}),
    )
    kept = table.select(list(range(0, table.num_columns, 2)))
    return kept.rename_columns(list(names[: kept.num_columns]))


def _flights() -> dict[str, pa.Table]:
    """Read the five tables; flights get `late` (arrival 15 minutes late or more; null where it never arrived)."""
    made: dict[str, pa.Table] = {}
    for table in ("flights", "airlines", "airports", "planes", "weather"):
        with pa.input_stream(str(locate("nycflights13", f"nycflights13/{table}.csv.gz")), compression="gzip") as stream:
            read = pa_csv.read_csv(
                stream,
                convert_options=pa_csv.ConvertOptions(
                    null_values=["", "NA"], strings_can_be_null=True, column_types={"flight": pa.int64()}
                ),
            )
        made[table] = read.drop_columns([c for c in ("rownames", "") if c in read.column_names])
    import pyarrow.compute as pc

    flights = made["flights"]
    for whole in ("hour", "minute"):  # written 5.0; the weather's hour, its partner in a join, is written 5
        flights = flights.set_column(flights.column_names.index(whole), whole, pc.cast(flights[whole], pa.int64()))
    late = pc.cast(pc.greater_equal(flights["arr_delay"], _LATE_MINUTES), pa.int64())
    made["flights"] = flights.append_column("late", late)
    return made


def _orders(dataset: Dataset) -> dict[str, pa.Table]:
    """Make orders (key order_id, card_id; label returned), items (several of an order) and cards (one per customer).

    A tenth of the cards have no order and some items belong to orders that are not here, so that joins drop rows. The
    label depends on columns of all three tables.
    """
    rng = np.random.default_rng(0)
    num_orders = dataset.rows
    num_cards = max(2, num_orders // 5)
    card = rng.integers(0, max(1, num_cards * 9 // 10), num_orders)
    limit = rng.normal(0, 1, num_cards)
    age = rng.integers(18, 90, num_cards)
    amount = rng.normal(0, 1, num_orders)
    hour = rng.integers(0, 24, num_orders)
    counts = 1 + rng.poisson(1.5, num_orders)
    item_order = np.concatenate([np.repeat(np.arange(num_orders), counts), num_orders + np.arange(num_orders // 50)])
    weight = rng.normal(0, 1, len(item_order))
    price = rng.gamma(2.0, 1.0, len(item_order))
    inside = item_order < num_orders
    load = np.bincount(item_order[inside], weight[inside], minlength=num_orders) / counts
    score = 1.2 * amount + 1.0 * limit[card] + 1.5 * load + 0.3 * (hour > 20)
    returned = (rng.random(num_orders) < 1 / (1 + np.exp(-2 * score))).astype(np.int64)
    orders = {"order_id": np.arange(num_orders), "card_id": card, "amount": amount, "hour": hour, "returned": returned}
    items = {"order_id": item_order, "weight": weight, "price": price}
    cards = {"card_id": np.arange(num_cards), "credit_limit": limit, "age": age}
    return {"orders": pa.table(orders), "items": pa.table(items), "cards": pa.table(cards)}
