"""`ane say`: speak a text to a file or through the loudspeaker, when it is made or while it is made."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from ane.bundles import Model, add_model_arguments, open_model
from ane.commands.packages import with_packages
from ane.commands.profile import show_profile
from ane.commands.progress import Bars
from ane.commands.speech_options import add_settings_arguments, gigabytes, positive, read_settings
from ane.system.errors import UserError
from ane.system.timeline import Timeline

if TYPE_CHECKING:
    import numpy as np

    from ane.models.tortoise.result import Speech
    from ane.models.tortoise.settings import Settings
    from ane.models.tortoise.synthesizer import Stream, Synthesizer

SPOKEN = 14         # characters of English in a second of speech, about: 150 words of 5.6 characters in a minute


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
                        help="write to OUT; the format is its suffix: .wav, .flac, .mp3 or .ogg; - is standard output, "
                             "as WAV")
    parser.add_argument("--play", action="store_true", help="play as well as write (without -o that is the default)")
    parser.add_argument("--stream", action="store_true",
                        help="play or write the sound while it is made; soonest with --preset fastest")
    parser.add_argument("--lines", action="store_true",
                        help="every line is a text of its own, written to OUT-1.wav, OUT-2.wav, …; they are decoded "
                             "together")
    parser.add_argument("--profile", action="store_true",
                        help="show when each stage worked: before the text was known, until the first sound, and after")
    parser.add_argument("--json", action="store_true",
                        help="print one JSON object about the result (with --lines one a line); no progress")
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
             "good at it), int8 (the decoder on the CPU: fastest, less exact); or which packages are taken: Core ML's "
             "fp16, fp32, 8bit, 6bit, 4bit, ONNX's fp32, fp16, int8, int4 (default: the bundle's)")
    add("--cache", default="auto", choices=("auto", "io", "state"),
        help="who keeps the kv-cache of Core ML packages: io (the host) or state (Core ML)")
    add("--compute-units", choices=("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL"),
        help="where Core ML may run all networks (default: what the bundle says of each)")
    add("--memory", type=gigabytes, metavar="GB",
        help="what ONNX graphs may take at a time; the least recently used make room (default: what there is)")
    add("--force-build", action="store_true", help="build TensorRT's engines anew (onnx:tensorrt)")
    add("--threads", type=positive, metavar="N", help="CPU threads (default: the engine's choice)")
    add("--lanes", type=positive, metavar="N", help="readings of candidates and chunks sampled at a time (default: 16)")


def say(args: argparse.Namespace) -> int:
    from ane.audio import play
    from ane.models.tortoise.result import SAMPLE_RATE
    from ane.models.tortoise.settings import default_preset

    timeline = Timeline()
    refuse_unfit_flags(args)
    prompted = args.file == "-"         # the text may be long in coming: meanwhile all else is made ready
    text = None if prompted else read_text(args)
    check_ways_out(args)
    model = open_model(args.bundle, args.checkpoints)
    args.preset = args.preset or default_preset(model.settings)
    settings = read_settings(args, model)
    console = Console(stderr=True, highlight=False)
    if not model.trained and not args.json:
        console.print(f"[yellow]{escape(model.name)} has random weights: what you will hear is noise, not speech. "
                      "Give --bundle or --checkpoints for a trained model.[/]", soft_wrap=True)
    synthesizer, settings = engine(args, model, settings, console)
    if prompted:
        voice = synthesizer.prepare(args.voice, settings)
        args.voice = args.voice if "random" in str(args.voice) else voice       # what is random depends on the seed
        text = read_text(args)
    speak = speak_lines if args.lines else speak_stream if args.stream else speak_whole
    waves: list[np.ndarray] = []
    with Bars(console, shown=not args.json) as bars:
        for speech, outputs in speak(args, synthesizer, text, settings, timeline, bars):
            report(args, synthesizer, speech, outputs, console)
            if not args.stream and (args.play or args.output is None):
                waves = [speech.audio, *speech.alternatives]
    if args.profile and not args.json:
        show_profile(timeline, console)
    for audio in waves:
        play(audio, SAMPLE_RATE)
    return 0


def refuse_unfit_flags(args: argparse.Namespace) -> None:
    """Raise UserError for flags that do not go together."""
    for first, second in (("stream", "lines"), ("stream", "best"), ("lines", "best"), ("lines", "play")):
        if getattr(args, first) and getattr(args, second):
            raise UserError(f"--{first} and --{second} do not go together: leave one out")
    if args.lines and (args.output is None or str(args.output) == "-"):
        raise UserError("--lines writes a file for each line: add -o OUT")
    if args.output is not None and str(args.output) == "-":
        for flag in ("json", "best"):
            if getattr(args, flag):
                raise UserError(f"--{flag} and -o - do not go together: standard output is the sound's")


def check_ways_out(args: argparse.Namespace) -> None:
    """Fail before any work for a file that cannot be written or a sound that cannot be played."""
    from ane.audio import check_output, check_sound_device
    from ane.audio.playback import check_sound_device

    for path in output_paths(args.output, args.best or 1):
        check_output(path)
    if args.play or args.output is None:
        check_sound_device() if args.stream else check_sound_device()


def engine(args: argparse.Namespace, model: Model, settings: "Settings",
           console: Console) -> tuple["Synthesizer", "Settings"]:
    """The engine that the flags name, with what is remembered of this machine; and the settings as that wants them."""
    from ane.backends import load_backend
    from ane.backends.tuning import applying
    from ane.models.tortoise.synthesizer import Synthesizer

    model = with_packages(model, args.backend, console)
    tuned = applying(args.backend, model, args.precision, args.threads, args.cache, args.compute_units)
    if tuned and tuned.lanes and args.lanes is None:
        settings = replace(settings, lanes=tuned.lanes)
    backend = load_backend(args.backend, model, args.precision, args.threads, cache=args.cache,
                           units=args.compute_units, memory=args.memory, afresh=args.force_build,
                           notice=lambda line: console.print(escape(line), soft_wrap=True))
    return Synthesizer(model, backend), settings


Said = Iterator[tuple["Speech | Stream", list[Path]]]


def speak_whole(args: argparse.Namespace, synthesizer: "Synthesizer", text: str, settings: "Settings",
                timeline: Timeline, bars: Bars) -> Said:
    from ane.audio import write

    speech = synthesizer.speak(text, args.voice, seed=args.seed, settings=settings, progress=bars.update,
                               timeline=timeline)
    outputs = output_paths(args.output, settings.best)
    for path, audio in zip(outputs, [speech.audio, *speech.alternatives], strict=False):    # none: only to be played
        write(path, audio, speech.sample_rate)
    yield speech, outputs


def speak_lines(args: argparse.Namespace, synthesizer: "Synthesizer", text: str, settings: "Settings",
                timeline: Timeline, bars: Bars) -> Said:
    """Every line on its own, each written as soon as it is there."""
    from ane.audio import write

    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UserError("nothing to say: there is no line with text")
    outputs = output_paths(args.output, len(lines))
    speeches = synthesizer.speak_all(lines, args.voice, seed=args.seed, settings=settings, progress=bars.update,
                                     timeline=timeline)
    for speech, path in zip(speeches, outputs, strict=True):
        write(path, speech.audio, speech.sample_rate)
        yield speech, [path]


def speak_stream(args: argparse.Namespace, synthesizer: "Synthesizer", text: str, settings: "Settings",
                 timeline: Timeline, bars: Bars) -> Said:
    """To the file, the loudspeaker or both, piece by piece."""
    from ane.audio import writing
    from ane.audio.playback import PlayerError, playing

    stream = synthesizer.stream(text, args.voice, seed=args.seed, settings=settings, progress=bars.update,
                                timeline=timeline)
    mute: PlayerError | None = None
    with ExitStack() as stack:
        stack.enter_context(closing(stream))
        ways = [stack.enter_context(writing(args.output, stream.sample_rate))] if args.output is not None else []
        try:
            with ExitStack() as sounding:
                if args.play or args.output is None:
                    expected = sum(map(len, stream.chunks)) / SPOKEN
                    ways.append(sounding.enter_context(playing(stream.sample_rate, expected)))
                for piece in stream:
                    for way in ways:
                        way(piece)
        except PlayerError as error:
            if args.output is None:
                raise
            mute = error        # the file is written to its end all the same
            for piece in stream:
                ways[0](piece)
    if mute:
        raise mute
    yield stream, output_paths(args.output, 1)


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


def output_paths(output: Path | None, best: int) -> list[Path]:
    """OUT, or OUT-1 … OUT-K with its suffix when several readings are kept."""
    if output is None:
        return []
    if best == 1 or not output.name:        # "." has no name to number, and is refused as what it is
        return [output]
    return [output.with_name(f"{output.stem}-{rank}{output.suffix}") for rank in range(1, best + 1)]


def report(args: argparse.Namespace, synthesizer: "Synthesizer", speech: "Speech | Stream", outputs: list[Path],
           console: Console) -> None:
    """The closing line, or with --json one object on standard output."""
    model, timeline = synthesizer.model, speech.timeline
    if args.json:
        print(json.dumps({
            "files": [str(path) for path in outputs], "seconds": speech.seconds, "sample_rate": speech.sample_rate,
            "spent": speech.spent, "took": speech.took, "real_time_factor": speech.real_time_factor,
            "prepared": timeline.text_ready, "first_sound": timeline.first_sound - timeline.text_ready, "seed": speech.seed,
            "voice": speech.voice, "chunks": speech.chunks, "codes": speech.codes, "model": model.name,
            "trained": model.trained, "backend": synthesizer.backend.name, "preset": args.preset,
            "notes": speech.notes, "peak_rss_bytes": peak_memory(),
            **({"timeline": [asdict(span) for span in timeline.spans]} if args.profile else {})}))
        return
    for note in speech.notes:
        console.print(f"[yellow]{escape(note)}[/]", soft_wrap=True)
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in speech.spent.items())
    heard = f"; first sound after {timeline.first_sound - timeline.text_ready:.2f} s" if args.stream else ""
    where = f" → {', '.join(map(str, outputs))}" if outputs else ""
    console.print(f"{speech.seconds:.2f} s of audio{where}  ({stages}{heard}; real-time factor "
                  f"{speech.real_time_factor:.2f}; seed {speech.seed}; {synthesizer.backend.name})", soft_wrap=True,
                  markup=False)


def peak_memory() -> int | None:
    """Largest resident set of this process so far, in bytes (Linux counts in KiB, macOS in bytes, Windows not)."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
