"""Import a FastSpeech checkpoint that NVIDIA's example saved, and a HiFi-GAN vocoder from a separate file."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ane.bundles.contents import Contents
from ane.bundles.state_dicts import StateDict, find_state_dict
from ane.bundles.surplus import Surplus
from ane.bundles.torch_checkpoint import Entries, assemble, load_pickle, match_entries, nearest_surplus
from ane.bundles.weights import PRECISION_NAMES, layout
from ane.models.fastspeech.networks import HEAD_WIDTH, NETWORKS, PADDINGS, FastSpeechConfig, position_table
from ane.models.vocoders.bigvgan import is_bigvgan
from ane.models.vocoders.checkpoints import AUDIO, HifiganCheckpoint, find_generator, has_generator
from ane.system.errors import UserError

SIDES = ("phoneme_side", "mel_side")
TABLE_ERROR = 5e-3  # largest allowed error in a stored position table; rounding to fp16 makes 2.5e-4, to bf16 2e-3
WRONG_KIND = "this is not a checkpoint of NVIDIA's FastSpeech example, or it is damaged"


def import_fastspeech(
    path: Path,
    config: Mapping[str, Any] | None = None,
    where: str = "the given config",
    vocoder: Path | None = None,
    precision: str | None = None,
    ignore_unknown: bool = False,
) -> Contents:
    """Read a checkpoint of NVIDIA's FastSpeech example. The model's sizes come from the shapes of the tensors.

    Args:
        path: Path of the checkpoint.
        config: Facts that the tensors do not show. "padding" is "exact" or "published" (see ``FastSpeechConfig``).
            "trained" is false if the weights are random.
        where: Name of ``config`` in messages.
        vocoder: Path of a HiFi-GAN generator's checkpoint, if there is one.
        precision: Precision of the stored parameters. ``None`` keeps the precision of the checkpoint.
        ignore_unknown: Whether to accept entries of the files that this version does not know.

    Raises:
        UserError: A file is missing, is damaged, or is from another model. Or the sizes do not fit together, or a file
            has unknown entries.
    """
    padding = read_arguments(config or {}, where)
    entries, other_entries, _, notes = checkpoint_entries(path)
    sizes = infer_config(entries, path, padding)
    sizes.check(str(path))
    sources = match_entries(
        layout(NETWORKS["fastspeech"], sizes).shapes,
        entries,
        path,
        lambda key: why_missing(key, entries),
        lambda: "the sizes of the tensors do not fit together, so the file is damaged",
    )
    check_positions(entries, sizes, path)
    generator = None if vocoder is None else HifiganCheckpoint(vocoder, NETWORKS["vocoder"])
    if generator and sizes.n_mels != AUDIO["num_mels"]:
        raise UserError(
            f"{vocoder} takes {AUDIO['num_mels']} mel bands, but {path} predicts {sizes.n_mels}: use another vocoder"
        )
    used = {part for source in sources.values() for part in source}
    [name, *others] = source_files(path, vocoder)
    surplus, positions = Surplus(), {f"{side}.position.weight" for side in SIDES}
    surplus.add(name, (key for key in entries if key not in used), positions.__contains__, other_entries)
    if generator:
        surplus.add(others[0], generator.unused, lambda key: False, generator.beside)
    if not ignore_unknown:
        surplus.refuse_unknown()

    def tensors(network: str) -> dict[str, torch.Tensor]:
        if network != "fastspeech":
            return generator.tensors()
        return {key: assemble(source, entries) for key, source in sources.items()}

    return Contents(
        "fastspeech",
        path,
        configs={"fastspeech": sizes, **({"vocoder": generator.config} if generator else {})},
        tensors=tensors,
        precision=precision or PRECISION_NAMES.get(entries["word_emb.weight"].dtype, "fp32"),
        trained=(config or {}).get("trained", True) is not False,
        surplus=surplus,
        notes=(*notes, *(generator.notes if generator else ())),
    )


def source_files(path: Path, vocoder: Path | None = None) -> dict[str, Path]:
    """List the checkpoint and the vocoder, if there is one, by file name.

    If both files have the same name, the vocoder is listed as vocoder/NAME.
    """
    if vocoder is None:
        return {path.name: path}
    return {path.name: path, vocoder.name if vocoder.name != path.name else f"vocoder/{vocoder.name}": vocoder}


def is_fastspeech(path: Path) -> bool:
    """Return whether a file has FastSpeech's tensors, or is a HiFi-GAN generator.

    A generator counts, so that ``import_fastspeech`` can reject it with a message that says what to do.

    Raises:
        UserError: The file is damaged.
    """
    content = load_pickle(path) if path.is_file() else {}
    if not isinstance(content, Mapping):
        return False
    starts = ("word_emb.", *(f"{side}." for side in SIDES))
    vocoder = find_generator(content, path)
    if "generator" in vocoder.wrappers and has_generator(vocoder.entries):
        return not is_bigvgan(vocoder.entries)  # a BigVGAN is a vocoder of Tortoise
    return any(key.startswith(starts) for key in find_state_dict(content, path).entries)


def read_arguments(arguments: Mapping[str, Any], where: str) -> str:
    """Return the value of ``padding`` from FastSpeech's constructor arguments.

    Raises UserError for any key except ``padding`` and ``trained``.
    """
    unknown = sorted(set(arguments) - {"padding", "trained"})
    if unknown:
        raise UserError(
            f"{where}: unknown argument {unknown[0]!r}. The only arguments are `padding` ({' or '.join(PADDINGS)}) and "
            "`trained`, because the sizes come from the FastSpeech checkpoint"
        )
    padding = arguments.get("padding", "exact")
    if padding not in PADDINGS:
        raise UserError(f"{where}: padding must be {' or '.join(PADDINGS)}, not {padding!r}")
    return padding


def checkpoint_entries(path: Path) -> StateDict:
    """Read the state dict in a checkpoint.

    Raises:
        UserError: The file is missing or damaged, is not a FastSpeech checkpoint, or holds several state dicts.
    """
    loaded = load_pickle(path)
    if not isinstance(loaded, Mapping):
        raise UserError(f"{path} contains a {type(loaded).__name__}: {WRONG_KIND}")
    if has_generator(find_generator(loaded, path).entries):
        raise UserError(
            f"{path} is a vocoder, not a FastSpeech checkpoint: import both together with "
            f"`ane import CHECKPOINT.pt --vocoder {path} -o DIRECTORY`"
        )
    return find_state_dict(loaded, path)


def why_missing(key: str, entries: Entries) -> str:
    """Return the end of the message about a missing key."""
    needed = layout(NETWORKS["fastspeech"], FastSpeechConfig()).shapes
    return nearest_surplus(key, entries, [*needed, *(f"{side}.position.weight" for side in SIDES)]) or WRONG_KIND


def infer_config(entries: Entries, path: Path, padding: str) -> FastSpeechConfig:
    """Derive the sizes from the shapes of the tensors. Raises UserError if a necessary tensor is missing."""

    def shape(key: str, dimensions: int) -> tuple[int, ...]:
        value = entries.get(key)
        if not isinstance(value, torch.Tensor) or value.ndim != dimensions:
            fault = f"is missing: {why_missing(key, entries)}" if value is None else f"has a wrong shape: {WRONG_KIND}"
            raise UserError(f"{path}: key {key} {fault}")
        return tuple(value.shape)

    embeddings, width = shape("word_emb.weight", 2)
    sizes: dict[str, int] = {}
    for side in SIDES:
        block = f"{side}.layer_stack.0"
        rows, _ = shape(f"{block}.slf_attn.linear.weight", 2)
        if rows % (3 * HEAD_WIDTH):
            raise UserError(
                f"{path}: {block}.slf_attn.linear.weight must have {3 * HEAD_WIDTH} rows per head (q, k and v, each "
                f"{HEAD_WIDTH}), got {rows} rows: {WRONG_KIND}"
            )
        layers = {int(match[1]) for key in entries if (match := re.match(rf"{side}\.layer_stack\.(\d+)\.", key))}
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
    """Raise UserError if a stored table of positions differs from the table that our networks compute."""
    expected = torch.cat([torch.zeros(1, config.d_model), position_table(config.max_seq_len, config.d_model)])
    for side in SIDES:
        key = f"{side}.position.weight"
        table = entries.get(key)
        if not isinstance(table, torch.Tensor) or table.shape != expected.shape:
            raise UserError(
                f"{path}: key {key} is missing or does not have {config.max_seq_len + 1} rows of "
                f"{config.d_model} numbers, as phoneme_side.position.weight has: {WRONG_KIND}"
            )
        if not (table.float() - expected).abs().max() <= TABLE_ERROR:
            raise UserError(f"{path}: {key} is not FastSpeech's table of sines and cosines: {WRONG_KIND}")
