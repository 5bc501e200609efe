"""Networks, as people write them, and graph layers from torch-geometric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from benchmarks.zoo.entry import Subject, constant, entry, normal
from benchmarks.zoo.mistakes import (
    gradient_rolled,
    gradient_scaled,
    inside,
    keep,
    number_stopped,
    output_rolled,
    output_scaled,
    output_stopped,
    part_stopped,
    stopped,
)

Hold = Callable[[Tensor], Tensor]


@entry("own", inside)
def convolutions_of_32_channels() -> Subject:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(2, 32, 3, padding=1)
            self.second = nn.Conv2d(32, 32, 3, padding=1, stride=2)
            self.shortcut = nn.Conv2d(2, 32, 1, stride=2)
            self.head = nn.Linear(32, 10)

        def forward(self, x: Tensor, hold: Hold = keep) -> Tensor:
            y = self.second(F.gelu(self.first(x))) + hold(self.shortcut(x))
            return self.head(F.gelu(y).mean((-2, -1)))

    return Net().double(), (normal(1, 2, 32, 32),)


@entry("own", gradient_scaled(0.99))
def convolutions_of_128_channels() -> Subject:
    net = nn.Sequential(
        nn.Conv2d(8, 128, 3, padding=1),
        nn.SiLU(),
        nn.Conv2d(128, 128, 3, padding=1, stride=2),
        nn.SiLU(),
        nn.Conv2d(128, 16, 3, stride=2),
    ).double()
    return net, (normal(1, 8, 16, 16),)


@entry("own", output_stopped(3))
def convolutions_over_time() -> Subject:
    layers: list[nn.Module] = [nn.Conv1d(4, 64, 3, padding=1), nn.Tanh()]
    for dilation in (2, 4, 8):
        layers += [nn.Conv1d(64, 64, 3, padding=dilation, dilation=dilation), nn.Tanh()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(256, 5)).double()
    return net, (normal(2, 4, 64),)


@entry("own", gradient_rolled(0))
def transformer_encoder_layer() -> Subject:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, activation="gelu").double()
    return layer, (normal(2, 6, 16),)


@entry("own", inside)
def attention_by_hand() -> Subject:
    def function(query: Tensor, key: Tensor, value: Tensor, hold: Hold = keep) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        mask = torch.ones_like(scores).tril() == 0
        weights = torch.exp(scores.masked_fill(mask, -torch.inf) - scores.amax(-1, keepdim=True).detach())
        return weights @ value / hold(weights.sum(-1, keepdim=True))

    return function, (normal(2, 8, 6), normal(2, 8, 6, seed=1), normal(2, 8, 6, seed=2))


@entry("own", part_stopped(0, 0.25))
def lstm() -> Subject:
    net = nn.LSTM(6, 16, num_layers=2).double()
    return (lambda x: net(x)[0]), (normal(10, 2, 6),)


@entry("own", stopped(1))
def gru_cell_in_a_loop() -> Subject:
    cell = nn.GRUCell(8, 24).double()

    def function(x: Tensor, state: Tensor) -> Tensor:
        for step in x:
            state = cell(step, state)
        return state

    return function, (normal(12, 2, 8), normal(2, 24, seed=1))


@entry("own", inside)
def message_passing() -> Subject:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.message = nn.Sequential(nn.Linear(17, 32), nn.SiLU(), nn.Linear(32, 8))
            self.update = nn.Linear(16, 8)

        def forward(self, x: Tensor, place: Tensor, hold: Hold = keep) -> Tensor:
            for _ in range(3):
                distance = (place[source] - place[target]).square().sum(-1, keepdim=True)
                message = self.message(torch.cat([x[source], x[target], hold(distance)], -1))
                x = x + self.update(torch.cat([x, torch.zeros_like(x).index_add(0, target, message)], -1))
            return x

    source, target = torch.randint(12, (2, 40))
    return Layer().double(), (normal(12, 8), normal(12, 3, seed=1))


@entry("own", inside)
def layer_norm_by_hand() -> Subject:
    def function(x: Tensor, weight: Tensor, bias: Tensor, hold: Hold = keep) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (hold(centred.square().mean(-1, keepdim=True)) + 1e-5).sqrt() * weight + bias

    return function, (normal(12, 24), normal(24, seed=1), normal(24, seed=2))


@entry("own", output_scaled(1.01))
def batch_norm_net() -> Subject:
    net = nn.Sequential(
        nn.Linear(10, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Tanh()
    )
    net = nn.Sequential(net, nn.Linear(32, 4)).double().train()
    return net, (normal(16, 10),)


@entry("own", number_stopped(0, 1500))
def perceptron_2048_to_256() -> Subject:
    net = nn.Sequential(nn.Linear(2048, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()).double()
    return net, (normal(2048),)


@entry("own", gradient_rolled(1))
def perceptron_by_its_parameters() -> Subject:
    net = nn.Sequential(nn.Linear(12, 20), nn.Softplus(), nn.Linear(20, 3)).double()
    names, x = [name for name, _ in net.named_parameters()], constant(16, 12)

    def function(*values: Tensor) -> Tensor:
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), (x,))

    return function, tuple(p.detach().clone().requires_grad_() for p in net.parameters())


@entry("own", gradient_scaled(2.0, 2))
def linear_tanh_128() -> Subject:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, w, b))

    return function, (normal(128), normal(128, 128, seed=1, scale=0.05), normal(128, seed=2))


@entry("own", gradient_scaled(1.1, 1))
def linear_tanh_256() -> Subject:
    def function(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, w, b))

    return function, (normal(256), normal(256, 256, seed=1, scale=0.05), normal(256, seed=2))


@entry("own", gradient_scaled(1.5), eps=1e-2, atol=1e-2, rtol=1e-2)
def perceptron_in_single_precision() -> Subject:
    net = nn.Sequential(nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 8))
    return net, (normal(4, 48, dtype=torch.float32),)


@entry("own", part_stopped(0, 0.5))
def checkpointed_blocks() -> Subject:
    blocks = [nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 20)).double() for _ in range(3)]

    def function(x: Tensor) -> Tensor:
        for block in blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x

    return function, (normal(6, 20),)


class _Swish(torch.autograd.Function):
    """x times sigmoid(x), saving nothing but x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wrong: bool) -> Tensor:
        ctx.save_for_backward(x)
        ctx.wrong = wrong
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * s * (1 + x * (s if ctx.wrong else 1 - s)), None


@entry("own", inside)
def activation_as_a_function() -> Subject:
    def function(x: Tensor, hold: Hold = keep) -> Tensor:
        return _Swish.apply(x, hold is not keep)

    return function, (normal(20, 30),)


@entry("own", output_scaled(0.5))
def alignment_loss() -> Subject:
    targets, lengths = torch.randint(1, 6, (3, 5)), torch.tensor([5, 4, 3])

    def function(logits: Tensor) -> Tensor:
        steps = torch.full((3,), 12)
        return F.ctc_loss(logits.log_softmax(-1), targets, steps, lengths, reduction="none")

    return function, (normal(12, 3, 6),)


@entry("torch-geometric", gradient_scaled(1.2))
def graph_attention() -> Subject:
    from torch_geometric.nn import GATv2Conv

    edges = torch.randint(12, (2, 50))
    layer = GATv2Conv(8, 6, heads=2).double()
    return (lambda x: layer(x, edges)), (normal(12, 8),)


@entry("torch-geometric", output_rolled())
def graph_convolutions() -> Subject:
    from torch_geometric.nn import GCNConv

    edges = torch.randint(20, (2, 60))
    first, second = GCNConv(6, 16).double(), GCNConv(16, 4).double()
    return (lambda x: second(torch.tanh(first(x, edges)), edges)), (normal(20, 6),)


@entry("torch-geometric", number_stopped(1, 13))
def isomorphism_layer_with_edges() -> Subject:
    from torch_geometric.nn import GINEConv

    pairs = torch.randint(10, (2, 30))
    layer = GINEConv(
        nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 8)), train_eps=True
    ).double()
    return (lambda x, edges: layer(x, pairs, edges)), (normal(10, 8), normal(30, 8, seed=1))
