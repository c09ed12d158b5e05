"""Write a whole Tortoise model as one GGUF file: networks, hyper-parameters, tokenizer and voices.

ggml multiplies a matrix row by row, quantises it in blocks of 32 along a row, and limits names to 63 bytes. So the file
stores every matrix as (out, in). The decoder's matrices, which Tortoise stores as (in, out), are transposed. A
convolution with one tap is stored as a matrix.

The decoder's tensors and metadata have the names of GPT-2 in llama.cpp, where a code takes the place of a token. Every
other tensor is called ``<network>.<upstream's key>``. ``SHORTER`` replaces words of keys that would be too long.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from ane.bundles import Bundle
from ane.bundles.precisions import GGUF
from ane.bundles.weights import FP16_MAX, convert_precision, layout, skeleton
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.networks.autoregressive import Conv1D
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.version import version
from ane.voices import Voice, list_voices, open_voice
from converters.function_table import pick_networks, weights_sha256

Type = gguf.GGMLQuantizationType
DECODER = "autoregressive"
NAME_BYTES = 63  # longest name in bytes. ggml's GGML_MAX_NAME, 64, includes a terminating zero
SHORTER = (
    (".relative_pos_embeddings.relative_attention_bias.", ".relative_bias."),
    (".conditioning_timestep_integrator.", ".timestep_integrator."),
    ("_transformer.transformer.attn_layers.", "_transformer."),
)
# beginning of a decoder's key → beginning of Hugging Face's key for GPT-2, from which gguf derives llama.cpp's key
GPT2_KEYS = (
    ("gpt.", "transformer."),
    ("mel_embedding.", "transformer.wte."),
    ("mel_pos_embedding.emb.", "transformer.wpe."),
    ("mel_head.", "lm_head."),
)
POSITIONS = "position_embd.weight"  # stays in F32, because llama.cpp adds it without dequantising it


@dataclass(frozen=True)
class GgufTensor:
    """One tensor of the file.

    Attributes:
        name: Name of the tensor in the file.
        values: The values, with the axes in NumPy's order. ggml lists the axes in reverse order. While only the sizes
            of the file are computed, this is a tensor on the meta device.
        type: ggml's type for the stored tensor.
    """

    name: str
    values: torch.Tensor
    type: Type

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the stored array. For a quantised tensor, the size of the last axis is a number of bytes."""
        shape = tuple(self.values.shape)
        return gguf.quant_shape_to_byte_shape(shape, self.type) if self.type == Type.Q8_0 else shape

    @property
    def dtype(self) -> np.dtype:
        return np.dtype({Type.F32: np.float32, Type.F16: np.float16}.get(self.type, np.uint8))

    def encoded(self, where: str) -> np.ndarray:
        """Convert the values to the stored type. Return them with the shape ``stored_shape``.

        Args:
            where: Beginning of error messages.

        Raises:
            UserError: A value is NaN or infinite, or is beyond the range of fp16 and ``type`` is not F32. The range
                also limits quantised types, because the scales of their blocks are fp16.
        """
        wide = convert_precision({self.name: self.values}, "fp32", frozenset(), where)[self.name]
        if self.type != Type.F32 and wide.abs().max() > FP16_MAX:
            raise UserError(
                f"{where}: {self.name} has a value of {wide.abs().max():.4g}, beyond the range of fp16 "
                "(65504): use precision=fp32"
            )
        return gguf.quantize(wide.numpy(), self.type)


def write_gguf(
    model: Bundle,
    destination: Path,
    precision: str = "fp16",
    networks: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Callable[[str], None] = lambda network: None,
) -> list[GgufTensor]:
    """Write a model to a file, which appears when it is complete.

    In addition to the networks, the file has the tensor ``mel_norms`` (80,). It also has the tensors
    ``voice.NAME.autoregressive`` (D,) and ``voice.NAME.diffusion`` (C,) for every voice that the model stores as
    latents. These tensors are float32.

    Args:
        model: The bundle to write.
        destination: Path of the file.
        precision: A key of ``ane.bundles.precisions.GGUF``.
        networks: Networks to write (default: all networks of the model).
        overwrite: Whether to replace an existing file.
        progress: Function that is called with the name of each network before the network is written.

    Returns:
        The tensors in the order of the file. The tensors of networks are on the meta device, without values.

    Raises:
        UserError: The name does not end in .gguf, the file exists, the model is not a Tortoise model or lacks a
            network, a value does not fit the precision, a voice was made with another model or has too long a name, or
            the disk is full.
    """
    if destination.suffix != ".gguf":
        raise UserError(f"{destination}: the name of a GGUF file must end in .gguf")
    if destination.exists() and not overwrite:
        raise UserError(f"{destination} exists: add overwrite=True to replace it")
    chosen = pick_networks(model, networks, tuple(NETWORKS))
    small = [GgufTensor(name, torch.from_numpy(values), Type.F32) for name, values in _small_tensors(model).items()]
    plans = {network: list(gguf_tensors(network, model.config(network), precision)) for network in chosen}
    planned = [*small, *(tensor for plan in plans.values() for tensor in plan)]
    for tensor in planned:
        if len(tensor.name.encode()) > NAME_BYTES:
            raise UserError(
                f"the name {tensor.name} is longer than the {NAME_BYTES} bytes that ggml reads: rename the voice"
            )
    with replacing(destination) as path:
        writer = gguf.GGUFWriter(path, "gpt2" if DECODER in chosen else "tortoise")
        try:
            _add_metadata(writer, model, chosen, precision)
            for tensor in planned:
                writer.add_tensor_info(
                    tensor.name,
                    tensor.stored_shape,
                    tensor.dtype,
                    math.prod(tensor.stored_shape) * tensor.dtype.itemsize,
                    tensor.type,
                )
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor in small:
                writer.write_tensor_data(tensor.encoded(model.name))
            for network in chosen:
                progress(network)
                for tensor in gguf_tensors(network, model.config(network), precision, model.tensors(network)):
                    writer.write_tensor_data(tensor.encoded(f"{model.name}: {network}"))
        finally:
            writer.close()
    return planned


def _small_tensors(model: Bundle) -> dict[str, np.ndarray]:
    """Return the tensors that belong to no network: the mel norms, and the latents of the voices.

    Raises UserError if a voice is damaged or was made with another model.
    """
    tensors = {"mel_norms": model.mel_norms}
    for listed in list_voices([model.voices] if model.voices else []).values():
        voice = open_voice(listed.name, listed.files)
        if isinstance(voice, Voice):
            voice.check_widths(model.widths)
            tensors |= {
                f"voice.{listed.name}.{DECODER}": voice.ar[0],
                f"voice.{listed.name}.diffusion": voice.diffusion[0],
            }
    return tensors


def gguf_tensors(
    network: str, config: Any, precision: str, tensors: dict[str, torch.Tensor] | None = None
) -> Iterator[GgufTensor]:
    """Yield the tensors of a network in the order of its state dict.

    Args:
        network: Name of the network.
        config: Config of the network.
        precision: A key of ``ane.bundles.precisions.GGUF``.
        tensors: State dict. By default, the yielded tensors are on the meta device.
    """
    modules = skeleton(NETWORKS[network], config)
    transposed = {f"{name}.weight" for name, module in modules.named_modules() if isinstance(module, Conv1D)}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT2, getattr(config, "layers", 0))
    for key, shape in layout(NETWORKS[network], config).shapes.items():
        values = tensors[key] if tensors else torch.empty(shape, device="meta")
        while values.ndim > 1 and values.shape[-1] == 1:  # an axis of size 1 at the end would become ggml's row
            values = values[..., 0]
        values = values.T if key in transposed else values.reshape(values.shape or (1,))
        name = _name(network, key, names)
        yield GgufTensor(name, values, _stored_type(network, name, tuple(values.shape), precision))


def _name(network: str, key: str, names: gguf.TensorNameMap) -> str:
    for ours, theirs in GPT2_KEYS if network == DECODER else ():
        if key.startswith(ours):
            return names.get_name(theirs + key.removeprefix(ours), (".weight", ".bias"))
    name = f"{network}.{key}"
    for long, short in SHORTER:
        name = name.replace(long, short)
    return name


def _stored_type(network: str, name: str, shape: tuple[int, ...], precision: str) -> Type:
    """Choose the type of a tensor.

    Norms, biases and positions are F32. Every tensor of UnivNet is also F32, because UnivNet is not accurate in fp16.
    If ``precision`` is "q8_0", the matrices of compressed networks are Q8_0, unless the length of a row is not a
    multiple of a block. All other tensors are F16.
    """
    spec = NETWORKS[network]
    if precision == "fp32" or not spec.fp16_package or math.prod(shape) == max(shape) or name == POSITIONS:
        return Type.F32
    whole = len(shape) == 2 and shape[-1] % gguf.GGML_QUANT_SIZES[Type.Q8_0][0] == 0
    return Type.Q8_0 if precision == "q8_0" and spec.compressed and whole else Type.F16


def _add_metadata(writer: gguf.GGUFWriter, model: Bundle, networks: Sequence[str], precision: str) -> None:
    """Add the metadata of the file, whose keys begin with ``general``, ``gpt2`` or ``tortoise``, and the tokenizer.

    ``gpt2.*`` has the sizes of the decoder. ``tortoise.*`` has the model's other facts, such as the config of each
    network and the SHA-256 of the file with the network's weights.
    """
    manifest = model.manifest
    writer.add_name(model.name)
    writer.add_file_type(gguf.LlamaFileType[GGUF[precision]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for add, text in ((writer.add_license, manifest.licence), (writer.add_description, manifest.description)):
        if text:
            add(text)
    if DECODER in networks:
        _add_decoder(writer, model.config(DECODER))
    writer.add_string(gguf.Keys.Tokenizer.HF_JSON, model.tokenizer)
    entries = {
        "created_by": f"tortoise-ane {version()}",
        "default_voice": model.default_voice,
        "networks": list(networks),
        "source": json.dumps(manifest.source),
        "settings": json.dumps(dict(model.settings)),
    }
    for network in networks:
        config = dataclasses.asdict(model.config(network)) | {"weights_sha256": weights_sha256(model, network)}
        entries |= {f"{network}.{key}": value for key, value in config.items()}
    for key, value in entries.items():
        nested = isinstance(value, tuple) and value and isinstance(value[0], tuple)  # GGUF has no type for nested lists
        value = json.dumps(value) if nested else list(value) if isinstance(value, tuple) else value
        if value != []:
            writer.add_key_value(f"tortoise.{key}", value, gguf.GGUFValueType.get_type(value))


def _add_decoder(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add the facts that llama.cpp needs about a GPT-2 network.

    llama.cpp has no tokenizer for codes. So the tokenizer is "none", and the vocabulary's size is the number of codes.
    """
    writer.add_block_count(config.layers)
    writer.add_embedding_length(config.model_dim)
    writer.add_feed_forward_length(4 * config.model_dim)
    writer.add_head_count(config.heads)
    writer.add_context_length(config.code_positions)  # number of rows in the tensor POSITIONS
    writer.add_vocab_size(config.number_mel_codes)
    writer.add_layer_norm_eps(1e-5)
    writer.add_tokenizer_model("none")
