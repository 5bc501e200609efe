"""Everything that a lens varies is really varied: a kernel that is wrong in that one way is caught there."""

import pytest

import covector
from kernel_careless import TABLE, inputs_of


@pytest.mark.parametrize("entry", TABLE, ids=str)
def test_what_a_lens_varies(entry):
    """The row of that way has failed, and the kernel as it was given has not."""
    report = covector.check_kernel(entry.kernel, entry.reference, inputs_of(entry), lenses=[entry.lens])
    status = {row[1]: row[3] for row in report.tables[1].rows}
    assert report.findings[0].check == "as given"
    assert report.findings[0].outcome == "passed", report
    assert any(way.startswith(entry.way) or entry.way in way for way, s in status.items() if s == "failed"), (
        report
    )
