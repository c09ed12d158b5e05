"""Import Tortoise's official checkpoints, from a directory or a single file, into the contents of a bundle."""

import hashlib
import os
from collections.abc import Collection, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from ane.bundles import Bundle
from ane.bundles.contents import Contents
from ane.bundles.opening import read_constructor_arguments
from ane.bundles.state_dicts import StateDict
from ane.bundles.surplus import Surplus
from ane.bundles.tokenizer_json import read_tokenizer
from ane.bundles.torch_checkpoint import assemble, load_pickle
from ane.bundles.weights import PRECISION_NAMES, layout
from ane.models.tortoise.checkpoint_files import (
    BIGVGAN,
    MEL_NORMS,
    OFFICIAL,
    bigvgan_arguments,
    check_complete,
    check_vocabulary,
    check_vocoder,
    find_files,
    is_official_config,
    read_entries,
    settings_of_tokenizer,
    states_vocabulary,
    with_vocabulary,
)
from ane.models.tortoise.lora import lora_files, read_lora
from ane.models.tortoise.networks import NETWORKS
from ane.models.tortoise.upstream_keys import (
    check_surplus,
    configs,
    held_files,
    is_unneeded,
    lacks_network,
    match,
    networks_of,
    official_entries,
)
from ane.system.errors import UserError
from ane.voices import load_voice

MAKE_AGAIN = "if a voice sounds unlike its speaker, make it again from clips with `ane voices add`"
FILES = (*OFFICIAL, "tokenizer.json", MEL_NORMS)


def packaged_file(name: str) -> Path:
    """Return the path of a data file in this package, which replaces a file that a checkpoint directory lacks."""
    return Path(str(resources.files("ane.models.tortoise").joinpath("data", name)))


def import_tortoise(
    path: Path,
    config: Mapping[str, Any] | None = None,
    where: str = "the given config",
    base: Bundle | None = None,
    vocoder: Path | None = None,
    precision: str | None = None,
    ignore_unknown: bool = False,
    lora: Path | None = None,
) -> Contents:
    """Read the official .pth files from a directory, or one such file.

    A tokenizer.json or mel_norms.pth next to the checkpoints replaces the file that comes with tortoise-ane. If a
    checkpoint's name is not official, the function recognises the file by its keys
    (``ane.models.tortoise.checkpoint_files``).

    Args:
        path: Directory or file.
        config: Arguments of upstream's constructors, {"autoregressive.pth": {"layers": 30, …}, …}. The key
            "trained": false says that weights are random. If the arguments lack the size of the vocabulary, it is read
            from the weights. ``None`` means the directory's config.json. If there is no such file, it means the sizes
            of ``base``, and without a base, the official sizes.
        where: Name of ``config`` in messages.
        base: Model that provides the networks that ``path`` lacks. You need it if ``path`` is, for example, only a
            fine-tuned decoder.
        vocoder: File of a BigVGAN that replaces UnivNet. The JSON file with its sizes may be next to it.
        precision: Precision in which to store the parameters. ``None`` means the precision of the decoder's checkpoint.
        ignore_unknown: Whether to accept entries of the files whose purpose this version does not know.
        lora: LoRA to merge into the weights: a file that PEFT wrote, or its folder.

    Raises:
        UserError: A required file is missing or damaged, has unknown entries, or has the weights of another model. Or
            its weights have other sizes than ``config`` says. Or ``config`` has arguments that upstream does not have.
            Or the tokenizer has an id that the decoder does not know.
    """
    files, folder = checked_files(path, base, vocoder)
    read = {file: read_entries(file) for file in files.values()}
    own = held_networks(files, read, base)
    if config is None and is_official_config(beside := folder / "config.json"):
        config, where = read_constructor_arguments(beside), str(beside)
    sizes = sizes_of(files, read, own, config, where, base)
    adapter = read_lora(lora) if lora else None
    tokenizer, surplus, halves, notes = _tokenizer(folder, base), Surplus(), set[str](), list[str]()
    check_vocabulary(tokenizer, sizes["autoregressive"].number_text_tokens, folder)
    for file in read:
        held = [name for name in files if files[name] == file]
        entries, beside_it, _, found_notes = official_state_dict(read[file], sizes)
        notes += found_notes
        used = {
            name: match(name, sizes, entries, file)
            for official in held
            for name in networks_of(official)
            if name in own
        }
        parts = {part for found in used.values() for source in found.values() for part in source}
        check_surplus(entries, parts, file)
        surplus.add(
            held[0],
            (key for key in entries if key not in parts),
            lambda key, names=tuple(used): is_unneeded(key, names, sizes),
            beside_it,
        )
        halves |= {
            PRECISION_NAMES.get(entries[part].dtype, "fp32")
            for part in next(iter(used.get("autoregressive", {}).values()), ())
        }
    if os.path.isdir(path):
        surplus.add_files(path, (*files.values(), folder / MEL_NORMS, *([adapter.path] if adapter else [])))
    if not ignore_unknown:
        surplus.refuse_unknown()

    def merged(network: str) -> dict[str, torch.Tensor]:
        return adapter.merged(network, tensors(network)) if adapter else tensors(network)

    def tensors(network: str) -> dict[str, torch.Tensor]:
        """Read a network's state dict. Only the tensors that weight normalisation computes are copies."""
        if network not in own:
            return base.tensors(network)
        file = files[NETWORKS[network].file]
        entries = official_state_dict(read_entries(file), sizes).entries
        return {key: assemble(source, entries) for key, source in match(network, sizes, entries, file).items()}

    networks = {*own, *(base.networks if base else ())}
    md5 = plain_md5 = _md5(files["autoregressive.pth"]) if "autoregressive" in own else base.decoder_md5
    if adapter:
        shapes = {name: layout(NETWORKS[name], sizes[name]).shapes for name in networks}
        adapter.check_layers(shapes)
        if any(f"{layer}.weight" in shapes["autoregressive"] for layer in adapter.factors):
            md5 = adapter.decoder_md5(md5)
    voices, default_voice, voice_notes = find_voices(folder, base, sizes, md5, plain_md5)
    notes += voice_notes
    if borrowed := [name for file in files for name in networks_of(file) if name not in own]:
        notes.append(f"The checkpoint lacks {' and '.join(borrowed)}, so this model gets the one of {base.name}")
    if adapter:
        notes.append(f"The LoRA {adapter.path} changes {len(adapter.factors)} layers")
    return Contents(
        "tortoise",
        path,
        configs={name: sizes[name] for name in networks},
        tensors=merged,
        precision=precision or next(iter(halves), base.precision if base else "fp32"),
        trained=(config or {}).get("trained", True) is not False and (base is None or base.trained),
        tokenizer=tokenizer,
        mel_norms=_mel_norms(folder, base),
        voices=voices,
        default_voice=default_voice,
        settings={**(base.settings if base else {}), **settings_of_tokenizer(tokenizer)},
        source={"decoder_md5": md5} if md5 else {},
        surplus=surplus,
        notes=notes,
    )


def checked_files(path: Path, base: Bundle | None, vocoder: Path | None) -> tuple[dict[str, Path], Path]:
    """Find the checkpoints, by official file name, and their directory.

    Raises UserError if a necessary file is missing.
    """
    files = find_files(path)
    check_complete(path, files, base)
    folder = next(iter(files.values()), path).parent
    if vocoder:
        check_vocoder(vocoder)
        files[BIGVGAN] = vocoder
    return files, folder


def source_files(
    path: Path, base: Bundle | None = None, vocoder: Path | None = None, lora: Path | None = None
) -> dict[str, Path]:
    """List the files that ``import_tortoise`` would read, by official name. Raises UserError if a file is missing."""
    files, folder = checked_files(path, base, vocoder)
    others = {name: folder / name for name in ("tokenizer.json", MEL_NORMS) if os.path.isfile(folder / name)}
    return {**files, **others, **(lora_files(lora) if lora else {})}


def held_networks(files: Mapping[str, Path], read: Mapping[Path, StateDict], base: Bundle | None) -> list[str]:
    """List the networks in the files. A file may lack an encoder if ``base`` has this encoder."""
    return [
        name
        for file, path in files.items()
        for name in networks_of(file)
        if not (base and name in base.networks and lacks_network(name, read[path].entries))
    ]


def sizes_of(
    files: Mapping[str, Path],
    read: Mapping[Path, StateDict],
    own: Collection[str],
    config: Mapping[str, Any] | None,
    where: str,
    base: Bundle | None,
) -> dict[str, Any]:
    """Return each network's config. The docstring of ``import_tortoise`` says where a config comes from.

    Args:
        files: The checkpoints, by official file name.
        read: The content of these files.
        own: Names of the networks that the files have.
        config: Arguments of upstream's constructors, as for ``import_tortoise``.
        where: Name of ``config`` in messages.
        base: Model that provides the networks that ``own`` lacks.
    """
    stated = dict(config or {})
    if BIGVGAN in files and (beside := bigvgan_arguments(files[BIGVGAN])):
        stated.setdefault(BIGVGAN, beside)
    sizes = configs(stated, where)
    if base:
        sizes |= {
            name: base.config(name)
            for name in base.networks
            if name not in own or (config is None and NETWORKS[name].file not in stated)
        }
    if "autoregressive" in own and not states_vocabulary(config or {}):
        entries = official_state_dict(read[files["autoregressive.pth"]], sizes).entries
        sizes["autoregressive"] = with_vocabulary(sizes["autoregressive"], entries)
    return sizes


def official_state_dict(found: StateDict, sizes: Mapping[str, Any]) -> StateDict:
    """Return the state dict of a file under upstream's keys."""
    if not held_files(found.entries):
        return found
    return found._replace(entries=official_entries(found.entries, sizes["autoregressive"].heads))


def _md5(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def find_voices(
    folder: Path, base: Bundle | None, sizes: Mapping[str, Any], decoder_md5: str, plain_md5: str = ""
) -> tuple[dict[str, Path], str, list[str]]:
    """Return the files of the model's voices by name, the name of the default voice, and notes for the user.

    The voices are in the folder "voices" of ``folder``. If that folder is missing, the model gets the voices of
    ``base``, provided that their latents have the widths of this model.

    Args:
        decoder_md5: MD5 of the model's decoder.
        plain_md5: MD5 of the decoder before a LoRA was merged. The function assumes that the voices in ``folder`` were
            made with this decoder if their files name none.
    """
    own = folder / "voices"
    if os.path.isdir(own):
        voices = {path.stem: path for path in own.glob("*.safetensors")}
        others = [
            name
            for name, path in sorted(voices.items())
            if decoder_md5 and not decoder_md5.startswith(decoder_of(path) or plain_md5)
        ]
        notes = [f"Another decoder made the voices {', '.join(others)}: {MAKE_AGAIN}"] if others else []
        return voices, "random", notes
    fits = (
        base
        and base.voices
        and base.widths
        == tuple(network.voice_width(sizes[name]) for name, network in NETWORKS.items() if network.voice_width)
    )
    if not fits:
        return {}, "random", []
    notes = (
        []
        if base.decoder_md5 == decoder_md5
        else [f"This model gets the voices of {base.name}, whose decoder differs: {MAKE_AGAIN}"]
    )
    return {path.stem: path for path in base.voices.glob("*.safetensors")}, base.default_voice, notes


def decoder_of(voice: Path) -> str:
    """Return the MD5 of the decoder that a voice's file names, or its first characters. Return "" if it names none."""
    try:
        return load_voice(voice).decoder
    except UserError:  # the file is damaged, which its first use reports
        return ""


def _tokenizer(folder: Path, base: Bundle | None) -> str:
    own = folder / "tokenizer.json"
    if base and not os.path.isfile(own):
        return base.tokenizer
    return read_tokenizer(own if os.path.isfile(own) else packaged_file("tokenizer.json"))


def _mel_norms(folder: Path, base: Bundle | None) -> np.ndarray:
    own = folder / MEL_NORMS
    if not os.path.isfile(own):
        return base.mel_norms if base else load_file(packaged_file("mel_norms.safetensors"))["mel_norms"]
    norms = load_pickle(own)
    if not isinstance(norms, torch.Tensor) or tuple(norms.shape) != (80,) or not norms.is_floating_point():
        raise UserError(f"{own} must hold one tensor of 80 floats, like upstream's data/mel_norms.pth")
    if not torch.isfinite(norms).all() or (norms == 0).any():
        raise UserError(f"{own} has zero, NaN or infinite values, so no spectrogram can be divided by it")
    return norms.detach().float().numpy().copy()
