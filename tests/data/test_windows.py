"""Windows of a table: neighbours alone, of one class and one owner."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from data.number_tables import cut, windows_of


def test_windows_end_where_the_label_or_the_owner_changes() -> None:
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])
    owners = np.array(["a", "a", "a", "a", "a", "a", "b", "b", "b"])
    assert windows_of(9, 2).starts.tolist() == [0, 2, 4, 6]
    assert windows_of(9, 2, [labels]).starts.tolist() == [0, 2, 5, 7]
    assert windows_of(9, 2, [labels, owners]).starts.tolist() == [0, 2, 6]
    assert windows_of(9, 3, [labels, owners]).starts.tolist() == [0, 6]
    assert windows_of(9, 6, [labels, owners]).starts.tolist() == []


def test_a_window_of_one_is_a_row() -> None:
    assert windows_of(4, 1, [np.array([0, 1, 1, 0])]).starts.tolist() == [0, 1, 2, 3]
    assert windows_of(0, 1).starts.tolist() == []


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=40), st.integers(1, 5))
def test_windows_share_no_row_and_take_all_that_fit(
    rows: list[tuple[int, int]], window: int
) -> None:
    keys = [np.array([row[place] for row in rows], int) for place in (0, 1)]
    starts = windows_of(len(rows), window, keys).starts.tolist()
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
    series = cut(numbers, np.array([0, 3]), 3)
    assert series.tolist() == [[[0, 2, 4], [1, 3, 5]], [[6, 8, 10], [7, 9, 11]]]
    assert series.dtype == np.float32


def test_windows_know_the_run_of_rows_that_they_are_in() -> None:
    found = windows_of(7, 2, [np.array([0, 0, 0, 0, 1, 0, 0])])
    assert found.starts.tolist() == [0, 2, 5]
    assert found.runs.tolist() == [0, 0, 2]
