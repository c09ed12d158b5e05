"""Recurrent layers. coremltools writes a GRU as a while_loop."""

from collections.abc import Callable

import torch
from torch import Tensor

from ane.backends.mil.registry import op

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x, "relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}


@op
def lstm(x: Tensor, initial_h: Tensor, initial_c: Tensor, weight_ih: Tensor, weight_hh: Tensor,
         bias: Tensor | None = None, weight_ih_back: Tensor | None = None, weight_hh_back: Tensor | None = None,
         bias_back: Tensor | None = None, direction: str = "forward", output_sequence: bool = False,
         recurrent_activation: str = "sigmoid", cell_activation: str = "tanh",
         activation: str = "tanh") -> tuple[Tensor, Tensor, Tensor]:
    """x (S, B, I) → hidden states (S, B, H), or the last (1, B, H); last hidden state and last cell (B, H).

    The rows of weights are the input, forget, output and cell gates. Directions are joined on the last axis.
    """
    gates, cell, out = (_activation(name) for name in (recurrent_activation, cell_activation, activation))

    def run(inputs: Tensor, h: Tensor, c: Tensor, weight_x: Tensor, weight_h: Tensor,
            bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        hidden = []
        for row in inputs @ weight_x.mT + (0 if bias is None else bias):
            i, f, o, z = (row + h @ weight_h.mT).chunk(4, dim=-1)
            c = gates(f) * c + gates(i) * cell(z)
            h = gates(o) * out(c)
            hidden.append(h)
        return torch.stack(hidden), h, c

    if direction != "bidirectional":
        turn = _turned if direction == "reverse" else _kept
        hidden, h, c = run(turn(x), initial_h, initial_c, weight_ih, weight_hh, bias)
        hidden = turn(hidden)
    else:
        (h, h_back), (c, c_back) = initial_h.chunk(2, dim=-1), initial_c.chunk(2, dim=-1)
        ahead = run(x, h, c, weight_ih, weight_hh, bias)
        hidden, *last = run(_turned(x), h_back, c_back, weight_ih_back, weight_hh_back, bias_back)
        hidden, h, c = (torch.cat(pair, dim=-1) for pair in zip(ahead, (_turned(hidden), *last), strict=True))
    return hidden if output_sequence else h[None], h, c


@op
def rnn(x: Tensor, initial_h: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None = None,
        direction: str = "forward", output_sequence: bool = False, activation: str = "tanh") -> tuple[Tensor, Tensor]:
    """x (S, B, I) → hidden states (S, B, H), or the last (1, B, H); last hidden state (B, H)."""
    turn, activate = _turned if direction == "reverse" else _kept, _activation(activation)
    hidden, h = [], initial_h
    for row in turn(x) @ weight_ih.mT + (0 if bias is None else bias):
        h = activate(row + h @ weight_hh.mT)
        hidden.append(h)
    return turn(torch.stack(hidden)) if output_sequence else h[None], h


def _activation(name: str) -> Callable[[Tensor], Tensor]:
    if name not in ACTIVATIONS:
        raise NotImplementedError(f"the activation {name!r}")
    return ACTIVATIONS[name]


def _kept(x: Tensor) -> Tensor:
    return x


def _turned(x: Tensor) -> Tensor:
    return x.flip(0)
