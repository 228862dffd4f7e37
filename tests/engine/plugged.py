"""A plugin of the tests: one of each kind that is no layer, written as users write."""
# mypy: ignore-errors

import torch
from torch.optim import Optimizer

from declarative_train.plugins import Loss, LrSchedule, Metric

# --


class SignMomentum(Optimizer):
    """The sign of an average of gradients."""

    def __init__(self, params, lr: float = 1e-3, beta: float = 0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                state["average"].lerp_(parameter.grad, 1 - group["beta"])
                parameter.add_(state["average"].tanh(), alpha=-group["lr"])


class HalvingSchedule(LrSchedule):
    """Half the lr after each part of the run."""

    def __init__(self, parts: int = 4):
        self.parts = parts

    def factor(self, step: int, num_steps: int) -> float:
        return 0.5 ** (step * self.parts // num_steps)


class MarginLoss(Loss):
    """By how much the other classes come near the right one."""

    def __init__(self, margin: float = 1.0):
        self.margin = margin

    def forward(self, input, target):
        right = input.gather(1, target.unsqueeze(1))
        return (input - right + self.margin).clamp(min=0).sum(1) - self.margin


class Size(Loss):
    """Without a target."""

    def forward(self, input):
        return input**2


class Centred(Loss):
    """Mixes the samples of a batch."""

    def forward(self, input, target):
        return ((input - input.mean(0)) ** 2).sum(1)


class SureMetric(Metric):
    """The largest probability."""

    def forward(self, input, target):
        return input.softmax(-1).amax(-1)


class Spread(Metric):
    """How unequal the classes are that are said."""

    higher_is_better = False

    def whole(self, input, target):
        return input.argmax(-1).bincount(minlength=input.shape[-1]).double().std()
