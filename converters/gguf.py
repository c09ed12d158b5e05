"""Writes a model as one GGUF file: networks, configs, tokenizer and voices.

All networks go into one file, with the network's name as prefix of its tensors: programs memory-map the file, so unused
parts cost nothing. ``networks`` selects some, for programs that need them apart.

ggml multiplies a matrix by rows of inputs, quantises it in blocks of 32 along a row, and limits names to 63 bytes. So
matrices are stored as (out, in), as llama.cpp stores GPT-2's: the decoder's, which are (in, out), are transposed, and a
convolution with kernel size 1 is stored as a matrix. Other shapes and names are upstream's, with parts of long names
abbreviated. Metadata have standard keys where they apply, others begin with ``tortoise.``.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import nn

from ane.bundles import Model
from ane.bundles.weights import layout, skeleton
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.networks.autoregressive import Conv1D
from ane.system.errors import UserError
from ane.system.files import replacing
from ane.system.version import version
from ane.voices import Voice, list_voices, open_voice
from converters.functions import chosen_networks, network_spec
from converters.origin import provenance_of, weights_sha256

SUFFIX = ".gguf"
Type = gguf.GGMLQuantizationType

PRECISIONS = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16,
              "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0}
NAME_BYTES = 63             # GGML_MAX_NAME is 64 with its terminating zero; ggml refuses longer names
ABBREVIATIONS = ((".relative_pos_embeddings.relative_attention_bias.", ".relative_bias."),
                 (".conditioning_timestep_integrator.", ".timestep_integrator."),
                 ("_transformer.transformer.attn_layers.", "_transformer."))
FP16_MAX = float(np.finfo(np.float16).max)
ARCHITECTURE = "tortoise"
TOKENIZER = "tortoise"      # BPE of characters, which llama.cpp does not implement; it refuses an unknown name


def write_gguf(model: Model, destination: Path, precision: str, networks: Sequence[str] | None = None,
               overwrite: bool = False, progress: Callable[[str], None] = lambda network: None) -> "list[GgufTensor]":
    """Write ``model`` to ``destination`` atomically; return the tensors written.

    Besides the networks' tensors (``gguf_tensors``), the file has ``mel_norms`` (80,), and for each voice stored as
    latents ``voice.NAME.autoregressive`` (D,) and ``voice.NAME.diffusion`` (C,), all float32.

    Args:
        precision: one of ``PRECISIONS``.
        networks: which to write (default: all of the model's).
        progress: called with each network's name before it is written.

    Raises:
        UserError: the name does not end in .gguf, the file exists and ``overwrite`` is False, a network is unknown or
            missing, a value does not fit the precision, a voice belongs to another model or its name is too long, the
            disk is full.
    """
    if destination.suffix != SUFFIX:
        raise UserError(f"{destination}: the name must end in {SUFFIX}")
    if destination.exists() and not overwrite:
        raise UserError(f"{destination} exists; add overwrite=True to replace it")
    chosen = chosen_networks(model, networks, NETWORKS)
    voices = latent_voices(model)
    extra = _extra_tensors(model, voices)
    plans = {network: gguf_tensors(network, model.config(network), precision) for network in chosen}
    with replacing(destination) as path:
        writer = gguf.GGUFWriter(path, ARCHITECTURE)
        try:
            add_metadata(writer, model, chosen, list(voices), precision)
            small = [GgufTensor(name, values.shape, Type.F32) for name, values in extra.items()]
            for entry in (*small, *(entry for plan in plans.values() for entry in plan)):
                writer.add_tensor_info(entry.name, entry.stored_shape, entry.dtype, entry.bytes, entry.type)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for values in extra.values():
                writer.write_tensor_data(values)
            for network, plan in plans.items():
                progress(network)
                tensors = model.tensors(network)
                for entry in plan:
                    writer.write_tensor_data(encode(entry, tensors[entry.key], f"{model.name}: {network}"))
        finally:
            writer.close()
    return [*small, *(entry for plan in plans.values() for entry in plan)]


def latent_voices(model: Model) -> dict[str, Voice]:
    """A model's voices that are stored as latents, by name. Raises UserError when one is damaged, or belongs to another
    model."""
    found = list_voices([model.voices] if model.voices else []).values()
    voices = {voice.name: opened for voice in found if isinstance(opened := open_voice(voice.name, voice.files), Voice)}
    for voice in voices.values():
        voice.check_widths(model.widths)
    return voices


def _extra_tensors(model: Model, voices: dict[str, Voice]) -> dict[str, np.ndarray]:
    extra = {"mel_norms": model.mel_norms}
    for name, voice in voices.items():
        extra |= {f"voice.{name}.autoregressive": voice.ar[0], f"voice.{name}.diffusion": voice.diffusion[0]}
    for name in extra:
        if len(name.encode()) > NAME_BYTES:
            raise UserError(f"the name {name} is too long for a GGUF file ({NAME_BYTES} bytes): rename the voice")
    return extra


# Tensors

@dataclass(frozen=True)
class GgufTensor:
    """One tensor of the file.

    Attributes:
        name: in the file.
        shape: in NumPy's order; ggml lists axes in reverse.
        type: ggml's type.
        key: the tensor's key in the network's state dict.
        transposed: whether the network stores it transposed.
    """

    name: str
    shape: tuple[int, ...]
    type: Type
    key: str = ""
    transposed: bool = False

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape in bytes for types with blocks, else ``shape``."""
        return self.shape if self.type in (Type.F32, Type.F16) else gguf.quant_shape_to_byte_shape(
            self.shape, self.type)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype({Type.F32: np.float32, Type.F16: np.float16}.get(self.type, np.uint8))

    @property
    def bytes(self) -> int:
        return math.prod(self.stored_shape) * self.dtype.itemsize


def gguf_tensors(network: str, config: Any, precision: str) -> list[GgufTensor]:
    """The tensors of ``network`` at ``config``, in the order of its state dict."""
    matrices = matrix_layers(network, config)
    found = []
    for key, shape in layout(network_spec(network), config).shapes.items():
        transposed = matrices.get(key) is Conv1D
        name = f"{network}.{key}"
        for long, short in ABBREVIATIONS:
            name = name.replace(long, short)
        shape = shape[::-1] if transposed else trimmed(shape)
        found.append(GgufTensor(
            name, shape, stored_type(network, shape, key in matrices, precision), key, transposed))
    return found


def matrix_layers(network: str, config: Any) -> dict[str, type[nn.Module]]:
    """Keys of the weights that are used as matrices, and the type of layer of each."""
    return {f"{name}.weight": type(module) for name, module in skeleton(network_spec(network), config).named_modules()
            if isinstance(module, Conv1D | nn.Linear) or (isinstance(module, nn.Conv1d) and module.kernel_size == (1,))}


def trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without trailing axes of size 1, which would be ggml's rows: (1024, 512, 1) → (1024, 512)."""
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape or (1,)


def stored_type(network: str, shape: tuple[int, ...], is_matrix: bool, precision: str) -> Type:
    """The type that a tensor is stored in.

    f32: tensors with one axis longer than 1 (norms, biases), and all of UnivNet (``Network.fp16_package``). Blocks, if
    requested: matrices of the compressed networks (``Network.compressed``) whose rows are a multiple of 32 long. f16:
    all others: embeddings, kernels larger than 1, and the other networks.
    """
    if precision == "f32" or not network_spec(network).fp16_package or math.prod(shape) == max(shape):
        return Type.F32
    blocks = Type[precision.upper()]
    if is_matrix and network_spec(network).compressed and shape[-1] % gguf.GGML_QUANT_SIZES[blocks][0] == 0:
        return blocks
    return Type.F16


def encode(entry: GgufTensor, tensor: torch.Tensor, where: str) -> np.ndarray:
    """A tensor of the network in the file's form: ``entry.stored_shape``, ``entry.dtype``. Raises UserError when a
    value is NaN or infinite, or beyond the range of fp16, the type of the blocks' scales."""
    wide = tensor.detach().float().numpy()
    wide = np.ascontiguousarray(wide.T if entry.transposed else wide).reshape(entry.shape)
    largest = float(np.abs(wide).max(initial=0.0))
    if not math.isfinite(largest):
        raise UserError(f"{where}: {entry.key} holds NaN or infinite values: the file is damaged or its training "
                        "diverged")
    if entry.type != Type.F32 and largest > FP16_MAX:
        raise UserError(f"{where}: {entry.key} holds a value of {largest:.4g}, beyond the range of fp16 (65504); use "
                        "--precision f32")
    return gguf.quantize(wide, entry.type)


# Metadata

def add_metadata(writer: gguf.GGUFWriter, model: Model, networks: Sequence[str], voices: Sequence[str],
                 precision: str) -> None:
    """Add all keys.

    ``general.*``: the model's name, licence and source. ``tortoise.block_count`` and other usual keys: the decoder's
    sizes. ``tortoise.<network>.*``: each network's config, and the SHA-256 of the file with its weights.
    """
    origin = provenance_of(model)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(model.name)
    writer.add_file_type(PRECISIONS[precision])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for add, text in ((writer.add_license, origin["licence"]), (writer.add_description, origin["description"])):
        if text:
            add(text)
    if "repository" in origin["source"]:
        writer.add_source_repo_url(f"https://huggingface.co/{origin['source']['repository']}")
    _add_decoder(writer, model.config("autoregressive"))
    _add_tokenizer(writer, json.loads(model.tokenizer), model)
    own = {"created_by": f"tortoise-ane {version()}", "trained": model.trained, "clones": model.clones,
           "default_voice": model.default_voice, "networks": list(networks), "voices": list(voices),
           "source": json.dumps(origin["source"]), "settings": json.dumps(dict(model.settings))}
    for key, value in own.items():
        _add(writer, f"{ARCHITECTURE}.{key}", value)
    for network in networks:
        config = model.config(network)
        stated = dataclasses.asdict(config) | {"weights_sha256": weights_sha256(model, network)}
        for key, value in stated.items():
            if key not in config.without_effect:
                _add(writer, f"{ARCHITECTURE}.{network}.{key}", value)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a value by its type; nested lists, which ggml cannot read, as JSON."""
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], list | tuple):
            writer.add_string(key, json.dumps(value))
        else:
            writer.add_array(key, list(value))
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_int32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _add_decoder(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.layers)
    writer.add_embedding_length(config.model_dim)
    writer.add_feed_forward_length(4 * config.model_dim)
    writer.add_head_count(config.heads)
    writer.add_context_length(1 + config.text_positions + config.code_positions)    # the voice takes one position
    writer.add_vocab_size(config.number_mel_codes)
    writer.add_layer_norm_eps(1e-5)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict[str, Any], model: Model) -> None:
    """Add vocabulary, merges and special tokens, and the whole tokenizer as Hugging Face JSON.

    A start or stop id outside the vocabulary, such as upstream's start, is only in ``tortoise.autoregressive.*``.
    """
    bpe, config = tokenizer["model"], model.config("autoregressive")
    unknown = bpe.get("unk_token")
    special = {token["id"] for token in tokenizer.get("added_tokens", []) if token.get("special")}
    tokens = {id: token for token, id in bpe["vocab"].items()}
    tokens |= {token["id"]: token["content"] for token in tokenizer.get("added_tokens", [])}
    kinds = gguf.TokenType
    ids = range(max(tokens) + 1)
    writer.add_tokenizer_model(TOKENIZER)
    writer.add_token_list([tokens.get(id, f"[UNUSED{id}]") for id in ids])
    writer.add_token_types([kinds.UNUSED if id not in tokens else kinds.UNKNOWN if tokens[id] == unknown
                            else kinds.CONTROL if id in special else kinds.NORMAL for id in ids])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in bpe.get("merges", [])]
    if merges:
        writer.add_token_merges(merges)
    if unknown in bpe["vocab"]:
        writer.add_unk_token_id(bpe["vocab"][unknown])
    for add, id in ((writer.add_bos_token_id, config.start_text_token),
                    (writer.add_eos_token_id, config.stop_text_token)):
        if id in tokens:
            add(id)
    writer.add_string(gguf.Keys.Tokenizer.HF_JSON, model.tokenizer)
