"""Define small modules of plain torch, as people convert them. Each takes x (2, 6, 8) float32, or its ``INPUTS``."""

# Tables with one subject per line:
# fmt: off

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

INF = float("inf")


class Applied(nn.Module):
    """A recurrent layer that returns only its output sequence, without its state."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Rotary(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        frequency = 1.0 / (10000 ** (torch.arange(half) / half))
        angle = torch.arange(x.shape[1])[:, None] * frequency
        one, other = x[..., :half], x[..., half:2 * half]
        return torch.cat((one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos()), dim=-1)


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table(torch.arange(x.shape[1]))


class SmallAttention(nn.Module):
    def __init__(self, causal: bool):
        super().__init__()
        self.causal, self.mix, self.out = causal, nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.mix(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class MaskedAttention(SmallAttention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 8 ** 0.5
        later = torch.triu(torch.ones(x.shape[1], x.shape[1]), 1)
        return self.out(scores.masked_fill(later == 1, -INF).softmax(-1) @ v)


def masked_write(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 0] = 1.0
    return y


def sliced_write(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:3] = 0.5
    return y


def row_write(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = y[:, 1] * 2
    return y


def last_of(x: Tensor) -> Tensor:
    return x[:, x.shape[1] - 1]


def padded_mask(x: Tensor) -> Tensor:
    lengths = torch.tensor([2, 4])
    return x * (torch.arange(x.shape[1])[None] < lengths[:, None])[..., None]


def layers(*made: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(one() for one in made))


UNARY = {name: getattr(torch, name) for name in (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "exp2", "expm1",
    "floor", "frac", "log", "log10", "log1p", "log2", "logical_not", "neg", "reciprocal", "relu", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "isnan", "isinf", "ones_like",
    "zeros_like", "nan_to_num")}
# functions that accept only some numbers → the function that moves their input into this range
DOMAINS: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("acos", "asin", "atanh"), lambda x: x.tanh() * 0.9),
    **dict.fromkeys(("log", "log10", "log2", "log1p", "sqrt", "rsqrt", "reciprocal"), lambda x: x.abs() + 0.1),
    "acosh": lambda x: x.abs() + 1.1}
ACTIVATIONS = {name: getattr(nn, name) for name in (
    "CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid", "Mish",
    "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh", "Tanhshrink")}

MODULES: dict[str, Callable[[], Callable]] = {
    **{f"torch.{name}": partial(lambda f, move: lambda x: f(move(x)) if move else f(x), f, DOMAINS.get(name))
       for name, f in UNARY.items()},
    **{f"nn.{name}": made for name, made in ACTIVATIONS.items()},
    "threshold": lambda: nn.Threshold(0.1, 20.0), "softplus of beta 2": lambda: nn.Softplus(beta=2, threshold=5),
    "gelu with tanh": lambda: nn.GELU("tanh"), "prelu": lambda: nn.PReLU(6), "glu": lambda: nn.GLU(),
    "clamp": lambda: lambda x: x.clamp(-0.5, 0.7), "clamp_min": lambda: lambda x: x.clamp(min=0.1),
    "softmax": lambda: nn.Softmax(-1), "softmax of axis 1": lambda: nn.Softmax(1),
    "log_softmax": lambda: nn.LogSoftmax(-1), "softmin": lambda: nn.Softmin(-1),
    # arithmetic
    "add": lambda: lambda x: x + 2, "mul": lambda: lambda x: x * x, "sub": lambda: lambda x: 1 - x,
    "div": lambda: lambda x: x / (x.abs() + 1), "floor_divide": lambda: lambda x: torch.floor_divide(x, 0.3),
    "remainder": lambda: lambda x: x % 0.7, "fmod": lambda: lambda x: torch.fmod(x, 0.7),
    "pow": lambda: lambda x: x ** 3, "pow of a tensor": lambda: lambda x: torch.pow(2.0, x),
    "maximum": lambda: lambda x: torch.maximum(x, -x), "minimum": lambda: lambda x: torch.minimum(x, x * 0.5),
    "where": lambda: lambda x: torch.where(x > 0, x, x * 0.1), "eq": lambda: lambda x: (x.round() == 0).float(),
    "logic": lambda: lambda x: ((x > 0) & (x < 1) | (x < -1)).float(),
    "lerp": lambda: lambda x: torch.lerp(x, -x, 0.3), "addcmul": lambda: lambda x: torch.addcmul(x, x, x, value=0.5),
    "masked_fill": lambda: lambda x: x.masked_fill(x < 0, -1e4), "y[y > 0] = 1": lambda: masked_write,
    "y[:, 1:3] = 0.5": lambda: sliced_write, "y[:, 0] = …": lambda: row_write,
    "nan_to_num of 1/0": lambda: lambda x: torch.nan_to_num(x, nan=0.0, posinf=9.0, neginf=-9.0),
    # reductions
    **{name: partial(lambda name: lambda x: getattr(x, name)(-1), name) for name in (
        "sum", "mean", "prod", "amax", "amin", "var", "std", "argmax", "argmin", "logsumexp", "cumsum")},
    **{f"{name} of axis 1, kept": partial(lambda name: lambda x: getattr(x, name)(1, keepdim=True), name)
       for name in ("sum", "mean", "amax", "var")},
    **{f"{name} of all": partial(lambda name: lambda x: getattr(x, name)(), name)
       for name in ("sum", "mean", "max", "min", "std", "argmax")},
    "norm": lambda: lambda x: x.norm(dim=-1), "norm of order 1": lambda: lambda x: x.norm(p=1, dim=-1),
    "max with indices": lambda: lambda x: x.max(-1), "topk": lambda: lambda x: x.topk(3, -1)[0],
    "sort": lambda: lambda x: x.sort(-1)[0], "argsort": lambda: lambda x: x.argsort(-1),
    "any": lambda: lambda x: (x > 1).any(-1).float(), "all": lambda: lambda x: (x > -1).all(-1).float(),
    "count": lambda: lambda x: (x > 0).sum(-1), "cumsum of axis 1": lambda: lambda x: x.cumsum(1),
    "exclusive cumsum": lambda: lambda x: x.cumsum(1) - x, "cumprod": lambda: lambda x: x.tanh().cumprod(-1),
    "flipped cumsum": lambda: lambda x: x.flip(1).cumsum(1).flip(1),
    # shapes
    "reshape": lambda: lambda x: x.reshape(2, -1), "view as": lambda: lambda x: x.view(x.shape[0], -1, 2),
    "flatten": lambda: nn.Flatten(), "unflatten": lambda: nn.Unflatten(2, (2, 4)),
    "transpose": lambda: lambda x: x.transpose(1, 2), "permute": lambda: lambda x: x.permute(2, 0, 1),
    "unsqueeze": lambda: lambda x: x[:, None], "squeeze": lambda: lambda x: x[:, None].squeeze(1),
    "cat": lambda: lambda x: torch.cat((x, -x), 1), "stack": lambda: lambda x: torch.stack((x, -x), 1),
    "chunk": lambda: lambda x: x.chunk(2, -1), "split": lambda: lambda x: x.split((3, 5), -1),
    "unbind": lambda: lambda x: x.unbind(0), "repeat": lambda: lambda x: x.repeat(1, 2, 1),
    "repeat_interleave": lambda: lambda x: x.repeat_interleave(2, 1), "tile": lambda: lambda x: x.tile(2, 1, 1),
    "expand": lambda: lambda x: x[:, :1].expand(-1, x.shape[1], -1),
    "expand of ones": lambda: lambda x: x + torch.ones(1, 1, 1).expand(1, x.shape[1], 1),
    "flip": lambda: lambda x: x.flip(1, 2),
    "roll": lambda: lambda x: x.roll(1, 1),
    "rot90": lambda: lambda x: x.rot90(1, (1, 2)),
    "narrow": lambda: lambda x: x.narrow(1, 1, 3), "slices": lambda: lambda x: x[:, 1:, ::2],
    "negative slices": lambda: lambda x: x[:, -3:-1], "x[:, -1]": lambda: lambda x: x[:, -1],
    "x[:, x.shape[1] - 1]": lambda: last_of, "x[:, :x.shape[1] // 2]": lambda: lambda x: x[:, :x.shape[1] // 2],
    "x[:, [0, 2]]": lambda: lambda x: x[:, [0, 2]], "x[..., None] of a row": lambda: lambda x: x[0, ..., None],
    "index_select": lambda: lambda x: x.index_select(1, torch.tensor([3, 0, 1])),
    "gather": lambda: lambda x: x.gather(-1, (x > 0).long()), "take_along_dim": lambda: lambda x: torch.take_along_dim(
        x, x.argsort(-1), -1),
    "scatter": lambda: lambda x: torch.zeros_like(x).scatter(-1, (x > 0).long(), x),
    "tril": lambda: lambda x: x.tril(),
    "triu": lambda: lambda x: x.triu(1),
    "diagonal": lambda: lambda x: x.diagonal(0, 1, 2),
    "pad": lambda: lambda x: F.pad(x, (1, 2)), "pad of axis 1": lambda: lambda x: F.pad(x, (0, 0, 2, 1), value=3.0),
    "reflected pad": lambda: lambda x: F.pad(x, (1, 2), mode="reflect"),
    "replicated pad": lambda: lambda x: F.pad(x, (2, 1), mode="replicate"),
    "unfold": lambda: lambda x: x.unfold(1, 2, 2),
    "meshgrid": lambda: lambda x: torch.meshgrid(x[0, 0], x[1, 0], indexing="ij"),
    "shape as a number": lambda: lambda x: x * x.shape[1],
    "division by the length": lambda: lambda x: x.sum(1) / x.shape[1],
    "arange": lambda: lambda x: x + torch.arange(x.shape[1])[:, None],
    "arange backwards": lambda: lambda x: x * torch.arange(
        x.shape[1] - 1, -1, -1)[:, None],
    "linspace": lambda: lambda x: x + torch.linspace(0, 1, 8),
    "full": lambda: lambda x: x + torch.full((x.shape[1], 1), 2.0),
    "eye": lambda: lambda x: x @ torch.eye(8),
    "zeros of the shape": lambda: lambda x: torch.zeros(x.shape[0], x.shape[1]) + x[..., 0],
    "new_ones": lambda: lambda x: x + x.new_ones(x.shape[1], 1),
    "full_like": lambda: lambda x: torch.full_like(x, 3) * x,
    "mask of lengths": lambda: padded_mask, "one_hot": lambda: lambda x: F.one_hot((x[..., 0] > 0).long(), 3).float(),
    "cast to int": lambda: lambda x: x.int(), "cast and back": lambda: lambda x: (x * 3).long().float(),
    # products
    "matmul": lambda: lambda x: x @ x.transpose(1, 2), "bmm": lambda: lambda x: torch.bmm(x, x.transpose(1, 2)),
    "einsum": lambda: lambda x: torch.einsum("bic,bjc->bij", x, x),
    "outer": lambda: lambda x: torch.einsum("bi,bj->bij", x[:, 0], x[:, 0]),
    "linear": lambda: nn.Linear(8, 5), "linear without bias": lambda: nn.Linear(8, 5, bias=False),
    "bilinear product": lambda: lambda x: (x[:, None] * x[:, :, None]).sum(-1),
    "cdist": lambda: lambda x: torch.cdist(x, x),
    "cosine_similarity": lambda: lambda x: F.cosine_similarity(x, -x.flip(1), -1),
    "normalize": lambda: lambda x: F.normalize(x, dim=-1),
    # norms
    "LayerNorm": lambda: nn.LayerNorm(8),
    "LayerNorm of two axes": lambda: nn.LayerNorm((6, 8)),
    "RMSNorm": lambda: nn.RMSNorm(8),
    "GroupNorm": lambda: nn.GroupNorm(2, 6),
    "BatchNorm1d": lambda: nn.BatchNorm1d(6),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(6),
    "LocalResponseNorm": lambda: nn.LocalResponseNorm(3), "Dropout": lambda: nn.Dropout(),
    # convolutions and pools over the last axis
    "Conv1d": lambda: nn.Conv1d(6, 4, 3), "Conv1d padded": lambda: nn.Conv1d(6, 4, 3, padding=1),
    "Conv1d, stride 2": lambda: nn.Conv1d(6, 4, 3, stride=2, padding=1),
    "Conv1d, dilated": lambda: nn.Conv1d(6, 4, 3, dilation=2, padding=2),
    "Conv1d, groups": lambda: nn.Conv1d(6, 6, 3, groups=6, padding=1),
    "Conv1d, same": lambda: nn.Conv1d(6, 4, 4, padding="same"),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d(6, 4, 4, stride=2, padding=1),
    "ConvTranspose1d, output padding": lambda: nn.ConvTranspose1d(6, 4, 3, stride=2, padding=1, output_padding=1),
    "AvgPool1d": lambda: nn.AvgPool1d(2), "AvgPool1d, ceil": lambda: nn.AvgPool1d(3, 2, ceil_mode=True),
    "MaxPool1d": lambda: nn.MaxPool1d(3, 2, 1),
    "LPPool1d": lambda: nn.LPPool1d(2, 2),
    "AdaptiveAvgPool1d": lambda: nn.AdaptiveAvgPool1d(1),
    "AdaptiveMaxPool1d": lambda: nn.AdaptiveMaxPool1d(1), "Upsample": lambda: nn.Upsample(scale_factor=2),
    "interpolate, linear": lambda: lambda x: F.interpolate(x, scale_factor=2, mode="linear"),
    "conv of padded": layers(lambda: nn.ConstantPad1d((2, 0), 0.0), lambda: nn.Conv1d(6, 4, 3)),
    # recurrent
    "LSTM": lambda: Applied(nn.LSTM(8, 5, batch_first=True)), "GRU": lambda: Applied(nn.GRU(8, 5, batch_first=True)),
    "RNN": lambda: Applied(nn.RNN(8, 5, batch_first=True)),
    "RNN of relu": lambda: Applied(nn.RNN(8, 5, nonlinearity="relu", batch_first=True)),
    "LSTM of two layers": lambda: Applied(nn.LSTM(8, 5, 2, batch_first=True)),
    "LSTM in both directions": lambda: Applied(nn.LSTM(8, 5, batch_first=True, bidirectional=True)),
    # small networks
    "attention": lambda: SmallAttention(False),
    "causal attention": lambda: SmallAttention(True),
    "attention with a written-out mask": lambda: MaskedAttention(True),
    "rotary positions": lambda: Rotary(), "learned positions": lambda: Positions(),
    "MultiheadAttention": lambda: Applied(_self_attention()),
    "TransformerEncoderLayer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "feed-forward": layers(lambda: nn.Linear(8, 16), nn.GELU, lambda: nn.Linear(16, 8)),
    "convolutional block": layers(lambda: nn.Conv1d(6, 6, 3, padding=1), lambda: nn.BatchNorm1d(6), nn.SiLU,
                                  lambda: nn.Conv1d(6, 6, 1)),
    "squeeze and excite": lambda: lambda x: x * torch.sigmoid(x.mean(-1, keepdim=True)),
    "Snake": lambda: lambda x: x + torch.sin(2 * x) ** 2 / 2,
    "gated": lambda: lambda x: torch.tanh(x[:, :3]) * torch.sigmoid(x[:, 3:]),
}

# modules that coremltools converts into another function → the reason, and that function
MISREAD: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "std of all": ("it divides by n, as torch does with correction=0", lambda x: x.std(correction=0)),
    "argmax of all": ("it writes the argmax of the last axis", lambda x: x.argmax(-1))}


class _SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x, x, x, need_weights=False)


def _self_attention() -> nn.Module:
    return _SelfAttention()
