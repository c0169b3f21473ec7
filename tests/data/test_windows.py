"""Windows of a table: neighbours alone, of one class and one owner."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data.windows import window_starts, windows


def test_windows_end_where_the_label_or_the_owner_changes() -> None:
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])
    owners = np.array(["a", "a", "a", "a", "a", "a", "b", "b", "b"])
    assert window_starts(9, 2).tolist() == [0, 2, 4, 6]
    assert window_starts(9, 2, [labels]).tolist() == [0, 2, 5, 7]
    assert window_starts(9, 2, [labels, owners]).tolist() == [0, 2, 6]
    assert window_starts(9, 3, [labels, owners]).tolist() == [0, 6]
    assert window_starts(9, 6, [labels, owners]).tolist() == []


def test_a_window_of_one_is_a_row() -> None:
    assert window_starts(4, 1, [np.array([0, 1, 1, 0])]).tolist() == [0, 1, 2, 3]
    assert window_starts(0, 1).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=40), st.integers(1, 5))
def test_windows_share_no_row_and_take_all_that_fit(
    rows: list[tuple[int, int]], window: int
) -> None:
    keys = [np.array([row[place] for row in rows], int) for place in (0, 1)]
    starts = window_starts(len(rows), window, keys).tolist()
    covered = [row for start in starts for row in range(start, start + window)]
    assert len(covered) == len(set(covered))
    assert all(len(set(rows[start : start + window])) == 1 for start in starts)
    expected, row = 0, 0
    while row < len(rows):  # one run of equal rows after the other
        end = row
        while end < len(rows) and rows[end] == rows[row]:
            end += 1
        expected, row = expected + (end - row) // window, end
    assert len(starts) == expected


def test_columns_become_channels_and_rows_steps() -> None:
    numbers = np.arange(12, dtype=np.float32).reshape(6, 2)
    cut = windows(numbers, np.array([0, 3]), 3)
    assert cut.tolist() == [[[0, 2, 4], [1, 3, 5]], [[6, 8, 10], [7, 9, 11]]]
    assert cut.dtype == np.float32
