"""A tour: a wrong derivative found, then gradients, Jacobians and Hessians of real functions."""

import torch

import covector

torch.manual_seed(0)
torch.set_printoptions(precision=4, sci_mode=False, linewidth=100)


def show(title: str, value: object) -> None:
    print(f"\n{title}\n{value}")


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


def rosenbrock(x):
    """A narrow curved valley; its minimum is at (1, ..., 1)."""
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def kinematics(angles, *, lengths):
    """Where the hand of a planar arm is, given the angles of its joints."""
    heading = angles.cumsum(0)
    return torch.stack([(lengths * heading.cos()).sum(), (lengths * heading.sin()).sum()])


points = torch.linspace(-2, 2, 2000, dtype=torch.float64, requires_grad=True)
show("Is the backward of this custom Function right?", covector.check(soft_clip, points))
show("And the same along random directions", covector.check(soft_clip, points, fast_mode=True))
show("tanh itself", covector.check(torch.tanh, points))

point = torch.tensor([-1.2, 1.0, 0.8], dtype=torch.float64)
gradient, value = covector.grad_and_value(rosenbrock)(point)
show("Rosenbrock's function at (-1.2, 1.0, 0.8)", value)
show("its gradient", gradient)
show("its Hessian", covector.hessian(rosenbrock)(point))

angles = torch.tensor([0.3, 0.5, -0.2], dtype=torch.float64)
lengths = torch.tensor([1.0, 0.8, 0.5], dtype=torch.float64)
show(
    "Jacobian of an arm's hand with respect to its joint angles, by reverse mode",
    covector.jacrev(kinematics)(angles, lengths=lengths),
)
show(
    "and with respect to the lengths of its links, by name and by forward mode",
    covector.jacfwd(kinematics, argnames="lengths")(angles, lengths=lengths),
)

model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
fn, params = covector.as_function(model)
x, y = torch.randn(16, 4), torch.randn(16, 1)
gradient = covector.grad(lambda params: ((fn(params, x) - y) ** 2).mean())(params)
show(
    "gradient of a network's loss, by parameter name",
    "\n".join(f"{name:<10} shape {tuple(g.shape)!s:<8} norm {g.norm():.4f}" for name, g in gradient.items()),
)
