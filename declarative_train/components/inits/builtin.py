"""Inits: constants, random numbers, and random numbers scaled by the shape of the parameter."""

from __future__ import annotations

from abc import ABC
from math import erf, prod, sqrt
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from declarative_train.components.component import Init, ShapeError

if TYPE_CHECKING:
    import torch

    from declarative_train.components.inits.draws import Draws


class ConstantInit(Init):
    """Sets every element to `value`."""

    type: Literal["constant"] = "constant"
    value: float = Field(allow_inf_nan=False)
    """The number."""

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        import torch

        with torch.no_grad():
            tensor.fill_(self.value)


class Zeros(Init):
    """Sets every element to 0."""

    type: Literal["zeros"] = "zeros"

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        import torch

        with torch.no_grad():
            tensor.zero_()


class Ones(Init):
    """Sets every element to 1."""

    type: Literal["ones"] = "ones"

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        import torch

        with torch.no_grad():
            tensor.fill_(1)


class Normal(Init):
    """Normal distribution with mean `mean` and standard deviation `std`."""

    type: Literal["normal"] = "normal"
    mean: float = Field(default=0.0, allow_inf_nan=False)
    """Mean of the distribution."""
    std: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Standard deviation."""
    zero_row: int | None = Field(default=None, ge=0)
    """A row that starts at 0, such as the padding row of an embedding."""

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        import torch

        draws.normal(tensor, self.mean, self.std)
        if self.zero_row is not None and 0 <= self.zero_row - draws.first_row < len(tensor):
            with torch.no_grad():
                tensor[self.zero_row - draws.first_row].zero_()


class TruncNormal(Init):
    """Normal distribution with mean `mean` and standard deviation `std`, cut off at `cut` standard deviations on both
    sides.

    Each element is computed from a uniform number, by the inverse of the distribution function. torch's `trunc_normal_`
    takes the bounds as values instead: with a small `std`, its default bounds -2 and 2 cut nothing.
    """

    type: Literal["trunc_normal"] = "trunc_normal"
    mean: float = Field(default=0.0, allow_inf_nan=False)
    """Mean of the distribution."""
    std: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Standard deviation before the cut."""
    cut: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """No value is further from the mean than this many standard deviations."""

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        edge = erf(self.cut / sqrt(2))

        def cut_off(unit: torch.Tensor) -> torch.Tensor:
            values = unit.mul_(2 * edge).sub_(edge).erfinv_().mul_(sqrt(2))
            return values.clamp_(-self.cut, self.cut).mul_(self.std).add_(self.mean)

        draws.by_inverse(tensor, cut_off)


class Uniform(Init):
    """Uniform distribution between `low` and `high`."""

    type: Literal["uniform"] = "uniform"
    low: float = Field(default=0.0, allow_inf_nan=False)
    """Smallest value."""
    high: float = Field(default=1.0, allow_inf_nan=False)
    """Largest value."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"`low: {self.low:g}` is above `high: {self.high:g}`")
        return self

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        draws.uniform(tensor, self.low, self.high)


Nonlinearity = Literal["linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"]


class MatrixInit(Init, ABC):
    """Base class of inits for parameters with two or more dimensions."""

    def check(self, shape: tuple[int, ...]) -> ShapeError | None:
        """Return an error if the parameter has fewer than two dimensions, such as a bias, else None. This init needs
        the numbers of inputs and outputs of a unit, which the shape of a bias does not show.
        """
        if len(shape) >= 2:
            return None
        return ShapeError(
            f"`{self.type}` needs a parameter of at least 2 dimensions, but this one has shape "
            f"({', '.join(map(str, shape))})",
            help="select weights only, and start biases with `zeros`",
        )


class _Xavier(MatrixInit, ABC):
    gain: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Factor on the standard deviation."""

    def _std(self, shape: tuple[int, ...]) -> float:
        return self.gain * sqrt(2 / sum(_fans(shape)))


class _Kaiming(MatrixInit, ABC):
    mode: Literal["fan_in", "fan_out"] = "fan_in"
    """Keeps the variance of the values in the forward (`fan_in`) or of the gradients in the backward (`fan_out`)."""
    nonlinearity: Nonlinearity = "leaky_relu"
    """The function after the layer, which determines the gain."""
    a: float = Field(default=0.0, allow_inf_nan=False)
    """Negative slope, for `leaky_relu`."""

    def _std(self, shape: tuple[int, ...]) -> float:
        from torch import nn

        fan_in, fan_out = _fans(shape)
        return nn.init.calculate_gain(self.nonlinearity, self.a) / sqrt(fan_in if self.mode == "fan_in" else fan_out)


class XavierUniform(_Xavier):
    """Uniform distribution around 0 with standard deviation `gain` x sqrt(2 / (fan in + fan out))."""

    type: Literal["xavier_uniform"] = "xavier_uniform"

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        bound = self.gain * sqrt(6 / sum(_fans(draws.shape)))
        draws.uniform(tensor, -bound, bound)


class XavierNormal(_Xavier):
    """Normal distribution around 0 with standard deviation `gain` x sqrt(2 / (fan in + fan out))."""

    type: Literal["xavier_normal"] = "xavier_normal"

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        draws.normal(tensor, 0.0, self._std(draws.shape))


class KaimingUniform(_Kaiming):
    """Uniform distribution around 0 with standard deviation gain / sqrt(fan). `nonlinearity` determines the gain.
    `mode` determines the fan: the number of inputs or the number of outputs of a unit.
    """

    type: Literal["kaiming_uniform"] = "kaiming_uniform"

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        bound = sqrt(3) * self._std(draws.shape)
        draws.uniform(tensor, -bound, bound)


class KaimingNormal(_Kaiming):
    """Normal distribution around 0 with standard deviation gain / sqrt(fan). `nonlinearity` determines the gain. `mode`
    determines the fan: the number of inputs or the number of outputs of a unit.
    """

    type: Literal["kaiming_normal"] = "kaiming_normal"

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        draws.normal(tensor, 0.0, self._std(draws.shape))


class Orthogonal(MatrixInit):
    """A random (semi-)orthogonal matrix. A weight with more than two dimensions is treated as a matrix: the first
    dimension counts the rows, and all others together count the columns.

    Saxe et al., Exact solutions to the nonlinear dynamics of learning in deep linear neural networks, 2013."""

    type: Literal["orthogonal"] = "orthogonal"
    gain: float = Field(default=1.0, allow_inf_nan=False)
    """Factor on the matrix."""

    def fill(self, tensor: torch.Tensor, draws: Draws) -> None:
        import torch

        with torch.no_grad():
            drawn = draws.whole().to(tensor.dtype).flatten(1)
            is_wide = drawn.shape[0] < drawn.shape[1]
            num_threads = torch.get_num_threads()
            torch.set_num_threads(1)  # the last bits depend on the number of threads, and ranks have fewer
            try:
                matrix, factor = torch.linalg.qr(drawn.T if is_wide else drawn)
            finally:
                torch.set_num_threads(num_threads)
            matrix *= factor.diagonal().sign()  # else the distribution is not uniform (Mezzadri, 2007)
            whole = (matrix.T if is_wide else matrix).reshape(draws.shape) * self.gain
            tensor.copy_(whole[draws.first_row : draws.first_row + len(tensor)])


def _fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (fan_in, fan_out): how many inputs and how many outputs a unit has. `shape` is that of a weight, (out, in,
    *kernel)."""
    kernel = prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel
