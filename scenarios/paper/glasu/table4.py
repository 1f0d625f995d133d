"""Table 4: time and bytes to a test accuracy with Q = 1, 2, 4, 8 and 16 local updates, over the US-UK link.

python scenarios/paper/glasu/table4.py --data cora [--seeds 0,1,2,3,4] [--full]

Every Q is tried at as many steps, larger ones than those that are best in the end: what counts here is how soon the
target is reached. The ratios are of each Q's quickest step to that of Q = 1.
"""

from _study import asked, glasu, measure

from fedactors.records.compare import median_spent, ratio_row
from fedactors.records.table import RunRow

RATES = {
    1: (0.01, 0.02, 0.04, 0.08),
    2: (0.004, 0.008, 0.016, 0.032),
    4: (0.002, 0.004, 0.008, 0.016),
    8: (0.001, 0.002, 0.004, 0.008),
    16: (0.0005, 0.001, 0.002, 0.004),
}
ROWS = {f"Q={q:02d}-rate={rate}": glasu(q, learning_rate=rate) for q, rates in RATES.items() for rate in rates}
COLUMNS = ("seconds_to_target", "megabytes_to_target")

if __name__ == "__main__":
    given = asked(__doc__)
    # after 16 rounds a run that has not reached the target is censored
    measure(given, "table4", ROWS, target={"cora": 0.80, "pubmed": 0.82}, evaluate_every=2, num_rounds=16)
    for column in COLUMNS:

        def spent(row: RunRow, column: str = column) -> float | None:
            return row.metrics.get(column)  # it has none where the target was not reached

        quickest = {}
        for q, rates in RATES.items():
            found = {rate: given.rows(given.study("table4"), f"Q={q:02d}-rate={rate}") for rate in rates}
            if all(found.values()):
                rate = min(rates, key=lambda rate: median_spent(found[rate], spent))
                quickest[f"Q={q:02d}-rate={rate}"] = found[rate]
        first = next(iter(quickest), "")
        for name, rows in quickest.items():
            ratio = ratio_row(rows, quickest[first], spent)
            given.put(given.study(f"table4-{column.partition('_')[0]}"), f"{name} over {first}", [ratio])
