"""Compute the keys and shapes of a network's state dict, check a file against them, and convert weights' precision."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ane.bundles.family import Network
from ane.bundles.torch_checkpoint import shape_text
from ane.system.errors import UserError

PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
PRECISION_NAMES = {dtype: name for name, dtype in PRECISIONS.items()}
FP16_MAX = 65504.0
MAX_TENSORS = 10_000  # largest number of tensors in a network, which stops absurd configs (Whisper large has 1,300)
MAX_SIZE = 10_000_000  # largest number that a config may contain
SCALE = ".scale"  # suffix of the key for the scale (1,) of an int8 tensor, or for the scales (rows,) of its rows


@dataclass(frozen=True)
class Layout:
    """The shapes in a network's state dict, by key. ``buffers`` are the keys of buffers, which are not parameters."""

    shapes: dict[str, tuple[int, ...]]
    buffers: frozenset[str]


class WithoutValues(TorchFunctionMode):
    """Puts new parameters (torch.empty) on the meta device and skips their initialisation.

    This is faster than torch.device("meta"), which sends all computations in a constructor through torch's Python
    decompositions. The first use of these decompositions imports torch._dynamo, which takes more than a second.
    """

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        self.count += func is torch.empty
        if self.count > MAX_TENSORS:
            raise ValueError(f"it would have more than {MAX_TENSORS} tensors")
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs.get("tensor", args[0] if args else None)
        return func(*args, **(kwargs | {"device": "meta"} if func is torch.empty else kwargs))


def skeleton(network: Network, config: Any) -> nn.Module:
    """Create the PyTorch module of a network. The parameters have shapes but no values.

    To set the values, call ``load_state_dict(…, assign=True)``.

    Raises:
        UserError: The values in ``config`` do not fit together.
    """
    try:
        if any(isinstance(value, int) and value > MAX_SIZE for value in vars(config).values()):
            raise ValueError(f"no number may exceed {MAX_SIZE}")
        with WithoutValues():
            return network.module(config)
    except (ArithmeticError, AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(
            f"the constructor arguments given for {network.file} do not describe a network "
            f"({type(error).__name__}: {error}): compare them with the ones it was trained with"
        ) from error


@functools.cache
def layout(network: Network, config: Any) -> Layout:
    """Return the layout of the network that ``config`` describes.

    Raises UserError if the values do not fit together.
    """
    module = skeleton(network, config)
    state = module.state_dict()
    buffers = frozenset(state) - {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return Layout({key: tuple(value.shape) for key, value in state.items()}, buffers)


def check_layout(path: Path, network: Network, config: Any, file: Any) -> None:
    """Compare the keys, shapes and dtypes in an open safetensors file with the network that ``config`` describes.

    Raises:
        UserError: A key, shape or dtype differs.
    """
    shapes, keys = layout(network, config).shapes, set(file.keys())
    scales = {key for key in keys if key.endswith(SCALE) and key.removesuffix(SCALE) in shapes} - set(shapes)
    keys -= scales
    missing, surplus = sorted(set(shapes) - keys), sorted(keys - set(shapes))
    if missing or surplus:
        fault = f"{missing[0]} is missing" if missing else f"{surplus[0]} does not belong to this network"
        raise UserError(
            f"{path} does not fit the {network.name} network of bundle.json, because {fault}: import it again"
        )
    for key, shape in shapes.items():
        view = file.get_slice(key)
        if tuple(view.get_shape()) != shape:
            raise UserError(
                f"{path}: {key} has shape {shape_text(tuple(view.get_shape()))}, but the network of "
                f"bundle.json has {shape_text(shape)}: import it again"
            )
        if view.get_dtype() not in ("F32", "F16", "BF16", *(("I8",) if f"{key}{SCALE}" in scales else ())):
            raise UserError(
                f"{path}: {key} is {view.get_dtype()}, not F32, F16, BF16 or I8 with a scale: import it again"
            )


def expanded(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Multiply int8 tensors by their scales, in float32. Return all tensors without the scales."""
    return {
        key: tensor.float() * tensors[f"{key}{SCALE}"].reshape(-1, *[1] * (tensor.ndim - 1))
        if tensor.dtype == torch.int8
        else tensor
        for key, tensor in tensors.items()
        if tensors.get(key.removesuffix(SCALE), tensor).dtype != torch.int8 or not key.endswith(SCALE)
    }


def convert_precision(
    tensors: Mapping[str, torch.Tensor], precision: str, buffers: frozenset[str], where: str
) -> dict[str, torch.Tensor]:
    """Convert a state dict to a precision. The new tensors are contiguous and share no memory, as safetensors requires.

    Integers stay as they are. Buffers always become float32. For example, rotary frequencies with 8 or 11 bits would
    cause wrong angles at positions in the hundreds.

    Args:
        tensors: State dict.
        precision: Precision for the parameters.
        buffers: Keys of the buffers.
        where: Start of the message.

    Raises:
        UserError: A number is NaN or infinite, or outside the range of fp16. The message names the tensor.
    """
    result: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for key, tensor in tensors.items():
        if tensor.is_floating_point():
            if not torch.isfinite(tensor).all():
                raise UserError(
                    f"{where}: {key} has NaN or infinite values: the file is damaged or its training diverged"
                )
            target = "fp32" if key in buffers else precision
            if target == "fp16" and tensor.numel() and tensor.abs().max() > FP16_MAX:
                raise UserError(
                    f"{where}: {key} has a value of {tensor.abs().max():.4g}, beyond the range of fp16 "
                    "(65504): use precision=fp32 or bf16"
                )
            tensor = tensor.to(PRECISIONS[target])
        tensor = tensor.contiguous()
        if tensor.untyped_storage().data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        result[key] = tensor
    return result
