"""A tour: the gradient, Jacobian and Hessian of real functions, each in one line."""

import torch

import covector

torch.manual_seed(0)
torch.set_printoptions(precision=4, sci_mode=False, linewidth=100)


def show(title: str, value: object) -> None:
    print(f"\n{title}\n{value}")


def rosenbrock(x):
    """A narrow curved valley; its minimum is at (1, ..., 1)."""
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()


def kinematics(angles, *, lengths):
    """Where the hand of a planar arm is, given the angles of its joints."""
    heading = angles.cumsum(0)
    return torch.stack([(lengths * heading.cos()).sum(), (lengths * heading.sin()).sum()])


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
    "\n".join(
        f"{name:<10} shape {tuple(g.shape)!s:<8} norm {g.norm():.4f}" for name, g in gradient.items()
    ),
)
