"""VFL-SGD and VFL-ADMM: the same operators on vertical slices of the joined table (Section 6.1).

Every client materialises its slice x_i[p_i(j)] of all N joined rows, for which it has to be told p_i: traditional
vertical FL assumes rows that are joined already. From then on row j is row j in every table and nothing is reduced.
"""

from __future__ import annotations

import numpy as np

from protocols.tablepuppet.join import JoinSplit


def vertical_slices(split: JoinSplit) -> JoinSplit:
    """Return the join as every table's own rows: N rows each, in the order of the join."""
    num_tables, num_train, num_test = len(split.train), len(split.train[0]), len(split.test[0])
    train, test = (np.arange(count, dtype=np.int32) for count in (num_train, num_test))
    return JoinSplit((train,) * num_tables, (test,) * num_tables, (num_train,) * num_tables)
