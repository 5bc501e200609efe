"""Derivatives for SciPy: operators and optimizers, on trees and modules."""

import doctest

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares, minimize
from scipy.sparse.linalg import cg, eigsh, lsmr

import covector
import covector.scipy
from covector.errors import ArgumentTypeError, ArgumentValueError, OutputError
from covector.scipy import hessian_operator, jacobian_operator, objective, residuals
from forked import printed
from watched import Counted

generator = torch.Generator().manual_seed(0)
W = torch.randn(7, 4, dtype=torch.float64, generator=generator)
x = torch.randn(4, dtype=torch.float64, generator=generator)


def layer(x):
    return torch.tanh(W @ x)


def bowl(x):
    return layer(x).pow(2).sum() + (x**4).sum() + x @ x


def rosenbrock(x):
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


@pytest.mark.parametrize("name", covector.scipy.__all__[2:])
def test_docstring_example(name):
    results = doctest.DocTestRunner(verbose=False)
    function = getattr(covector.scipy, name)
    for test in doctest.DocTestFinder().find(function, name, globs={}):
        results.run(test)
    assert results.tries > 0
    assert results.failures == 0


def test_an_operator_of_a_function_that_changes_its_shape():
    """The run for the shape of the operator and the one for its products are compared."""
    counted = Counted(lambda x: x.repeat(counted.runs))
    operator = jacobian_operator(counted, x)
    with pytest.raises(OutputError, match=r"shapes \[\(4,\)\] when the operator was made, and \[\(8,\)\]"):
        operator @ np.ones(4)


def test_jacobian_operator():
    """Products with vectors and matrices, from both sides, are those of the matrix."""
    dense = covector.jacrev(layer)(x).numpy()
    operator = jacobian_operator(layer, x)
    assert operator.shape == (7, 4)
    assert operator.dtype == np.float64
    rng = np.random.default_rng(0)
    u, v, U, V = rng.normal(size=4), rng.normal(size=7), rng.normal(size=(4, 3)), rng.normal(size=(7, 2))
    np.testing.assert_allclose(operator @ u, dense @ u)
    np.testing.assert_allclose(operator.rmatvec(v), dense.T @ v)
    np.testing.assert_allclose(operator @ U, dense @ U)
    np.testing.assert_allclose(operator.rmatmat(V), dense.T @ V)
    np.testing.assert_allclose(operator.T @ V, dense.T @ V)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complex_vectors(dtype):
    """A real operator acts on both parts, from both sides, on vectors and matrices."""
    at = x.to(dtype)
    weights = W.to(dtype)
    f = lambda x: torch.tanh(weights @ x)
    rng = np.random.default_rng(0)
    draw = lambda *size: rng.normal(size=size) + 1j * rng.normal(size=size)
    u, v, U, V = draw(4), draw(7), draw(4, 3), draw(7, 2)
    close = lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-4)
    dense, operator = covector.jacrev(f)(at).numpy(), jacobian_operator(f, at)
    close(operator @ u, dense @ u)
    close(operator @ U, dense @ U)
    close(operator.rmatvec(v), dense.T @ v)
    close(operator.rmatmat(V), dense.T @ V)
    g = lambda x: f(x).pow(2).sum()
    dense, operator = covector.hessian(g)(at).numpy(), hessian_operator(g, at)
    close(operator @ u, dense @ u)
    close(operator @ U, dense @ U)
    close(operator.rmatvec(u), dense @ u)
    problem = objective(g, at)
    close(problem.hessp(problem.x0, u), dense @ u)


def test_complex_points_are_refused():
    for problem in (objective(bowl, x), residuals(layer, x)):
        with pytest.raises(ArgumentTypeError, match="a vector of real numbers was expected, got complex"):
            problem.fun(problem.x0 * 1j)


def test_bfloat16():
    """NumPy does not have it: arrays are float32."""
    at = torch.tensor([1.0, 2.0, 4.0], dtype=torch.bfloat16)
    operator = jacobian_operator(lambda a: a**2, at)
    assert operator.dtype == np.float32
    assert (operator @ np.ones(3)).tolist() == [2, 4, 8]
    assert operator.rmatvec(np.ones(3)).tolist() == [2, 4, 8]
    assert (operator @ np.eye(3)).tolist() == np.diag([2.0, 4.0, 8.0]).tolist()
    assert (hessian_operator(lambda a: (a**2).sum(), at) @ np.ones(3)).tolist() == [2, 2, 2]
    assert objective(lambda a: (a**2).sum(), at).jac([1, 2, 4]).tolist() == [2, 4, 8]
    assert residuals(lambda a: a**2, at).fun([1, 2, 4]).tolist() == [1, 4, 16]


def test_lsmr():
    solution = lsmr(jacobian_operator(layer, x), np.ones(7))[0]
    expected = np.linalg.lstsq(covector.jacrev(layer)(x).numpy(), np.ones(7), rcond=None)[0]
    np.testing.assert_allclose(solution, expected, rtol=1e-4)


def test_eigsh_and_cg():
    dense = covector.hessian(bowl)(x).numpy()
    operator = hessian_operator(bowl, x)
    np.testing.assert_allclose(operator @ np.eye(4), dense)
    np.testing.assert_allclose(eigsh(operator, k=1)[0], np.linalg.eigvalsh(dense)[-1:])
    convex = hessian_operator(lambda x: (x**4).sum() + x @ x, x)
    solution, info = cg(convex, np.ones(4), rtol=1e-10)
    assert info == 0
    np.testing.assert_allclose(convex @ solution, np.ones(4))


def test_operators_of_trees():
    """Vectors hold the tensors one after the other; complex ones as real and imaginary parts."""
    operator = jacobian_operator(lambda p: {"y": p["a"] * p["b"].sum()}, {"a": x, "b": x[:2]})
    assert operator.shape == (4, 6)
    image = operator @ np.r_[np.ones(4), np.zeros(2)]
    np.testing.assert_allclose(image, np.full(4, float(x[:2].sum())))
    z = torch.tensor([1.0 + 2.0j], dtype=torch.complex128)
    np.testing.assert_allclose(jacobian_operator(lambda z: z**2, z) @ np.eye(2), [[2.0, -4.0], [4.0, 2.0]])


def test_operators_of_single_precision():
    operator = jacobian_operator(lambda x: x**2, x.float())
    assert operator.dtype == np.float32
    np.testing.assert_allclose(operator @ np.ones(4), 2 * x.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "keys"),
    [("BFGS", ["jac"]), ("L-BFGS-B", ["jac"]), ("Newton-CG", ["jac", "hessp"]),
     ("trust-exact", ["jac", "hess"]), ("trust-ncg", ["jac", "hessp"]), ("trust-krylov", ["jac", "hessp"])],
)  # fmt: skip
def test_rosenbrock(method, keys):
    """Every way through the valley ends at one."""
    problem = objective(rosenbrock, torch.tensor([-1.2, 1.0, 0.5], dtype=torch.float64))
    found = minimize(problem.fun, problem.x0, method=method, **{key: getattr(problem, key) for key in keys})
    assert found.success, found.message
    np.testing.assert_allclose(found.x, np.ones(3), atol=1e-4)


def test_objective_is_exact_and_runs_once_per_point():
    counted = Counted(bowl)
    problem = objective(counted, x)
    at = problem.x0 + 0.1
    assert problem.fun(at) == float(bowl(torch.from_numpy(at)))
    np.testing.assert_allclose(problem.jac(at), covector.grad(bowl)(torch.from_numpy(at)).numpy())
    assert counted.runs == 1
    np.testing.assert_allclose(problem.hess(at), covector.hessian(bowl)(torch.from_numpy(at)).numpy())
    np.testing.assert_allclose(problem.hessp(at, np.ones(4)), problem.hess(at) @ np.ones(4))
    assert counted.runs == 2
    gradient = problem.jac(at)
    gradient[:] = 0
    assert problem.jac(at).any()


def test_module_fit():
    """A network, trained by BFGS on its flat parameters; the ones given stay as they were."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    fn, params = covector.as_function(model)
    inputs = torch.linspace(-2, 2, 30, dtype=torch.float64)[:, None]
    targets = torch.sin(inputs)
    before = {name: p.clone() for name, p in params.items()}
    problem = objective(lambda p: (fn(p, inputs) - targets).pow(2).mean(), params)
    found = minimize(problem.fun, problem.x0, jac=problem.jac, method="BFGS", options={"maxiter": 300})
    fitted = problem.tree(found.x)
    assert list(fitted) == list(params)
    assert (fn(fitted, inputs) - targets).abs().max() < 0.05
    for name, p in params.items():
        assert torch.equal(p, before[name])


def decay(p, times):
    return p["amplitude"] * torch.exp(-p["rate"] * times) + p["offset"]


@pytest.mark.parametrize("jac", ["matrix", "operator"])
def test_least_squares_fit(jac):
    """The parameters of a decay are found from its values, with the matrix and without."""
    times = torch.linspace(0, 4, 40, dtype=torch.float64)
    truth = {
        name: torch.tensor(v, dtype=torch.float64)
        for name, v in (("amplitude", 2.5), ("rate", 1.3), ("offset", 0.5))
    }
    data = decay(truth, times)
    start = {name: torch.ones((), dtype=torch.float64) for name in truth}
    problem = residuals(lambda p: decay(p, times) - data, start)
    if jac == "matrix":
        found = least_squares(problem.fun, problem.x0, problem.jac)
        np.testing.assert_allclose(problem.jac(found.x), problem.operator(found.x) @ np.eye(3))
    else:
        found = least_squares(problem.fun, problem.x0, problem.operator, tr_solver="lsmr")
    fitted = problem.tree(found.x)
    for name, value in truth.items():
        torch.testing.assert_close(fitted[name], value, rtol=1e-5, atol=1e-6)


def test_mistakes():
    with pytest.raises(ArgumentTypeError, match="objective: the first argument must be a function"):
        objective(3, x)
    with pytest.raises(ArgumentTypeError, match=r"residuals\(layer\): can only differentiate by tensors"):
        residuals(layer, 3.0)
    with pytest.raises(ArgumentValueError, match="a vector of 4 numbers was expected, as x0 has, got 3"):
        objective(bowl, x).fun(np.ones(3))
    with pytest.raises(OutputError, match=r"objective\(layer\): the function must return a scalar"):
        objective(layer, x).fun(x.numpy())
    with pytest.raises(OutputError, match="must return a scalar"):
        hessian_operator(layer, x)


def test_scipy_is_loaded_late():
    code = "import sys, covector, covector.scipy; print('scipy' in sys.modules)"
    assert printed(code) == "False\n"
