"""What `make test` leaves to `make sweep` meets everything by pairs all the same."""

from itertools import combinations, product

import pytest

from covering import design, paired


@pytest.mark.parametrize(
    "sizes", [(5, 2, 2, 2), (4, 3, 2), (2, 2, 2), (3, 3, 3, 3), (7, 1, 2), (2, 9), (3,), (2, 3, 5)], ids=str
)
def test_every_two_values_of_two_factors_meet(sizes: tuple[int, ...]) -> None:
    """In few rows: hardly more than the two largest factors have together."""
    rows = design(sizes)
    for one, other in combinations(range(len(sizes)), 2):
        met = {(row[one], row[other]) for row in rows}
        assert met == set(product(range(sizes[one]), range(sizes[other])))
    largest = sorted(sizes)[-2:]
    assert len(rows) <= 1.5 * largest[0] * largest[-1]


def test_what_is_not_chosen_is_left_to_the_sweep() -> None:
    """Nothing of the product is lost."""
    rows = paired("abcd", (False, True), (0, 1, 2))
    assert [row.values for row in rows] == list(product("abcd", (False, True), (0, 1, 2)))
    assert {tuple(mark.name for mark in row.marks) for row in rows} == {(), ("sweep",)}
    assert len([row for row in rows if not row.marks]) == len(design((4, 2, 3)))
