"""A tour: a wrong derivative that torch's fast check passes, named; its page; a Hessian beside torch's."""

import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

import covector

torch.manual_seed(0)
torch.set_printoptions(precision=4, sci_mode=False, linewidth=100)


def title(text: str) -> None:
    print(f"\n--- {text}")


class SoftClip(torch.autograd.Function):
    """tanh, with a backward that someone got wrong for one element."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        slope = 1 - torch.tanh(x) ** 2
        slope[137] *= 1.1
        return grad_output * slope


def soft_clip(x):
    return SoftClip.apply(x)


def centred(x):
    return (x - x.mean().detach()).tanh()


def rosenbrock(x):
    """A narrow curved valley; its minimum is at (1, ..., 1)."""
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def seconds(function, *args) -> float:
    function(*args)
    started = time.perf_counter()
    for _ in range(20):
        function(*args)
    return (time.perf_counter() - started) / 20


points = torch.linspace(-2, 2, 2000, dtype=torch.float64, requires_grad=True)

title("A custom Function whose backward is wrong for one of 2000 elements. torch's fast check of it:")
print("torch.autograd.gradcheck(soft_clip, points, fast_mode=True) =", end=" ")
print(torch.autograd.gradcheck(soft_clip, points, fast_mode=True))

title("covector's, of every entry:")
report = covector.check(soft_clip, points)
report.show()

title("and as a page, with both Jacobians, to be opened in a browser:")
page = Path(tempfile.gettempdir()) / "covector-tour.html"
report.to_html(page)
print(page)

title("Where a derivative is lost:")
covector.check(centred, points.detach()[:3].requires_grad_()).show()

title("A derivative that is right:")
covector.check(torch.tanh, points).show()

title("The Hessian of Rosenbrock's function, beside torch.func:")
point = torch.tensor([-1.2, 1.0, 0.8], dtype=torch.float64)
print(covector.hessian(rosenbrock)(point))
ours, theirs = covector.hessian(rosenbrock), torch.func.hessian(rosenbrock)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ratio = seconds(ours, point) / seconds(theirs, point)
print(f"time, covector / torch.func: {ratio:.2f} here and now; `make bench` measures it properly")

title("The gradient of a network's loss, by parameter name:")
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
fn, params = covector.as_function(model)
x, y = torch.randn(16, 4), torch.randn(16, 1)
gradient = covector.grad(lambda params: ((fn(params, x) - y) ** 2).mean())(params)
for name, value in gradient.items():
    print(f"{name:<10} shape {tuple(value.shape)!s:<8} norm {value.norm():.4f}")

if sys.stdout.isatty():
    print("\nNext: README.md, and docs/tutorial.md")
