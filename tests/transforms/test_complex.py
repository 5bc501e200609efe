"""Complex derivatives by name: holomorphic, wirtinger, real."""

import pytest
import torch

import covector
from cases import CASES
from covector.errors import ArgumentTypeError, OutputError

z = torch.tensor([0.3 - 0.2j, -0.7 + 1.1j], dtype=torch.complex128)
w = torch.tensor([1.1 + 0.4j], dtype=torch.complex128)
x = torch.tensor([0.5, -0.3], dtype=torch.float64)
assert_close = torch.testing.assert_close
WAYS = [{}, {"mode": "forward"}, {"mode": "reverse"}, {"chunk_size": 1}, {"max_memory": "1MB"}]
ways = pytest.mark.parametrize("way", WAYS, ids=str)
complex_cases = pytest.mark.parametrize("case", [case for case in CASES if case.complex], ids=str)


@ways
def test_holomorphic(way):
    jacobian = lambda f: covector.jacobian(f, complex="holomorphic", **way)
    assert_close(jacobian(lambda z: z**3)(z), (3 * z**2).diag())
    assert_close(jacobian(lambda z: z.exp().sum())(z), z.exp())
    m = torch.randn(3, 2, dtype=torch.complex128)
    assert_close(jacobian(lambda z: m @ z)(z), m)
    assert_close(jacobian(lambda z: z[0] * z[1])(z.conj()), z.conj().flip(0))


@ways
@pytest.mark.parametrize(
    "f", [lambda z: z.conj(), lambda z: z * z.abs(), lambda z: z.real + 0j], ids=["conj", "abs", "real"]
)
def test_not_holomorphic(f, way):
    with pytest.raises(OutputError, match="Cauchy-Riemann equations fail"):
        covector.jacobian(f, complex="holomorphic", **way)(z)
    with pytest.raises(OutputError, match="Cauchy-Riemann equations fail"):
        covector.hessian(f, complex="holomorphic", **way)(z)


@ways
@pytest.mark.parametrize(
    ("f", "dtype"),
    [
        (lambda z: torch.stack([z[0] * 1e9, z[1].conj()]), torch.complex128),
        (lambda z: torch.stack([z[0] * 1e9, z[1].conj()]), torch.complex64),
        (lambda z: torch.stack([z[0] * 1e4, z[1].conj()]), torch.complex64),
        (lambda z: z[0] * 1e9 + z[1].conj(), torch.complex128),
        (lambda z: z[0] * 1e4 + z[1].conj(), torch.complex64),
        (lambda z: z[0] ** 2 * 1e9 + z[1] * z[1].conj(), torch.complex128),
        (lambda z: torch.stack([(0 * z[0]) ** -1, z[1].conj()]), torch.complex128),
        (lambda z: 1e-20 * z.conj(), torch.complex128),
    ],
    ids=["row", "row64", "smaller row64", "entry", "entry64", "square", "infinite", "small"],
)
def test_large_entries_hide_no_conjugate(f, dtype, way):
    for verb in (covector.jacobian, covector.value_and_jacobian):
        with pytest.raises(OutputError, match="Cauchy-Riemann equations fail"):
            verb(f, complex="holomorphic", **way)(z.to(dtype))


@ways
def test_rounding_is_no_conjugate(way):
    """Entries that are zero by cancellation, beside large ones and small ones, in single precision."""
    many = torch.randn(40, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    m = torch.randn(40, 40, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    inverse = torch.linalg.inv(m)
    for f in (
        lambda z: inverse @ (m @ z),
        lambda z: torch.fft.ifft(torch.fft.fft(z)),
        lambda z: torch.cat([z, torch.fft.ifft(torch.fft.fft(z)) - z, 1e9 * z]),
        lambda z: (m @ z).exp() / (m @ z).exp().sum(),
        lambda z: torch.cat([1e6 * (m @ z), 1e-6 * (m @ z).sin()]),
    ):
        got = covector.jacobian(f, complex="holomorphic", **way)(many)
        assert_close(got, covector.jacobian(f, complex="wirtinger", **way)(many).dz)


def test_squares_hide_no_conjugate_in_a_hessian():
    mixed = lambda z: 1e9 * z[0] ** 2 + z[1] * z[1].conj()
    with pytest.raises(OutputError, match="Cauchy-Riemann equations fail"):
        covector.hessian(mixed, complex="holomorphic")(z)


@ways
def test_wirtinger(way):
    """d/dz and d/dz*, by hand."""
    jacobian = lambda f, *at: covector.jacobian(f, complex="wirtinger", **way)(*at)
    by_z, by_conj = jacobian(lambda z: z * z.conj(), z)
    assert_close((by_z, by_conj), (z.conj().diag().resolve_conj(), z.diag()))
    found = jacobian(lambda z: (z.conj() ** 2).sum(), z)
    assert_close((found.dz, found.dz_conj), (torch.zeros_like(z), 2 * z.conj().resolve_conj()))
    energy = jacobian(lambda z: (z * z.conj()).real.sum(), z)
    assert_close((energy.dz, energy.dz_conj), (z.conj().resolve_conj(), z))
    assert_close(jacobian(lambda x: x * 1j, x), 1j * torch.eye(2, dtype=torch.complex128))
    assert_close(jacobian(lambda x: x**2, x), (2 * x).diag())


@pytest.mark.filterwarnings("ignore::covector.errors.CovectorWarning")
@complex_cases
@ways
def test_real_is_the_jacobian_of_the_real_views(case, way):
    """The same numbers as torch's Jacobian of the function between real views."""
    primals = case.primals()
    views = [torch.view_as_real(p) if p.is_complex() else p for p in primals]

    def real(*views):
        given = [
            torch.view_as_complex(v) if p.is_complex() else v for v, p in zip(views, primals, strict=True)
        ]
        result = case.function(*given)
        many = result if isinstance(result, tuple) else (result,)
        return tuple(torch.view_as_real(y.resolve_conj()) if y.is_complex() else y for y in many)

    argnums = tuple(range(len(primals)))
    expected = torch.func.jacrev(real, argnums)(*views)
    got = covector.jacobian(case.function, argnums, complex="real", **way)(*primals)
    assert_close(got if isinstance(got[0], tuple) else (got,), expected)


def test_shapes_of_real_blocks():
    """An axis of two behind each complex side."""
    shape = lambda f, at: covector.jacobian(f, complex="real")(at).shape
    assert shape(lambda z: z[:1], z) == (1, 2, 2, 2)
    assert shape(lambda z: z[:1].abs(), z) == (1, 2, 2)
    assert shape(lambda x: x[:1] * 1j, x) == (1, 2, 2)
    assert shape(lambda x: x[:1], x) == (1, 2)


def test_second_derivatives():
    hessian = lambda f, name: covector.hessian(f, complex=name)(z)
    assert_close(hessian(lambda z: (z**3).sum(), "holomorphic"), (6 * z).diag())
    mixed = hessian(lambda z: (z**2 * z.conj()).sum(), "wirtinger")
    assert_close(mixed.dz.dz, (2 * z.conj()).diag().resolve_conj())
    assert_close(mixed.dz.dz_conj, (2 * z).diag())
    assert_close(mixed.dz_conj.dz, (2 * z).diag())
    assert_close(mixed.dz_conj.dz_conj, torch.zeros(2, 2, dtype=z.dtype))
    assert hessian(lambda z: z.abs().sum(), "real").shape == (2, 2, 2, 2)


def test_samples_and_batches():
    zs = torch.stack([z, 2 * z, z - 1])
    expected = torch.stack([(2 * one).diag() for one in zs])
    square = lambda z: z**2
    assert_close(covector.jacobian(square, complex="holomorphic", batch_dim=0)(zs), expected)
    assert_close(torch.vmap(covector.jacobian(square, complex="holomorphic"))(zs), expected)
    pair = covector.jacobian(lambda z: z.abs() ** 2, complex="wirtinger", batch_dim=0)(zs)
    assert_close(pair.dz_conj, torch.stack([one.diag() for one in zs]))
    with pytest.raises(OutputError, match="Cauchy-Riemann"):
        torch.vmap(covector.jacobian(lambda z: z.conj(), complex="holomorphic"))(zs)


def test_value_and_jacobian():
    value, result = covector.value_and_jacobian(lambda z: z**2, complex="holomorphic")(z)
    assert_close((value, result), (z**2, (2 * z).diag()))


def test_without_a_convention():
    """The three are named."""
    text = "complex='holomorphic', 'wirtinger' or 'real'"
    with pytest.raises(ArgumentTypeError, match=text):
        covector.jacobian(torch.sin)(z)
    with pytest.raises(ArgumentTypeError, match="output is complex.*" + text):
        covector.jacobian(lambda x: x * 1j)(x)
    with pytest.raises(
        ArgumentTypeError, match="from complex tensors to complex tensors, but arg0 has dtype"
    ):
        covector.jacobian(torch.sin, complex="holomorphic")(x)
    with pytest.raises(ArgumentTypeError, match=r"but output has dtype torch\.float64"):
        covector.jacobian(lambda z: z.abs(), complex="holomorphic")(z)
