"""Imports a FastSpeech checkpoint as NVIDIA's example saves it, with a vocoder in a file of its own."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ane.bundles.contents import Contents
from ane.bundles.surplus import Surplus
from ane.bundles.torch_checkpoint import Entries, assemble, load_pickle, match_entries, plain_names
from ane.bundles.weights import PRECISION_NAMES, layout
from ane.models.fastspeech.networks import HEAD_WIDTH, NETWORKS, PADDINGS, FastSpeechConfig, position_table
from ane.models.vocoders.bigvgan import is_bigvgan
from ane.models.vocoders.checkpoints import AUDIO, HifiganCheckpoint
from ane.system.errors import UserError

WRAPPERS = ("model", "ema")  # names of the state dict in a file that has more than it
SIDES = ("phoneme_side", "mel_side")
TABLE_ERROR = 5e-3  # of a stored position encoding; rounding to fp16 gives 2.5e-4, to bf16 2e-3
WRONG_KIND = "this is no checkpoint of NVIDIA's FastSpeech example, or a damaged one"


def import_fastspeech(
    path: Path,
    arguments: Mapping[str, Any] | None = None,
    where: str = "the given config",
    vocoder: Path | None = None,
    precision: str | None = None,
    ignore_unknown: bool = False,
) -> Contents:
    """Read a checkpoint of NVIDIA's FastSpeech example, whose sizes are those of its tensors.

    Args:
        arguments: The facts that the tensors do not state: {"padding": "exact" or "published"}, and "trained": false
            for random weights.
        where: Name of ``arguments`` in messages.
        vocoder: The checkpoint of a HiFi-GAN generator.
        precision: Of the stored parameters (default: that of the checkpoint's).
        ignore_unknown: Whether entries are accepted of which this version does not know what they are for.

    Raises:
        UserError: a file is missing, damaged, of another model, of sizes that do not fit together, or has unknown
            entries.
    """
    padding = read_arguments(arguments or {}, where)
    entries, beside = checkpoint_entries(path)
    config = infer_config(entries, path, padding)
    config.check(str(path))
    found = match_entries(
        layout(NETWORKS["fastspeech"], config).shapes,
        entries,
        path,
        lambda key: WRONG_KIND,
        lambda: "the sizes of its tensors do not fit together; the file is damaged",
    )
    check_positions(entries, config, path)
    generator = None if vocoder is None else HifiganCheckpoint(vocoder, NETWORKS["vocoder"])
    if generator and config.n_mels != AUDIO["num_mels"]:
        raise UserError(
            f"{vocoder} takes {AUDIO['num_mels']} mel bands and {path} predicts {config.n_mels}: they do "
            "not fit together"
        )
    used = {part for source in found.values() for part in source}
    [name, *others] = source_files(path, vocoder)
    surplus, positions = Surplus(), {f"{side}.position.weight" for side in SIDES}
    surplus.add(name, (key for key in entries if key not in used), positions.__contains__, beside)
    if generator:
        surplus.add(others[0], generator.unused, lambda key: False, generator.beside)
    if not ignore_unknown:
        surplus.refuse_unknown()

    def tensors(network: str) -> dict[str, torch.Tensor]:
        if network != "fastspeech":
            return generator.tensors()
        return {key: assemble(source, entries) for key, source in found.items()}

    return Contents(
        "fastspeech",
        path,
        configs={"fastspeech": config, **({"vocoder": generator.config} if generator else {})},
        tensors=tensors,
        precision=precision or PRECISION_NAMES.get(entries["word_emb.weight"].dtype, "fp32"),
        trained=(arguments or {}).get("trained", True) is not False,
        surplus=surplus,
    )


def source_files(path: Path, vocoder: Path | None = None) -> dict[str, Path]:
    """The checkpoint, then the vocoder if there is one, by name; a vocoder of the same name is vocoder/NAME."""
    if vocoder is None:
        return {path.name: path}
    return {path.name: path, vocoder.name if vocoder.name != path.name else f"vocoder/{vocoder.name}": vocoder}


def is_fastspeech(path: Path) -> bool:
    """Whether a file has tensors of FastSpeech, or is a HiFi-GAN generator, which ``import_fastspeech`` refuses.
    Raises UserError: the file is damaged.
    """
    content = load_pickle(path) if path.is_file() else {}
    if not isinstance(content, Mapping):
        return False
    entries = next((content[name] for name in WRAPPERS if isinstance(content.get(name), Mapping)), content)
    starts = ("word_emb.", *(f"{side}." for side in SIDES))
    generator = content.get("generator", {})
    if isinstance(generator, Mapping) and is_bigvgan(generator):
        return False  # a vocoder of Tortoise
    return "generator" in content or any(key.startswith(starts) for key in plain_names(entries))


def read_arguments(arguments: Mapping[str, Any], where: str) -> str:
    """The ``padding`` in ``arguments``. Raises UserError for keys other than it and ``trained``."""
    unknown = sorted(set(arguments) - {"padding", "trained"})
    if unknown:
        raise UserError(
            f"{where}: {unknown[0]!r} is unknown: a FastSpeech checkpoint states its sizes itself; only "
            f"padding ({' or '.join(PADDINGS)}) and trained can be given"
        )
    padding = arguments.get("padding", "exact")
    if padding not in PADDINGS:
        raise UserError(f"{where}: padding must be {' or '.join(PADDINGS)}, not {padding!r}")
    return padding


def checkpoint_entries(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state dict in a checkpoint under plain names, and the entries beside it. Raises UserError: no such file,
    damaged, or another kind of checkpoint.
    """
    loaded = load_pickle(path)
    if not isinstance(loaded, Mapping):
        raise UserError(f"{path} contains a {type(loaded).__name__}: {WRONG_KIND}")
    if "generator" in loaded:
        raise UserError(
            f"{path} is a vocoder, not a FastSpeech checkpoint: import both, with "
            f"`ane import CHECKPOINT.pt --vocoder {path} -o DIRECTORY`"
        )
    wrapper = next((name for name in WRAPPERS if isinstance(loaded.get(name), Mapping)), None)
    if wrapper is None:
        return plain_names(loaded), {}
    return plain_names(loaded[wrapper]), {str(key): value for key, value in loaded.items() if key != wrapper}


def infer_config(entries: Entries, path: Path, padding: str) -> FastSpeechConfig:
    """The sizes, from the shapes of the tensors. Raises UserError when one that states a size is missing."""

    def shape(key: str, dimensions: int) -> tuple[int, ...]:
        value = entries.get(key)
        if not isinstance(value, torch.Tensor) or value.ndim != dimensions:
            raise UserError(f"{path}: key {key} is {'missing' if value is None else 'of another shape'}: {WRONG_KIND}")
        return tuple(value.shape)

    embeddings, width = shape("word_emb.weight", 2)
    sizes: dict[str, int] = {}
    for side in SIDES:
        block = f"{side}.layer_stack.0"
        rows, _ = shape(f"{block}.slf_attn.linear.weight", 2)
        if rows % (3 * HEAD_WIDTH):
            raise UserError(
                f"{path}: {block}.slf_attn.linear.weight has {rows} rows, a multiple of {3 * HEAD_WIDTH} "
                f"is needed, q, k and v of {HEAD_WIDTH} for each head: {WRONG_KIND}"
            )
        layers = {int(found[1]) for key in entries if (found := re.match(rf"{side}\.layer_stack\.(\d+)\.", key))}
        inner, _, kernel = shape(f"{block}.pos_ffn.w_1.weight", 3)
        sizes |= {
            f"{side}_n_layer": 1 + max(layers),
            f"{side}_head": rows // (3 * HEAD_WIDTH),
            f"{side}_conv1d_filter_size": inner,
        }
    filters, _, _ = shape("length_regulator.duration_predictor.conv1d_1.weight", 3)
    bands, _ = shape("mel_linear.weight", 2)
    positions, _ = shape("phoneme_side.position.weight", 2)
    return FastSpeechConfig(
        max_seq_len=positions - 1,
        d_model=width,
        fft_conv1d_kernel=kernel,
        n_mels=bands,
        duration_predictor_filter_size=filters,
        embeddings=embeddings,
        padding=padding,
        **sizes,
    )


def check_positions(entries: Entries, config: FastSpeechConfig, path: Path) -> None:
    """Raise UserError unless the stored position tables are the constant ones, which the networks compute."""
    expected = torch.cat([torch.zeros(1, config.d_model), position_table(config.max_seq_len, config.d_model)])
    for side in SIDES:
        key = f"{side}.position.weight"
        table = entries.get(key)
        if not isinstance(table, torch.Tensor) or table.shape != expected.shape:
            raise UserError(
                f"{path}: key {key} is missing or does not have {config.max_seq_len + 1} rows of "
                f"{config.d_model}, as phoneme_side.position.weight does: {WRONG_KIND}"
            )
        if not (table.float() - expected).abs().max() <= TABLE_ERROR:
            raise UserError(f"{path}: {key} is not the table of sines and cosines that FastSpeech has: {WRONG_KIND}")
