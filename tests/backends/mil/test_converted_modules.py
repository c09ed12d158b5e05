"""Test that packages which coremltools makes from common torch modules return what torch returns, on any machine."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import coremltools as ct
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from coremltools.converters.mil import Builder as mb  # noqa: N813  its name everywhere
from torch import Tensor, nn

from ane.backends.mil import Interpreter, Package
from tests.refusals import assert_refused
from tools.campaigns.modules import attempt


@dataclass(frozen=True)
class ModuleCase:
    name: str
    make: Callable[[], Callable]  # returns a module or a function of tensors
    inputs: tuple[Tensor, ...]
    ops: tuple[str, ...] = ()  # ops that no other module here tests


class ResidualNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU6(), nn.MaxPool2d(3, 2, padding=1)
        )
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4), nn.Hardswish(), nn.GroupNorm(2, 8)
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.LogSoftmax(-1))
        self.stem[1].running_mean.uniform_(-1, 1)
        self.stem[1].running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(x + self.block(x))


class Recurrent(nn.Module):
    def __init__(self, kind: type, **options):
        super().__init__()
        self.layer = kind(8, 6, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class TinyDecoder(nn.Module):
    """A block of a decoder: embedding, causal attention, gated feed-forward."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)
        self.mix, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.gate, self.up, self.down = nn.Linear(16, 24), nn.Linear(16, 24), nn.Linear(24, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.mix(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return (x + self.down(F.silu(self.gate(x)) * self.up(x))) @ self.table.weight.T


class ImageDecoder(nn.Module):
    """Transposed convolutions, and the norms and activations of image generators."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.InstanceNorm2d(4, affine=True),
            nn.ConvTranspose2d(4, 8, 3, 2, 1, 1),
            nn.PReLU(8),
            nn.LocalResponseNorm(3),
            nn.Conv2d(8, 4, 3, padding=1),
            nn.Softplus(),
            nn.Mish(),
            nn.PixelShuffle(2),
            nn.PixelUnshuffle(2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def pooled(x: Tensor) -> tuple[Tensor, ...]:
    averages = [F.avg_pool1d(x, *size, ceil_mode=True) for size in ((4, 3), (3, 2, 1))]
    return (
        F.max_pool1d(x, 3, 2, ceil_mode=True),
        F.max_pool1d(x, 2, 2, padding=1),
        *averages,
        F.avg_pool1d(x, 3, 2, 1, count_include_pad=False),
        F.adaptive_avg_pool1d(x, 1),
    )


def resized(x: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
    return (
        F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
        F.interpolate(x, size=(11, 5), mode="bilinear", align_corners=True),
        F.interpolate(x, scale_factor=2),
        F.grid_sample(x, grid, align_corners=False),
        F.grid_sample(x, grid, "nearest", "border", True),
    )


def indexed(x: Tensor, at: Tensor) -> tuple[Tensor, ...]:
    return (
        x.gather(-1, at.long()),
        x[:, [0, 2]],
        x.roll(1, 1),
        x.flip(-1),
        torch.tril(x),
        x.topk(2, -1)[0],
        x.cumsum(-1),
        F.one_hot(at.long(), 5).float(),
        x.repeat(2, 1),
        torch.where(x > 0, x, -x),
        F.pad(x[None], (1, 2), mode="reflect"),
    )


def reduced(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.std(-1),
        x.var(1),
        x.norm(dim=-1),
        x.amax(-1),
        x.logsumexp(-1),
        x.argmax(-1).float(),
        torch.einsum("bic,bjc->bij", x, x),
        F.normalize(x, dim=1),
        x % 2,
        F.gelu(x) + F.elu(x) + F.hardtanh(x),
    )


def functions(x: Tensor) -> tuple[Tensor, ...]:
    x = x.clamp(-0.9, 0.9)
    return (
        x.asin(),
        x.acos(),
        x.atan(),
        x.atanh(),
        x.sinh(),
        x.cosh(),
        x.tan(),
        x.erf(),
        torch.log1p(x),
        torch.exp(x),
        x.sign() * x.abs().sqrt(),
        torch.pow(x, 2),
        x.ceil() + x.floor() + x.round(),
        torch.nonzero(x > 0).float(),
    )


def normal(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32))


TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9]], dtype=torch.int32)
CASES = [
    ModuleCase("convolutions", ResidualNet, (normal(1, 3, 32, 32),)),
    ModuleCase(
        "volume",
        lambda: nn.Sequential(nn.Conv3d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2)),
        (normal(1, 2, 4, 4, 4),),
    ),
    ModuleCase("transposed convolutions", ImageDecoder, (normal(1, 4, 8, 8),), ("pixel_unshuffle",)),
    *(
        ModuleCase(name, lambda kind=kind, options=options: Recurrent(kind, **options), (normal(2, 5, 8),), ops)
        for name, kind, options, ops in (
            ("LSTM", nn.LSTM, {}, ("lstm",)),
            ("RNN", nn.RNN, {}, ("rnn",)),
            ("two bidirectional LSTMs", nn.LSTM, {"bidirectional": True, "num_layers": 2}, ("lstm",)),
            ("bidirectional GRU", nn.GRU, {"bidirectional": True}, ()),
        )
    ),
    ModuleCase("pooling", lambda: pooled, (normal(1, 2, 11),), ("avg_pool", "max_pool")),
    ModuleCase("resizing", lambda: resized, (normal(1, 2, 8, 6), normal(1, 4, 4, 2) / 2), ("resample",)),
    ModuleCase(
        "indexing", lambda: indexed, (normal(4, 5), torch.tensor([[0, 2], [1, 1], [4, 3], [0, 0]], dtype=torch.int32))
    ),
    ModuleCase("functions", lambda: functions, (normal(2, 6),), ("acos", "asin", "atanh", "cosh", "non_zero", "sinh")),
    ModuleCase("reductions", lambda: reduced, (normal(2, 4, 6),)),
]


def built(make: Callable[[], Callable]) -> nn.Module:
    torch.manual_seed(0)
    made = make()
    if isinstance(made, nn.Module):
        return made.eval()
    module = nn.Module()
    module.forward = made
    return module


def converted(module: nn.Module, inputs: tuple[Tensor, ...], specs: list | None = None, **options) -> ct.models.MLModel:
    specs = specs or [
        ct.TensorType(f"x{i}", x.shape, dtype=np.float32 if x.is_floating_point() else np.int32)
        for i, x in enumerate(inputs)
    ]
    with torch.no_grad():
        traced = torch.jit.trace(module, inputs, check_trace=False)
    return ct.convert(
        traced,
        inputs=specs,
        minimum_deployment_target=ct.target.iOS18,
        skip_model_load=True,
        **{"compute_precision": ct.precision.FLOAT32, **options},
    )


def saved(model: ct.models.MLModel, folder: Path) -> Package:
    model.save(str(folder / "model.mlpackage"))
    return Package(folder / "model.mlpackage")


def run(package: Package, inputs: tuple[Tensor, ...], function: str | None = None) -> list[np.ndarray]:
    arrays = {f"x{i}": x.numpy() for i, x in enumerate(inputs)}
    return list(Interpreter(package, function).predict(arrays).values())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_converted_module_returns_what_torch_returns(case: ModuleCase, tmp_path: Path):
    module, inputs = built(case.make), case.inputs
    package = saved(converted(module, inputs), tmp_path)
    assert set(case.ops) <= {op.type for op in package.function().ops}
    with torch.no_grad():
        expected = module(*inputs)
    expected = expected if isinstance(expected, tuple) else (expected,)
    actual = run(package, inputs)
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lengths", [ct.RangeDim(2, 9), ct.EnumeratedShapes([(1, 2), (1, 6)])], ids=["range", "listed"])
def test_a_flexible_length_of_a_decoder_is_taken_from_the_input(lengths, tmp_path: Path):
    module = built(TinyDecoder)
    shape = lengths if isinstance(lengths, ct.EnumeratedShapes) else (1, lengths)
    package = saved(converted(module, (TOKENS,), [ct.TensorType("x0", shape, dtype=np.int32)]), tmp_path)
    for length in (2, 6):
        x = TOKENS[:, :length]
        with torch.no_grad():
            np.testing.assert_allclose(run(package, (x,))[0], module(x).numpy(), rtol=1e-4, atol=1e-5)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1


def test_only_the_branch_that_applies_is_run(tmp_path: Path):
    model = ct.convert(
        torch.jit.script(Branches()),
        inputs=[ct.TensorType("x0", (1, 3))],
        skip_model_load=True,
        minimum_deployment_target=ct.target.iOS18,
        compute_precision=ct.precision.FLOAT32,
    )
    package = saved(model, tmp_path)
    assert "cond" in {op.type for op in package.function().ops}
    for sign in (1, -1):
        x = torch.full((1, 3), 2.0 * sign)
        np.testing.assert_allclose(run(package, (x,))[0], Branches()(x).numpy())


def test_an_image_input_is_refused_in_one_line(tmp_path: Path):
    image = ct.ImageType("x0", (1, 3, 32, 32), scale=1 / 255)
    package = saved(converted(nn.ReLU(), (normal(1, 3, 32, 32),), [image]), tmp_path)
    assert_refused(r"takes an image \(x0\).*TensorType", Interpreter, package)


LENGTHS = (
    "torch.ones_like",
    "torch.nan_to_num",
    "threshold",
    "y[y > 0] = 1",
    "var",
    "expand",
    "expand of ones",
    "x[:, x.shape[1] - 1]",
    "x[:, :x.shape[1] // 2]",
    "shape as a number",
    "division by the length",
    "arange",
    "arange backwards",
    "full",
    "zeros of the shape",
    "mask of lengths",
    "einsum",
)
ONE_LENGTH = ("causal attention", "attention with a written-out mask", "rotary positions", "learned positions", "LSTM")


@pytest.mark.parametrize(
    ("name", "lengths"),
    [*((name, "two flexible") for name in LENGTHS), *((name, "one flexible") for name in ONE_LENGTH)],
)
def test_flexible_lengths_are_used_as_numbers_as_torch_uses_them(name, lengths):
    assert list(attempt(name, "iOS18", "fp32", lengths)) == [("equal", "")]


def test_an_exclusive_sum_keeps_small_numbers_beside_large_ones(tmp_path: Path):
    @mb.program(input_specs=[mb.TensorSpec((4,))], opset_version=ct.target.iOS18)
    def program(x):
        return mb.cumsum(x=x, axis=0, exclusive=True)

    model = ct.convert(
        program, skip_model_load=True, minimum_deployment_target=ct.target.iOS18, compute_precision=ct.precision.FLOAT32
    )
    package = saved(model, tmp_path)
    for x, expected in (([1, 1e8, 2, 3], [0, 1, 100000001, 100000003]), ([1, np.inf, 2, 3], [0, 1, np.inf, np.inf])):
        [found] = Interpreter(package).predict({"x": np.array(x, np.float32)}).values()
        np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_a_shape_outside_the_declared_range_is_refused_and_an_optional_input_has_its_default(tmp_path: Path):
    length = ct.RangeDim(2, 9)
    specs = [
        ct.TensorType("x0", (1, length)),
        ct.TensorType("x1", (1, 1), default_value=np.full((1, 1), 2, np.float32)),
    ]
    package = saved(converted(built(lambda: lambda x, y: x * y), (normal(1, 4), normal(1, 1)), specs), tmp_path)
    x = normal(1, 5).numpy()
    [found] = Interpreter(package).predict({"x0": x}).values()
    np.testing.assert_allclose(found, 2 * x)
    with pytest.raises(TypeError, match=r"input x0 of .* takes the shapes \(1, 2 to 9\), got \(1, 10\)"):
        Interpreter(package).predict({"x0": normal(1, 10).numpy()})
