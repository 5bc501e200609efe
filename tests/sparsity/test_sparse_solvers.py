"""SciPy's solvers with sparse derivatives: the examples reach what solvers without them reach."""

import runpy
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "sparse_solvers.py"))


def test_an_implicit_method_with_a_sparse_jacobian():
    """The Brusselator: the state is that of differences, which take 128 runs for each Jacobian."""
    solution = EXAMPLES["brusselator"](8, 0.5)
    assert solution.success
    by_differences = EXAMPLES["brusselator"](8, 0.5, jac=None)
    np.testing.assert_allclose(solution.y[:, -1], by_differences.y[:, -1], rtol=1e-4)
    assert solution.njev == by_differences.njev


def test_least_squares_of_cameras_and_points():
    """The misfit comes down to the noise that was added."""
    found, spread = EXAMPLES["adjust_bundle"](4, 30, 3, noise=1e-3)
    assert found.success
    assert spread < 1e-3
    # Both coordinates of an observation depend on a point and, unless it is the fixed one, on a camera.
    fixed = 2 * 23
    assert found.jac.shape == (180, 111)
    assert found.jac.nnz == 180 * 3 + (180 - fixed) * 7


def test_a_nonlinear_system_with_a_preconditioner():
    found = EXAMPLES["stationary"](15)
    assert found.success
    assert np.abs(found.fun).max() < 1e-7
    assert found.x.max() == pytest.approx(0.078, abs=0.01)


def test_a_constrained_minimum_with_a_sparse_hessian():
    found = EXAMPLES["constrained_chain"](12)
    assert found.success
    assert found.x.sum() == pytest.approx(9.0)
    assert found.optimality < 1e-6
