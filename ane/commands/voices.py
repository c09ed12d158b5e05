"""``ane voices``: list, add, show, mix and export voices."""

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ane.bundles import Model, add_model_arguments, open_model
from ane.commands.progress import notice
from ane.system import paths
from ane.system.errors import UserError
from ane.system.files import check_output_file

if TYPE_CHECKING:       # numpy, torch and soundfile come in with the handlers, so that --help is quick
    from ane.voices import FoundVoice, Voice


def register(subparsers: argparse._SubParsersAction) -> None:
    """Add ``voices`` and its own subcommands; each sets ``handler``, which takes the arguments and returns a status."""
    parser = subparsers.add_parser("voices", help="list, add, show, mix and export voices")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    listing = commands.add_parser("list", help="name the voices there are")
    listing.add_argument("--json", action="store_true", help="print JSON")
    _finish(listing, list_command)

    adding = commands.add_parser("add", help="take a voice from clips and store it")
    adding.add_argument("name", metavar="NAME", help="what to call it")
    adding.add_argument("clips", metavar="CLIP", nargs="+", help="sound files, folders of them, or a .pth voice")
    _add_encoding_arguments(adding)
    adding.add_argument("--force", action="store_true", help="replace a stored voice of that name")
    _finish(adding, add_command)

    showing = commands.add_parser("show", help="show what a voice is made of")
    showing.add_argument("name", metavar="NAME", help="name or path")
    showing.add_argument("--json", action="store_true", help="print JSON")
    _finish(showing, show_command)

    mixing = commands.add_parser("mix", help="store a mix of voices as a voice")
    mixing.add_argument("spec", metavar="SPEC", help="such as 'a&b', 'a:0.3&b:0.7' or random")
    where = mixing.add_mutually_exclusive_group(required=True)
    where.add_argument("name", metavar="NAME", nargs="?", help="what to call it among the stored voices")
    where.add_argument("-o", "--output", metavar="FILE", type=Path, help="write a .safetensors or .pth file instead")
    _add_encoding_arguments(mixing)
    mixing.add_argument("--force", action="store_true", help="replace what is there")
    _finish(mixing, mix_command)

    exporting = commands.add_parser("export", help="write a voice to a file")
    exporting.add_argument("name", metavar="NAME", help="name, path or mix")
    exporting.add_argument("file", metavar="FILE", type=Path,
                           help=".safetensors, or .pth: the pair of latents that upstream Tortoise reads")
    _add_encoding_arguments(exporting)
    exporting.add_argument("--force", action="store_true", help="replace the file if it exists")
    _finish(exporting, export_command)


def list_command(args: argparse.Namespace) -> int:
    """Print a table of all voices: name, what it is, where."""
    from ane.voices import list_voices

    voices = list_voices(_folders(open_model(args.bundle, args.checkpoints))).values()
    if args.json:
        print(json.dumps([{"name": voice.name, "files": [str(file) for file in voice.files]} for voice in voices]))
        return 0
    table = Table("voice", "made of", "in")
    for voice in voices:
        table.add_row(voice.name, _made_of(voice), str(voice.files[0].parent))
    if table.row_count:
        _console().print(table)
    else:
        _console().print("There are no voices yet. Add one: ane voices add NAME CLIP.wav")
    return 0


def add_command(args: argparse.Namespace) -> int:
    """Encode clips into a voice and store it under a name."""
    import numpy as np

    from ane.backends import load_backend
    from ane.models.tortoise.voice_encoding import encode_clips
    from ane.models.tortoise.voice_resolution import not_cloned
    from ane.voices import Voice

    model = open_model(args.bundle, args.checkpoints)
    destination = _stored(args.name, model, args.force)
    voice = _gather(args.name, args.clips)
    if not isinstance(voice, Voice):
        source = ", ".join(file.name for file in voice.files)
        voice = encode_clips(voice.read(), load_backend(args.backend, model, notice=notice), model.mel_norms,
                             np.random.default_rng(args.seed), name=args.name, source=source)
    voice.check_widths(model.widths)
    for note in not_cloned(model, voice):
        Console(stderr=True, highlight=False).print(f"[yellow]{escape(note)}[/]", soft_wrap=True)
    return _store(voice, destination)


def show_command(args: argparse.Namespace) -> int:
    """Print where a voice comes from, and the range of its latents or the length of its clips."""
    from ane.voices import Voice, find_voice, open_voice

    found = find_voice(args.name, _folders(open_model(args.bundle, args.checkpoints)))
    voice = open_voice(found.name, found.files)
    facts = {"name": found.name, "files": [str(file) for file in found.files]}
    if isinstance(voice, Voice):
        facts |= {"source": voice.source, "clip_mels": len(voice.clip_mels),
                  "latents": {"ar": _range(voice.ar), "diffusion": _range(voice.diffusion)}}
    else:
        facts["clips"] = [{"clip": number + 1, "seconds": round(len(audio) / rate, 3), "rate": rate}
                          for number, (audio, rate) in enumerate(voice.read())]
    if args.json:
        print(json.dumps(facts))
    else:
        _print_facts(facts)
    return 0


def mix_command(args: argparse.Namespace) -> int:
    """Mix voices and store the result under a name, or write it to a file."""
    import dataclasses

    model = open_model(args.bundle, args.checkpoints)
    destination = _stored(args.name, model, args.force) if args.name else _file(args.output, args.force)
    voice = resolved(args.spec, model, args.backend, args.seed)
    return _store(dataclasses.replace(voice, name=destination.stem), destination)


def export_command(args: argparse.Namespace) -> int:
    """Write a voice's latents to a file."""
    destination = _file(args.file, args.force)
    return _store(resolved(args.name, open_model(args.bundle, args.checkpoints), args.backend, args.seed), destination)


def _finish(parser: argparse.ArgumentParser, handler) -> None:
    add_model_arguments(parser)
    parser.set_defaults(handler=handler)


def _add_encoding_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backend", default="auto", metavar="NAME", help="engine that encodes clips (default: auto)")
    parser.add_argument("--seed", type=_seed, default=0, metavar="N",
                        help="chooses the part heard of clips longer than 6 s, and what random draws (default: 0)")


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def _folders(model: Model) -> list[Path]:
    return [folder for folder in (model.voices, paths.voices_dir()) if folder]


def resolved(spec: str, model: Model, backend: str = "auto", seed: int = 0) -> "Voice":
    """The voice that ``spec`` asks for, as ``resolve_voice`` has it, among the model's voices and the user's own."""
    import numpy as np

    from ane.backends import load_backend
    from ane.models.tortoise.voice_resolution import resolve_voice

    return resolve_voice(spec, folders=_folders(model), backend=load_backend(backend, model, notice=notice),
                         mel_norms=model.mel_norms, model_id=model.identity, widths=model.widths,
                         rng=np.random.default_rng(seed), seed=seed)


def _gather(name: str, clips: list[str]):
    """All files behind the arguments as one voice of clips, or the one voice of latents that was given."""
    from ane.voices import Clips, find_voice, open_voice

    parts = [open_voice(name, find_voice(os.path.join(".", clip), []).files) for clip in clips]
    if len(parts) == 1:
        return parts[0]
    if not all(isinstance(part, Clips) for part in parts):
        raise UserError(f"voice {name}: latents cannot be pooled with clips; mix them with `ane voices mix`")
    return Clips(name, tuple(file for part in parts for file in part.files))


def _stored(name: str, model: Model, force: bool) -> Path:
    """Where the user's voice of that name is kept; raises UserError when the name is unfit or taken."""
    from ane.voices import RANDOM, list_voices
    from ane.voices.finding import is_voice_file

    if name == RANDOM or name.startswith((".", "-", "~")) or any(sign in name for sign in "/\\&:"):
        raise UserError(f"{name!r} cannot name a voice: choose one without / \\ & : and . - or ~ in front, "
                        f"other than {RANDOM}")
    if not name or name != name.strip() or is_voice_file(Path(name)):       # all of which finding takes otherwise
        raise UserError(f"{name!r} cannot name a voice: choose one without blanks at its ends and without the suffix "
                        "of a file")
    if model.voices and name in list_voices([model.voices]):
        raise UserError(f"{model.name} comes with a voice {name}, which would hide yours; choose another name")
    return _file(paths.voices_dir() / f"{name}.safetensors", force)


def _file(path: Path, force: bool) -> Path:
    check_output_file(path)
    if os.path.exists(path) and not force:
        raise UserError(f"{path} exists; give --force to replace it, or choose another name")
    return path


def _store(voice: "Voice", destination: Path) -> int:
    from ane.voices import save_voice

    save_voice(destination, voice)
    _console().print(f"{destination}: {voice.source or 'latents'}")
    return 0


def _made_of(voice: "FoundVoice") -> str:
    from ane.audio.files import CLIP_SUFFIXES

    if voice.files[0].suffix.lower() in CLIP_SUFFIXES:
        return f"{len(voice.files)} clip{'s' if len(voice.files) > 1 else ''}"
    return f"{voice.files[0].suffix} file"


def _range(latent) -> dict:
    return {"shape": list(latent.shape), "min": float(latent.min()), "max": float(latent.max()),
            "std": float(latent.std())}


def _print_facts(facts: dict) -> None:
    console = _console()
    console.print(f"{facts['name']}: {', '.join(facts['files'])}")
    if "clips" in facts:
        table = Table("clip", "seconds", "rate")
        for clip in facts["clips"]:
            table.add_row(str(clip["clip"]), f"{clip['seconds']:.2f}", str(clip["rate"]))
    else:
        console.print(f"from {facts['source'] or 'an unknown source'}; mels of {facts['clip_mels']} clips, for CVVP")
        table = Table("latent", "shape", "min", "max", "std")
        for name, values in facts["latents"].items():
            table.add_row(name, "×".join(map(str, values["shape"])),
                          *(f"{values[key]:.3f}" for key in ("min", "max", "std")))
    console.print(table)


def _console() -> Console:
    """A console that takes names literally: a voice may be called [bold]."""
    return Console(markup=False, highlight=False, soft_wrap=True)
