"""Derivatives that are lost on the way: a tensor that depends on the input is taken out of the graph.

The line that does it carries the comment `# cut`; a diagnosis is right if it names that line.
"""

from __future__ import annotations

import torch

from benchmarks.diagnosis.planted import Bug, cut


def detached_mean(x):
    centre = x.mean(-1, keepdim=True).detach()  # cut
    return (x - centre).tanh()


def data_of_a_norm(x):
    norm = x.norm(dim=-1, keepdim=True)
    scale = norm.data  # cut
    return x / scale


def item_of_a_sum(x):
    total = x.exp().sum().item()  # cut
    return x.exp() / total


def through_numpy(x):
    weights = torch.from_numpy(x.sin().detach().numpy().copy())  # cut
    return weights * x


def tensor_of_a_tensor(x):
    scale = torch.tensor([float(value) for value in x.pow(2)], dtype=x.dtype)  # cut
    return scale * x


def under_no_grad(x):
    with torch.no_grad():
        scale = x.std(-1, keepdim=True)  # cut
    return x / scale


class Gate(torch.nn.Module):
    """A gate whose values are detached."""

    def forward(self, x):
        """The gate times the input."""
        gate = torch.sigmoid(x @ x.transpose(-1, -2))
        return gate.detach() @ x  # cut


class Block(torch.nn.Module):
    """A block that calls another one, in which the derivative is lost."""

    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def forward(self, x):
        """The gated input, and the input."""
        return self.gate(x).tanh() + x


def decorated(x):
    return scale_of_rows(x) * x.cos()


@torch.no_grad()
def scale_of_rows(x):
    return x.exp().mean(-1, keepdim=True)  # cut


def attention_with_detached_scores(q, k):
    scores = q @ k.transpose(-1, -2)
    weights = scores.softmax(-1)
    return weights.detach() @ k  # cut


def new_tensor(x):
    shift = x.new_tensor([x[0].item() ** 2])  # cut
    return x.sin() + shift


def tolist(x):
    a, b, c = x.tolist()  # cut
    return torch.stack([x[0] * b, x[1] * c, x[2] * a])


def argument_of_clone(x):
    copy = x.clone().detach().requires_grad_()  # cut
    return (copy * x).cumsum(0)


def called_twice(x):
    return frozen(x) * x.exp() + frozen(2 * x)


def frozen(x):
    return x.pow(2).detach()  # cut


def running_statistics(x):
    mean = torch.zeros(3, dtype=x.dtype)
    mean.data.copy_(x.mean(0))  # cut
    return x - mean


def loop_with_item(x):
    state = x
    for _ in range(3):
        state = state / state.abs().max().item()  # cut
        state = state.sin()
    return state


LOST: list[Bug] = [
    cut("a mean that is detached", detached_mean, (3, 4)),
    cut("the data of a norm", data_of_a_norm, (3, 4)),
    cut("the item of a sum", item_of_a_sum, (5,)),
    cut("a way through NumPy", through_numpy, (5,)),
    cut("a tensor made of numbers", tensor_of_a_tensor, (4,)),
    cut("a deviation under no_grad", under_no_grad, (3, 4)),
    cut("a gate in a module in a module", Block(), (3, 4), within=Gate.forward),
    cut("a function under a no_grad decorator", decorated, (3, 4), within=scale_of_rows),
    cut("attention with detached weights", attention_with_detached_scores, (3, 4), (5, 4)),
    cut("new_tensor of an item", new_tensor, (4,)),
    cut("a list of numbers", tolist, (3,)),
    cut("a detached copy", argument_of_clone, (4,)),
    cut("a function called twice that detaches", called_twice, (4,), within=frozen),
    cut("statistics copied into data", running_statistics, (5, 3)),
    cut("a loop with an item", loop_with_item, (4,)),
]
