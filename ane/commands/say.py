"""`ane say`: speak a text to a file or through the loudspeaker."""

import argparse
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from ane.commands.packages import with_packages
from ane.commands.progress import Bars
from ane.errors import UserError
from ane.model import Model, add_model_arguments, open_model

if TYPE_CHECKING:
    from ane.settings import Settings
    from ane.synthesizer import Speech


def register(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "say", help="speak a text",
        description="Speak a text to a file, or through the loudspeaker when no file is named.")
    parser.add_argument("text", nargs="?", help="what to say; or use -f")
    parser.add_argument("-f", "--file", metavar="FILE", help="read the text from FILE, from standard input if -")
    parser.add_argument("-v", "--voice", metavar="VOICE",
                        help="a name (see `ane voices list`), a folder of clips, a sound file, a voice file, `random`, "
                             "or a mix such as a&b or a:0.3&b:0.7 (default: the model's own)")
    parser.add_argument("-o", "--output", metavar="OUT", type=Path,
                        help="write to OUT; the format is its suffix: .wav, .flac, .mp3 or .ogg")
    parser.add_argument("--play", action="store_true", help="play as well as write (without -o that is the default)")
    parser.add_argument("--json", action="store_true", help="print one JSON object about the result; no progress")
    add_model_arguments(parser)
    add_engine_arguments(parser)
    add_settings_arguments(parser)
    parser.set_defaults(handler=say)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    from ane.backends import NAMES

    add = parser.add_argument_group("engine").add_argument
    add("--backend", default="auto", metavar="NAME",
        help=f"{', '.join(NAMES)}; coreml runs a bundle's Core ML packages on a Mac, mil interprets the same packages "
             "anywhere, slowly, to prove them; onnx runs its ONNX packages with ONNX Runtime (default: auto, the "
             "best there is)")
    add("--precision", default="auto", metavar="P",
        choices=("auto", "fp32", "bf16", "fp16", "8bit", "6bit", "4bit", "int8", "int4"),
        help="what torch computes in: fp32, bf16 or fp16 (default: what the weights are stored in, where the device is "
             "good at it); or which packages are taken: Core ML's fp16, fp32, 8bit, 6bit, 4bit, ONNX's fp32, "
             "fp16, int8, int4 (default: the bundle's)")
    add("--cache", default="auto", choices=("auto", "io", "state"),
        help="who keeps the kv-cache of Core ML packages: io (the host) or state (Core ML)")
    add("--compute-units", choices=("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL"),
        help="where Core ML may run all networks (default: what the bundle says of each)")
    add("--memory", type=float, metavar="GB",
        help="what ONNX graphs may take at a time; the least recently used make room (default: what there is)")
    add("--force-build", action="store_true", help="build TensorRT's engines anew (onnx:tensorrt)")
    add("--threads", type=positive, metavar="N", help="CPU threads (default: the engine's choice)")
    add("--lanes", type=positive, metavar="N", help="candidates sampled at a time (default: 8)")


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """What shapes the speech. Every default is None, so that a flag that has no effect can be told and refused."""
    from ane.diffusion import SAMPLERS
    from ane.settings import DEFAULT_PRESET, PRESETS
    from ane.text import NORMALISERS

    group = parser.add_argument_group("speech", "A model may bring defaults of its own, as the embedded one does.")
    add = group.add_argument
    add("--preset", choices=PRESETS, default=DEFAULT_PRESET, help=f"how much work to do (default: {DEFAULT_PRESET})")
    add("--seed", type=natural, metavar="N", help="say it the same way again (default: a fresh one, which is told)")
    add("--candidates", type=positive, metavar="N", help="readings sampled of each chunk (default: the preset's)")
    add("--best", type=positive, metavar="K", help="keep the K best readings, as OUT-1.wav, OUT-2.wav, …")
    add("--cvvp-amount", type=float, metavar="SHARE", help="share of CVVP in ranking, 0 to 1 (default: 0)")
    add("--temperature", type=float, metavar="T", help="of the codes: lower is more regular (default: 0.8)")
    add("--top-p", type=float, metavar="P", help="share of probability to choose codes from (default: 0.8)")
    add("--top-k", type=int, metavar="K", help="number of codes to choose from (default: 50)")
    add("--repetition-penalty", type=float, metavar="R", help="against codes met before (default: 2)")
    add("--typical-mass", type=float, metavar="M", help="typical sampling with this mass (default: off)")
    add("--max-codes", type=positive, metavar="N", help="codes a chunk at most, 21.5 to a second (default: 500)")
    add("--steps", type=positive, metavar="N", help="diffusion steps (default: the preset's)")
    add("--sampler", choices=SAMPLERS, help="of the diffusion (default: p)")
    add("--guidance", type=float, metavar="K", help="of the diffusion, 0 for none (default: the preset's)")
    add("--noise", type=float, metavar="T", help="diffusion temperature: scale of the first noise (default: 1)")
    add("--normaliser", choices=NORMALISERS, help="how text is spelt out (default: english)")
    add("--split", type=pair, metavar="D,M", help="chunks of about D and at most M characters (default: 200,300)")
    add("--no-split", action="store_true", help="speak the text in one go")


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def pair(text: str) -> tuple[int, int]:
    desired, _, maximum = text.partition(",")
    return positive(desired), positive(maximum)


def say(args: argparse.Namespace) -> int:
    from ane.audio import check_output, find_player, play, write

    text = read_text(args)
    for path in output_paths(args.output, args.best or 1):
        check_output(path)
    if args.play or args.output is None:
        find_player()
    model = open_model(args.bundle, args.checkpoints)
    settings = read_settings(args, model)
    outputs = output_paths(args.output, settings.best)
    console = Console(stderr=True, highlight=False)
    if not model.trained and not args.json:
        console.print(f"[yellow]{escape(model.name)} has random weights: what you will hear is noise, not speech. "
                      "Give --bundle or --checkpoints for a trained model.[/]", soft_wrap=True)
    backend, speech = speak(args, model, text, settings, console)
    waves = [speech.audio, *speech.alternatives]
    for path, audio in zip(outputs, waves, strict=False):       # no file when it is only to be played
        write(path, audio, speech.sample_rate)
    report(args, model, backend, speech, outputs, console)
    if args.play or not outputs:
        for audio in waves:
            play(audio, speech.sample_rate)
    return 0


def speak(args: argparse.Namespace, model: Model, text: str, settings: "Settings",
          console: Console) -> tuple[str, "Speech"]:
    from ane.backends import load_backend
    from ane.synthesizer import Synthesizer
    from ane.tuning import applying

    model = with_packages(model, args.backend, console)
    tuned = applying(args.backend, model, args.precision, args.threads, args.cache, args.compute_units)
    if tuned and tuned.lanes and args.lanes is None:
        settings = replace(settings, lanes=tuned.lanes)
    backend = load_backend(args.backend, model, args.precision, args.threads, cache=args.cache,
                           units=args.compute_units, memory=args.memory, afresh=args.force_build,
                           notice=lambda line: console.print(escape(line), soft_wrap=True))
    with Bars(console, shown=not args.json) as bars:
        speech = Synthesizer(model, backend).speak(text, args.voice, seed=args.seed, settings=settings,
                                                   progress=bars.update)
    return backend.name, speech


def read_text(args: argparse.Namespace) -> str:
    """The text from the argument, a file or standard input. UserError: none or two of them, or an unreadable file."""
    if (args.text is None) == (args.file is None):
        raise UserError("say what? Give a text, or -f FILE (- for standard input), one of the two")
    if args.text is not None:
        # bytes of the command line that are no text reach Python as lone surrogates, which must not pass for text
        return decoded(args.text.encode("utf-8", "surrogatepass"), "the text on the command line")
    try:
        content = sys.stdin.buffer.read() if args.file == "-" else Path(args.file).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the text {args.file}: {error.strerror}") from error
    return decoded(content, "standard input" if args.file == "-" else args.file)


def decoded(content: bytes, where: str) -> str:
    """The text of ``content``, its lines ended as Python ends them. UserError when it is not UTF-8."""
    try:
        return re.sub("\r\n?", "\n", content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{where} is not text in UTF-8 (byte {error.start}): convert it first") from error


def read_settings(args: argparse.Namespace, model: Model) -> "Settings":
    """The preset as it suits the model, with the flags' changes.

    Raises:
        UserError: a value out of range, or a flag without effect.
    """
    from ane.settings import Settings

    settings = Settings.of(args.preset, model.settings, **given(
        args, ("candidates", "best", "lanes", "normaliser", "cvvp_amount")))
    refuse_idle_flags(args, settings)
    sampling = replace(settings.sampling, **given(
        args, ("temperature", "top_p", "top_k", "repetition_penalty", "typical_mass", "max_codes")))
    diffusion = settings.diffusion
    if diffusion is not None:
        diffusion = replace(diffusion, **given(args, ("steps", "sampler", "guidance")))
        if args.noise is not None:
            diffusion = replace(diffusion, temperature=args.noise)
    split = None if args.no_split else args.split or settings.split
    return replace(settings, sampling=sampling, diffusion=diffusion, split=split)


def given(args: argparse.Namespace, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def refuse_idle_flags(args: argparse.Namespace, settings: "Settings") -> None:
    """Raise UserError for a flag that would be accepted and ignored."""
    rules = (
        (settings.diffusion is None, ("steps", "sampler", "guidance", "noise"),
         f"preset {args.preset} has no diffusion; choose another --preset, or leave it out"),
        (not settings.ranked, ("cvvp_amount", "lanes"),
         "there is one candidate alone; raise --candidates, or leave it out"),
        (args.no_split, ("split",), "the text is not split (--no-split)"),
        (args.output is None and args.best not in (None, 1), ("best",), "no file is written; add -o OUT"),
    )
    for idle, flags, why in rules:
        for flag in flags:
            if idle and getattr(args, flag) is not None:
                raise UserError(f"--{flag.replace('_', '-')} has no effect: {why}")


def output_paths(output: Path | None, best: int) -> list[Path]:
    """OUT, or OUT-1 … OUT-K with its suffix when several readings are kept."""
    if output is None:
        return []
    if best == 1 or not output.name:        # "." has no name to number, and is refused as what it is
        return [output]
    return [output.with_name(f"{output.stem}-{rank}{output.suffix}") for rank in range(1, best + 1)]


def report(args: argparse.Namespace, model: Model, backend: str, speech: "Speech", outputs: list[Path],
           console: Console) -> None:
    """The closing line, or with --json one object on standard output."""
    if args.json:
        print(json.dumps({
            "files": [str(path) for path in outputs], "seconds": speech.seconds, "sample_rate": speech.sample_rate,
            "spent": speech.spent, "real_time_factor": speech.real_time_factor, "seed": speech.seed,
            "voice": speech.voice, "chunks": speech.chunks, "codes": speech.codes, "model": model.name,
            "trained": model.trained, "backend": backend, "preset": args.preset, "notes": speech.notes,
            "peak_rss_bytes": peak_memory()}))
        return
    for note in speech.notes:
        console.print(f"[yellow]{escape(note)}[/]", soft_wrap=True)
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in speech.spent.items())
    where = f" → {', '.join(map(str, outputs))}" if outputs else ""
    console.print(f"{speech.seconds:.2f} s of audio{where}  ({stages}; real-time factor {speech.real_time_factor:.2f}; "
                  f"seed {speech.seed}; {backend})", soft_wrap=True, markup=False)


def peak_memory() -> int | None:
    """Largest resident set of this process so far, in bytes (Linux counts in KiB, macOS in bytes, Windows not)."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
