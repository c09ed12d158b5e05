"""Run ``ane voices``: list, add, mix and remove voices."""

import argparse
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ane.bundles import Bundle, add_model_arguments, is_path, open_model
from ane.bundles.opening import DEMO
from ane.commands.arguments import natural
from ane.commands.file_flags import check_files
from ane.commands.messages import LOGGER, print_listing, report_console
from ane.system import paths
from ane.system.errors import NoEffectError, UserError
from ane.system.files import check_output_file

if TYPE_CHECKING:  # numpy, torch and soundfile are imported in the handlers, so that --help is quick
    from ane.voices import Clips, FoundVoice, Voice


def register(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser("voices", help="list, add, mix and remove voices")
    commands = parser.add_subparsers(metavar="list|add|mix|remove")

    listing = commands.add_parser("list", help="list the voices")
    listing.add_argument("--json", action="store_true", help="print JSON")
    _set_handler(listing, list_command)

    adding = commands.add_parser("add", help="make a voice from clips and store it")
    adding.add_argument("clips", metavar="CLIP", nargs="+", help="sound file, folder of sound files, or a .pth voice")
    _add_output_arguments(adding)
    adding.add_argument(
        "--clip-mode",
        choices=("first", "slices", "whole"),
        default="first",
        help="sound of the clips to encode. first: a few seconds of each clip, as upstream does. slices: the whole "
        "sound, in slices of equal weight. whole: the whole sound, with an equal weight per clip (default: first)",
    )
    _set_handler(adding, add_command)

    mixing = commands.add_parser("mix", help="store a mix of voices as a new voice, or write one voice to a file")
    mixing.add_argument("spec", metavar="SPEC", help="voice, 'random', or a mix such as 'a&b' or 'a:0.3&b:0.7'")
    _add_output_arguments(mixing)
    _set_handler(mixing, mix_command)

    removing = commands.add_parser("remove", help="delete voices that you stored with add or mix")
    removing.add_argument(
        "names", metavar="NAME", nargs="+", help="voice to delete. A model's own voices cannot be deleted"
    )
    removing.set_defaults(handler=remove_command)


def _set_handler(parser: argparse.ArgumentParser, handler: Callable[[argparse.Namespace], int]) -> None:
    add_model_arguments(parser)
    parser.set_defaults(handler=handler)


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="NAME|FILE",
        help="name to store the voice under, or a file to write: .safetensors, or .pth, which upstream Tortoise reads",
    )
    parser.add_argument("--backend", default="auto", metavar="NAME", help="engine that encodes clips (default: auto)")
    parser.add_argument(
        "--seed",
        type=natural,
        default=0,
        metavar="N",
        help="random seed. It chooses which 6 s of a longer clip to use, and the voice 'random' (default: 0)",
    )
    parser.add_argument("--force", dest="overwrite", action="store_true", help="replace a voice that exists already")


def list_command(args: argparse.Namespace) -> int:
    from ane.voices import list_voices

    model = open_model(args.bundle)
    if model.voice_names or not model.has_latents:
        names = model.voice_names or [model.default_voice or model.name]
        print_listing(args, ["voice"], [(name,) for name in names], [{"name": name, "files": []} for name in names])
        if not model.voice_names:
            LOGGER.info("%s has only this voice. For other voices, use a Tortoise model: --bundle %s", model.name, DEMO)
        return 0
    voices = list_voices(_folders(model)).values()
    print_listing(
        args,
        ("voice", "content", "folder"),
        [(voice.name, _content(voice), str(voice.files[0].parent)) for voice in voices],
        [{"name": voice.name, "files": [str(file) for file in voice.files]} for voice in voices],
    )
    if not voices and not getattr(args, "json", False):
        LOGGER.info("There are no voices yet. Add one: ane voices add CLIP.wav -o NAME")
    return 0


def add_command(args: argparse.Namespace) -> int:
    import numpy as np

    from ane.backends import load_backend
    from ane.models.tortoise.voices import cloning_notes, encode_clips
    from ane.voices import Voice

    model = open_tortoise(args)
    destination = voice_destination(args.output, model, args.overwrite)
    check_files(args, {"output": destination}, voices=("clips",))
    voice = _gather(destination.stem, args.clips)
    if not isinstance(voice, Voice):
        source = ", ".join(file.name for file in voice.files)
        voice = encode_clips(
            voice.read(),
            load_backend(args.backend, model),
            model.mel_norms,
            np.random.default_rng(args.seed),
            name=destination.stem,
            source=source,
            mode=args.clip_mode,
        )
        voice = dataclasses.replace(voice, decoder=model.decoder_md5)
    elif args.clip_mode != "first":
        raise NoEffectError("clip_mode", "on a voice that is stored as latents", "leave it out")
    voice.check_widths(model.widths)
    for note in cloning_notes(model, voice):
        LOGGER.warning("%s", note)
    return _store(args, voice, destination)


def mix_command(args: argparse.Namespace) -> int:
    """Mix several voices (or take a single voice). Store the result under a name, or write it to a file."""
    model = open_tortoise(args)
    destination = voice_destination(args.output, model, args.overwrite)
    check_files(args, {"output": destination}, voices=("spec",))
    voice = resolve_for_model(args.spec, model, args.backend, args.seed)
    return _store(args, dataclasses.replace(voice, name=destination.stem), destination)


def remove_command(args: argparse.Namespace) -> int:
    """Delete the files of voices that the user stored. If one voice cannot be deleted, delete none."""
    from ane.voices import stored_files

    for file in [file for name in dict.fromkeys(args.names) for file in stored_files(name)]:
        file.unlink()
        report_console(args).print(f"deleted {file}")
    return 0


def open_tortoise(args: argparse.Namespace) -> Bundle:
    """Open the Tortoise model for which the user makes a voice.

    Raises UserError if the bundle has another kind of model.
    """
    model = open_model(args.bundle)
    if not model.has_latents:
        raise UserError(
            f"{model.name} can only speak with its built-in voices: add --bundle with a Tortoise model, such as {DEMO}"
        )
    return model


def _folders(model: Bundle) -> list[Path]:
    return [folder for folder in (model.voices, paths.voices_dir()) if folder]


def resolve_for_model(spec: str, model: Bundle, backend: str = "auto", seed: int = 0) -> "Voice":
    """Find or mix the voice ``spec`` from the model's and the user's voices (see ``resolve_voice`` for the syntax)."""
    import numpy as np

    from ane.backends import load_backend
    from ane.models.tortoise.voices import resolve_voice

    return resolve_voice(
        spec,
        folders=_folders(model),
        backend=load_backend(backend, model),
        mel_norms=model.mel_norms,
        model_id=model.identity,
        widths=model.widths,
        rng=np.random.default_rng(seed),
        decoder=model.decoder_md5,
        seed=seed,
    )


def _gather(name: str, clips: list[str]) -> "Voice | Clips":
    """Make one voice from the clips of all arguments.

    If an argument has stored latents, it must be the only argument.
    """
    from ane.voices import Clips, find_voice, open_voice

    voices = [open_voice(name, find_voice(os.path.join(".", clip), []).files) for clip in clips]
    if len(voices) == 1:
        return voices[0]
    if not all(isinstance(voice, Clips) for voice in voices):
        raise UserError(f"voice {name}: latents and clips cannot be one voice: mix them with `ane voices mix`")
    return Clips(name, tuple(file for voice in voices for file in voice.files))


def _store(args: argparse.Namespace, voice: "Voice", destination: Path) -> int:
    """Store a voice. Delete the consent to the former voice of this name, because a client may delete such a voice."""
    from ane.voices import consent_file, save_voice, stored_voice

    save_voice(destination, voice)
    report_console(args).print(f"{destination}: {voice.source or 'latents'}")
    consent = consent_file(destination)
    if os.path.realpath(destination) == os.path.realpath(stored_voice(destination.stem)) and consent.exists():
        consent.unlink()
        report_console(args).print(f"deleted {consent}, in which a speaker agreed to the former voice")
    return 0


def _content(voice: "FoundVoice") -> str:
    from ane.audio import CLIP_SUFFIXES

    if voice.files[0].suffix.lower() in CLIP_SUFFIXES:
        return f"{len(voice.files)} clip{'s' if len(voice.files) > 1 else ''}"
    return f"{voice.files[0].suffix} file"


def voice_destination(output: str, model: Bundle, force: bool) -> Path:
    """Return the path of the voice file that ``--output`` names.

    If the value ends in .safetensors or .pth, it is the path. Any other value is the name of a file in the user's
    folder of voices, where ``-v NAME`` finds it.

    Raises:
        UserError: The value is not a valid name, the file cannot be written, or it exists and ``force`` is not set.
    """
    from ane.voices import check_voice_name, list_voices, stored_voice
    from ane.voices.voice import LATENT_SUFFIXES

    file = Path(os.path.expanduser(output))
    if file.suffix.lower() not in LATENT_SUFFIXES:
        if is_path(output):
            suffixes = " or ".join(LATENT_SUFFIXES)
            raise UserError(
                f"{output!r} is not a voice file: choose a name without a path, or a file that ends in {suffixes}"
            )
        check_voice_name(output)
        if model.voices and output in list_voices([model.voices]):
            raise UserError(f"{model.name} already has a voice {output}, which would hide yours: choose another name")
        file = stored_voice(output)
    check_output_file(file, makes_folders=file.parent == paths.voices_dir())
    if os.path.exists(file) and not force:
        raise UserError(f"{file} exists: add --force to replace it, or choose another name")
    return file
