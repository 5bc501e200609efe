"""For SciPy: derivatives as linear operators, and functions of trees as functions of flat vectors.

`jacobian_operator` and `hessian_operator` are derivatives at a point for `scipy.sparse.linalg`;
`objective` and `residuals` are what `scipy.optimize` wants. SciPy is loaded when one of them is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from covector._chart import Chart, real_dtype
from covector._engine.levels import bare
from covector._linear import Linearized, LinearMap, Pullback
from covector._tree import Arguments, select_all
from covector.errors import ArgumentTypeError, ArgumentValueError, Caller, OutputError
from covector.transforms._door import (
    accept_differentiable,
    check_function,
    check_primals,
    runner,
)
from covector.transforms._second import Gradient, reverse_first

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from scipy.sparse.linalg import LinearOperator

    Vector = NDArray[np.float64]

__all__ = ["Objective", "Residuals", "hessian_operator", "jacobian_operator", "objective", "residuals"]


def jacobian_operator(func: Callable[..., Any], *primals: Any) -> LinearOperator:
    """The Jacobian of a function at the primals as a `scipy.sparse.linalg.LinearOperator`.

    The function runs here, and once more at the first `matvec`, which is u -> J u; `rmatvec` is
    v -> J^T v, and `matmat` and `rmatmat` apply a batch. Vectors hold the elements of the tensors one
    after the other, complex ones as real and imaginary part. The operator is real: of a complex vector
    it takes both parts. Where tensors are bfloat16, which NumPy lacks, the arrays are float32.

    Args:
        func: takes the primals, returns a tree of tensors.
        primals: trees of tensors.

    Returns:
        An operator of shape (elements of the output, elements of the primals).

    Raises:
        ArgumentTypeError: a primal holds something that cannot be differentiated by.
        OutputError: `func` returned something other than floating-point or complex tensors, or (at the
            first `matvec`) other shapes than before.

    Example:
        >>> import torch
        >>> from covector.scipy import jacobian_operator
        >>> operator = jacobian_operator(lambda x: x**2, torch.tensor([1.0, 2.0]))
        >>> operator @ [1.0, 10.0]
        array([ 2., 40.], dtype=float32)
    """
    caller = check_function("jacobian_operator", func)
    arguments = check_primals(caller, select_all(primals))
    run = runner(caller, arguments, accept_differentiable, has_aux=False)
    pullback = Pullback.of(caller, run, arguments)
    inputs, outputs = Chart.of(arguments.primals()), Chart.of(pullback.evaluation.outputs)

    def linearized() -> Linearized:
        made = Linearized(caller, run, arguments)
        shapes = [[tuple(t.shape) for t in one.evaluation.outputs] for one in (pullback, made)]
        if shapes[0] != shapes[1]:
            raise OutputError(
                f"{caller}: the function returned tensors of shapes {shapes[0]} when the operator was made, "
                f"and {shapes[1]} at its first product, so it has no one Jacobian. Give one that returns the "
                "same shapes at every run."
            )
        return made

    return _operator(_Flat(_Lazily(linearized), inputs, outputs), _Flat(lambda: pullback, outputs, inputs))


def hessian_operator(func: Callable[..., Any], *primals: Any) -> LinearOperator:
    """The Hessian of a scalar function at the primals as a `scipy.sparse.linalg.LinearOperator`.

    The function runs once, here. The operator is symmetric; each product is one pullback through the
    gradient, and `matmat` does a batch of them.

    Args:
        func: takes the primals, returns one real tensor of shape ().
        primals: trees of tensors.

    Returns:
        A square operator, whose size is the number of elements of the primals.

    Raises:
        ArgumentTypeError: a primal holds something that cannot be differentiated by.
        OutputError: `func` did not return a real scalar.

    Example:
        >>> import torch
        >>> from covector.scipy import hessian_operator
        >>> operator = hessian_operator(lambda x: (x**3).sum(), torch.tensor([1.0, 2.0]))
        >>> operator @ [1.0, 10.0]
        array([  6., 120.], dtype=float32)
    """
    caller = check_function("hessian_operator", func)
    arguments = check_primals(caller, select_all(primals))
    product = _hessian_map(Gradient.of(caller, arguments))
    chart = Chart.of(arguments.primals())
    flat = _Flat(lambda: product, chart, chart)
    return _operator(flat, flat)


def _hessian_map(gradient: Gradient) -> LinearMap:
    """H as a map; the first product decides which way it goes."""

    def tried(derivative: LinearMap) -> LinearMap:
        derivative.apply([torch.zeros_like(primal) for primal in gradient.arguments.primals()])
        return derivative

    return reverse_first(lambda: tried(gradient.pullback()), lambda: tried(gradient.pushforward()))


class _Lazily:
    """Something that is made when it is first asked for."""

    def __init__(self, make: Callable[[], LinearMap]) -> None:
        self._make = make
        self._made: LinearMap | None = None

    def __call__(self) -> LinearMap:
        if self._made is None:
            self._made = self._make()
        return self._made


class _Flat:
    """A linear map between NumPy vectors."""

    def __init__(self, derivative: Callable[[], LinearMap], source: Chart, target: Chart) -> None:
        self._derivative = derivative
        self.source = source
        self.target = target

    def vector(self, vector: Any) -> Any:
        """The image of one vector; of a complex one, that of its parts, as the map is real."""
        if _is_complex(vector):
            return _by_parts(self.vector, vector)
        images = self._derivative().apply(self.source.from_coords(_tensor(vector).reshape(-1)))
        return _array(self.target.to_coords(images))

    def matrix(self, matrix: Any) -> Any:
        """The images of the columns of a matrix, as columns; of a complex one, those of its parts."""
        if _is_complex(matrix):
            return _by_parts(self.matrix, matrix)
        stacks = self.source.from_coords(_tensor(matrix).T.contiguous())
        images = self._derivative().apply_batch(stacks)
        return _array(self.target.stack_to_coords(images)).T


def _operator(forward: _Flat, backward: _Flat) -> LinearOperator:
    from scipy.sparse.linalg import LinearOperator

    return LinearOperator(
        shape=(forward.target.size, forward.source.size),
        matvec=forward.vector,
        rmatvec=backward.vector,
        matmat=forward.matrix,
        rmatmat=backward.matrix,
        dtype=_array(torch.zeros(0, dtype=_dtype(forward.target, forward.source))).dtype,
    )


def _dtype(*charts: Chart) -> torch.dtype:
    dtype = real_dtype(charts[0].places[0].dtype)
    for chart in charts:
        for place in chart.places:
            dtype = torch.promote_types(dtype, real_dtype(place.dtype))
    return dtype


def _tensor(array: Any) -> Tensor:
    """A NumPy array, or what can become one, as a tensor of its own."""
    import numpy as np

    return torch.from_numpy(np.array(array, dtype=np.float64))


def _array(tensor: Tensor) -> Any:
    """A tensor as a NumPy array; NumPy has no bfloat16, so that becomes float32."""
    plain = bare(tensor).detach()
    return (plain.float() if plain.dtype is torch.bfloat16 else plain).numpy(force=True)


def _is_complex(array: Any) -> bool:
    import numpy as np

    return bool(np.iscomplexobj(array))


def _by_parts(apply: Callable[[Any], Any], array: Any) -> Any:
    """A real linear map applied to the real and to the imaginary part."""
    import numpy as np

    return apply(np.real(array)) + 1j * apply(np.imag(array))


class _OfVectors:
    """A function of trees as one of flat vectors; the last point is remembered."""

    def __init__(self, caller: Caller, primals: tuple[Any, ...]) -> None:
        self._caller = caller
        self._arguments = check_primals(caller, select_all(primals))
        self._chart = Chart.of(self._arguments.primals())
        self._point: bytes | None = None
        self._known: dict[str, Any] = {}
        self.x0: Vector = _array(self._chart.to_coords(self._arguments.primals())).astype("float64")

    def tree(self, x: Vector) -> Any:
        """The argument, or the tuple of arguments, whose elements a flat vector holds."""
        trees = self._at(x).tree_of(self._chart.from_coords(self._flat(x)))
        return trees[0] if len(trees) == 1 else trees

    def _flat(self, x: Vector) -> Tensor:
        if _is_complex(x):
            raise ArgumentTypeError(
                f"{self._caller}: a vector of real numbers was expected, got complex ones. Complex tensors "
                "stand in it as real and imaginary part, as in x0."
            )
        flat = _tensor(x).reshape(-1)
        if flat.numel() != self._chart.size:
            raise ArgumentValueError(
                f"{self._caller}: a vector of {self._chart.size} numbers was expected, as x0 has, got "
                f"{flat.numel()}."
            )
        return flat

    def _at(self, x: Vector) -> Arguments:
        leaves = list(self._arguments.leaves)
        for index, leaf in zip(self._arguments.chosen, self._chart.from_coords(self._flat(x)), strict=True):
            leaves[index] = leaf
        return self._arguments.at(leaves)

    def _once(self, what: str, x: Vector, make: Callable[[Arguments], Any]) -> Any:
        """What was computed at this point already, or is now; another point forgets it."""
        point = self._flat(x).numpy().tobytes()
        if point != self._point:
            self._point, self._known = point, {}
        if what not in self._known:
            self._known[what] = make(self._at(x))
        return self._known[what]


class Objective(_OfVectors):
    """A scalar function for `scipy.optimize.minimize`: `fun`, `jac`, `hess`, `hessp`, and `x0`.

    `fun` and `jac` at one point share a run of the function, `hess` and `hessp` another one.
    """

    def fun(self, x: Vector) -> float:
        """The value at a flat vector."""
        value: float = self._once("gradient", x, self._gradient)[0]
        return value

    def jac(self, x: Vector) -> Vector:
        """The gradient there."""
        return self._once("gradient", x, self._gradient)[1].copy()

    def hessp(self, x: Vector, p: Vector) -> Vector:
        """The Hessian there times a vector."""
        return self._curvature(x).vector(p).astype("complex128" if _is_complex(p) else "float64")

    def hess(self, x: Vector) -> Vector:
        """The Hessian there."""
        import numpy as np

        return self._curvature(x).matrix(np.eye(self._chart.size)).astype("float64")

    def _curvature(self, x: Vector) -> _Flat:
        return self._once("curvature", x, self._second)

    def _second(self, arguments: Arguments) -> _Flat:
        derivative = _hessian_map(Gradient.of(self._caller, arguments))
        return _Flat(lambda: derivative, self._chart, self._chart)

    def _gradient(self, arguments: Arguments) -> tuple[float, Vector]:
        evaluation = Gradient.of(self._caller, arguments).run(list(arguments.leaves))
        gradient = _array(self._chart.to_coords(evaluation.outputs)).astype("float64")
        return float(bare(evaluation.aux[0])), gradient


class Residuals(_OfVectors):
    """A function for `scipy.optimize.least_squares`: `fun`, `jac`, `operator`, and `x0`.

    `fun` and `jac` at one point share a run of the function.
    """

    def fun(self, x: Vector) -> Vector:
        """The output at a flat vector, flat too."""
        pullback, outputs = self._once("run", x, self._run)
        return _array(outputs.to_coords(pullback.evaluation.outputs)).astype("float64")

    def jac(self, x: Vector) -> Vector:
        """The Jacobian there, as a matrix."""
        pullback, outputs = self._once("run", x, self._run)
        rows = pullback.matrix(outputs, chunk_size=None, randomness="error")
        return _array(self._chart.stack_to_coords(rows))

    def operator(self, x: Vector) -> LinearOperator:
        """The Jacobian there, as a `LinearOperator`; least_squares takes it with `tr_solver="lsmr"`."""
        return jacobian_operator(self._caller.function, *self._at(x).rebuild(self._at(x).leaves)[0])

    def _run(self, arguments: Arguments) -> tuple[Pullback, Chart]:
        run = runner(self._caller, arguments, accept_differentiable, has_aux=False)
        pullback = Pullback.of(self._caller, run, arguments)
        return pullback, Chart.of(pullback.evaluation.outputs)


def objective(func: Callable[..., Any], *x0: Any) -> Objective:
    """A scalar function of trees as `scipy.optimize.minimize` wants it.

    Args:
        func: takes trees like `x0`, returns one real tensor of shape ().
        x0: where to start; trees of tensors, such as the parameters of a module.

    Returns:
        An `Objective`: `fun(x)`, `jac(x)`, `hess(x)` and `hessp(x, p)` on flat vectors, the starting
        point `x0`, and `tree(x)`, which gives the tree back.

    Raises:
        ArgumentTypeError: `x0` holds something that cannot be differentiated by.
        OutputError: (when called) `func` did not return a real scalar.

    Example:
        >>> import torch
        >>> from scipy.optimize import minimize
        >>> from covector.scipy import objective
        >>> bowl = objective(lambda p: (p["a"] - 1) ** 2 + (p["b"] ** 2).sum(),
        ...                  {"a": torch.tensor(0.0), "b": torch.ones(2)})
        >>> found = minimize(bowl.fun, bowl.x0, jac=bowl.jac, hessp=bowl.hessp, method="Newton-CG")
        >>> bowl.tree(found.x)["a"]
        tensor(1.)
    """
    return Objective(check_function("objective", func), x0)


def residuals(func: Callable[..., Any], *x0: Any) -> Residuals:
    """A function of trees as `scipy.optimize.least_squares` wants it.

    Args:
        func: takes trees like `x0`, returns a tree of tensors, the residuals.
        x0: where to start; trees of tensors.

    Returns:
        `Residuals`: `fun(x)`, `jac(x)` and `operator(x)` on flat vectors, the starting point `x0`, and
        `tree(x)`, which gives the tree back.

    Raises:
        ArgumentTypeError: `x0` holds something that cannot be differentiated by.
        OutputError: (when called) `func` returned something other than floating-point tensors.

    Example:
        >>> import torch
        >>> from scipy.optimize import least_squares
        >>> from covector.scipy import residuals
        >>> times, data = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])
        >>> line = residuals(lambda slope: slope * times - data, torch.tensor(0.0))
        >>> line.tree(least_squares(line.fun, line.x0, line.jac).x)
        tensor(3.)
    """
    return Residuals(check_function("residuals", func), x0)
