"""Run `ane say`: speak a text to a file or through the loudspeaker.

The text comes from the command line, a file or standard input. `ane say` writes or plays the sound when it is complete,
or with ``--stream`` or ``--follow`` while the model generates it.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ane.bundles import add_model_arguments, open_model
from ane.commands import arguments
from ane.commands.explain import print_explanation
from ane.commands.file_flags import check_files
from ane.commands.listings import printed_values
from ane.commands.macos_flags import about_rate, add_macos_arguments, apply_macos_arguments
from ane.commands.messages import ProgressDisplay, message_console
from ane.commands.say_report import numbered_paths, output_paths, print_report, write_beside
from ane.commands.say_text import arrives_late, arriving_text, check_lines, has_words, read_text
from ane.commands.speech_options import (
    add_backend_arguments,
    add_request_arguments,
    add_settings_arguments,
    load_synthesizer,
    read_settings,
    requested,
    timed_words_wanted,
)
from ane.speech.request import SpeechContext, SpeechRequest
from ane.system.errors import NoEffectError, UserError
from ane.system.files import check_output_file, is_stream
from ane.system.sound_formats import SUFFIX_HELP
from ane.system.timeline import Timeline
from ane.text import nothing_to_say_error
from ane.text.cast import Cast, cast_of, read_cast
from ane.text.user_lexicon import chosen_lexicon

if TYPE_CHECKING:
    import numpy as np

    from ane.speech.speaker import Speaker
    from ane.speech.stream import SoundStream, Speech


CHARACTERS_PER_SECOND = 14  # approximate speed of English speech: 150 words per minute, 5.6 characters per word
EXAMPLES = """
examples:
  ane say Hello world                          speak it through the loudspeaker
  ane say 'Hello, world.' -o hello.wav         write the sound to a file
  ane say -f chapter.txt --stream              play the sound while it is generated
  date | ane say                               speak another program's output
  PROGRAM | ane say --follow                   start before the program has ended
"""


def register(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "say",
        help="speak a text",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Speak a text through the loudspeaker, or write the sound to a file with -o.",
    )
    parser.add_argument(
        "text",
        nargs="*",
        metavar="TEXT",
        help="text to speak (default: read standard input, or speak each line that you type)",
    )
    parser.add_argument(
        "-f", "--file", "--input-file", metavar="FILE", help="read the text from FILE, or from standard input if '-'"
    )
    add_request_arguments(parser, "voice")
    parser.add_argument(
        "-o",
        "--output",
        "--output-file",
        metavar="OUT",
        type=arguments.path,
        help=f"file to write, whose suffix chooses the format: {SUFFIX_HELP}. '-' writes WAV to standard output",
    )
    parser.add_argument("--play", action="store_true", help="play the sound as well as write it to -o OUT")
    parser.add_argument(
        "--stream",
        action="store_true",
        help="play or write the sound while it is generated. Tortoise starts soonest with --preset fastest",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="read standard input as it arrives, and speak each clause once it is complete",
    )
    parser.add_argument(
        "--lines",
        action="store_true",
        help="write one file per line: OUT-1.wav, OUT-2.wav, …, numbered by line. If the last number has more digits, "
        "all have as many: OUT-01.wav. An empty line gets no file",
    )
    add_request_arguments(parser, "lexicon", "ssml", "markdown")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show how each word would be read and which rule decides it, without speaking",
    )
    parser.add_argument(
        "--word-times",
        metavar="FILE.json",
        dest="times_file",
        type=arguments.path,
        help="write the start and end of each word to FILE.json. With --lines, to FILE-1.json, FILE-2.json, …",
    )
    parser.add_argument("--srt", action="store_true", help="also write SubRip subtitles, OUT.srt")
    parser.add_argument("--vtt", action="store_true", help="also write WebVTT subtitles, OUT.vtt")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print facts about the result as a JSON object (with --lines, one object per line), and no progress",
    )
    add_model_arguments(parser)
    add_settings_arguments(parser)
    add_backend_arguments(parser)
    add_macos_arguments(parser)
    parser.add_argument("--help-all", action=arguments.FullHelpAction, help="show all options, by group, and exit")
    parser.set_defaults(handler=say, texts_read=[])


def say(args: argparse.Namespace) -> int:
    try:
        return say_text(args)
    except UserError as error:
        raise about_rate(error, args) from error.__cause__


def say_text(args: argparse.Namespace) -> int:
    """Speak the text that the flags name. If a flag has the value "?", list the flag's values instead."""
    from ane.audio import play

    if printed_values(args):
        return 0
    apply_macos_arguments(args)
    timeline, args.sound_device = Timeline(), None
    refuse_conflicting_flags(args)
    typed = sys.stdin.isatty() and not any(
        getattr(args, flag) for flag in ("text", "file", "output", "follow", "explain", "times_file", "lines", "best")
    )
    args.stream = args.stream or typed
    # the text may arrive late, so the model and the voice are loaded before the text is read
    piped = args.follow or typed or arrives_late(args)
    lexicon = chosen_lexicon(args.lexicon, args.unreadable)
    cast = read_cast(args.cast) if args.cast else None
    text = None if piped and not args.explain else read_text(args)
    if text is not None and not has_words(text):
        raise nothing_to_say_error(text)
    model = open_model(args.bundle)
    if not args.explain:
        check_kept(args, range(1, 1 + (1 if args.lines else args.best or 1)), cast)
        check_outputs(args)
    settings = read_settings(args, model)
    cast = cast if args.cast else None  # the model may have one voice, so that a default cast was left out
    request = requested(args, text or "", settings, lexicon=lexicon, cast=cast, word_times=timed_words_wanted(args))
    if args.explain:
        return print_explanation(args, model, request)
    console = message_console(args)
    synthesizer = load_synthesizer(args, model, settings, console)
    named = args.voice or (cast.narrator if cast else "") or None
    if text is None:
        voice = synthesizer.prepare(settings=settings, **({"voice": named} if model.takes_voices else {}))
        if voice is not None and "random" not in str(named):  # each request draws another random voice, from its seed
            request = request.changed(voice=voice)
        request = request if args.follow or typed else replace(request, text=read_text(args))
    streamed = speak_typed if typed else speak_pieces
    speak = speak_lines if args.lines else streamed if args.follow or args.stream else speak_whole
    waves: list[tuple[np.ndarray, int]] = []
    with ProgressDisplay(console, shown=args.progress or not (args.json or args.quiet)) as progress:
        context = SpeechContext(progress.update, timeline, batched=not (args.follow or args.stream))
        for speech, outputs in speak(args, synthesizer, request, context):
            print_report(args, synthesizer, speech, outputs, console)
            if not (args.stream or args.follow) and (args.play or args.output is None):
                waves = [(audio, speech.sample_rate) for audio in (speech.audio, *speech.alternatives)]
    for audio, rate in waves:
        play(audio, rate, args.sound_device, args.audio_device)
    return 0


def refuse_conflicting_flags(args: argparse.Namespace) -> None:
    """Raise UserError for flags that cannot be combined, or if --best asks for too many candidates."""
    from ane.models.tortoise.settings import MAX_CANDIDATES

    for first, second in (
        ("stream", "lines"),
        ("stream", "best"),
        ("lines", "best"),
        ("lines", "play"),
        ("follow", "lines"),
        ("follow", "best"),
        ("follow", "ssml"),
    ):
        refuse_both(args, first, second)
    if args.follow and (args.text or args.file not in (None, "-")):
        message = "--follow reads standard input: leave out TEXT and -f"
        raise NoEffectError("follow", "with a text", text=message)
    for timed in ("times_file", "srt", "vtt"):
        for flag in ("stream", "follow", "explain"):
            refuse_both(args, timed, flag)
    unfiled = args.output is None or is_stream(args.output)
    for flag, written in (
        ("srt", "subtitles next to the sound file"),
        ("vtt", "subtitles next to the sound file"),
        ("lines", "one file per line"),
    ):
        if getattr(args, flag) and unfiled and not args.explain:
            message = f"--{flag} writes {written}: add -o OUT"
            raise NoEffectError(flag, "without a file", text=message)
    for flag in ("output", "play", "stream", "follow", "lines"):
        if args.explain and getattr(args, flag):
            raise NoEffectError(flag, "with --explain, which speaks nothing", "leave it out", ("explain",))
    for flag in ("json", "best"):
        if str(args.output) == "-" and getattr(args, flag):
            message = f"--{flag} and -o - cannot be combined, because standard output is the sound: name a file"
            raise NoEffectError(flag, "with -o -", text=message)
    if args.output is None and args.best not in (None, 1):
        raise NoEffectError("best", "without a file", "add -o OUT")
    if (args.best or 1) > MAX_CANDIDATES:
        raise UserError(f"best must be from 1 to {MAX_CANDIDATES}, got {args.best}", "best")


def refuse_both(args: argparse.Namespace, first: str, second: str) -> None:
    """Raise NoEffectError if the user gave two flags that cannot be combined."""
    if getattr(args, first) and getattr(args, second):
        name = "--word-times" if first == "times_file" else f"--{first}"
        message = f"{name} and --{second} cannot be combined: leave one out"
        raise NoEffectError(second, f"with {name}", partners=(first,), text=message)


def check_outputs(args: argparse.Namespace) -> None:
    """Raise UserError if an output cannot be written or the sound device is missing. Call this before speaking."""
    from ane.audio import check_output, check_sound_device

    for path in output_paths(args.output, args.best or 1):
        check_output(path)
    for path in subtitles_of(args, args.output):
        check_output_file(path)
    if args.times_file is not None:
        check_output_file(args.times_file, streams=True)
    if args.play or args.output is None:
        args.sound_device = check_sound_device(name=args.audio_device)


def check_kept(args: argparse.Namespace, numbers: Sequence[int], cast: Cast | None = None) -> None:
    """Raise UserError if a file to write is also a file to read, or would be written twice.

    Args:
        numbers: Numbers in the names of the outputs. With ``--lines`` they count lines, and otherwise candidates.
        cast: The cast of ``--cast``, whose voices are inputs too.
    """
    sounds = named_outputs(args, numbers)
    subtitles = [path for sound in sounds for path in subtitles_of(args, sound)]
    by_suffix = {suffix: [path for path in subtitles if path.suffix == f".{suffix}"] for suffix in ("srt", "vtt")}
    times = numbered_paths(args.times_file, numbers) if args.lines else output_paths(args.times_file, 1)
    check_files(
        args,
        {"output": sounds, "times_file": times, **by_suffix},
        ("file", "lexicon", "cast"),
        ("voice", "quote_voice"),
        cast=cast,
    )


def named_outputs(args: argparse.Namespace, numbers: Sequence[int]) -> list[Path]:
    """Return the paths of the sound files.

    The names of the files contain the number of the line or the candidate.
    """
    return numbered_paths(args.output, numbers) if args.lines else output_paths(args.output, len(numbers))


def subtitles_of(args: argparse.Namespace, sound: Path | None) -> list[Path]:
    """Return the subtitle files that belong to a sound file."""
    return [sound.with_suffix(f".{form}") for form in ("srt", "vtt") if sound is not None and getattr(args, form)]


SpeechOutputs = Iterator[tuple["Speech | SoundStream", list[Path]]]


def speak_whole(
    args: argparse.Namespace, synthesizer: "Speaker", request: SpeechRequest, context: SpeechContext
) -> SpeechOutputs:
    """Speak the text, and write every chunk as soon as it is made.

    If the sound is also played, has alternatives or needs word times, write everything after the last chunk is made.
    """
    from ane.audio import write

    piecewise = args.output is not None and not args.play and (args.best or 1) == 1 and not timed_words_wanted(args)
    if piecewise:
        yield from speak_pieces(args, synthesizer, request, context)
        return
    speech = synthesizer.speech_of(request, context)
    outputs = output_paths(args.output, 1 + len(speech.alternatives))
    for path, audio in zip(outputs, [speech.audio, *speech.alternatives], strict=False):  # no outputs without -o
        write(path, audio, speech.sample_rate, args.samples, args.encoding)
    yield speech, outputs + write_beside(speech, subtitles_of(args, args.output), args.times_file)


def speak_pieces(
    args: argparse.Namespace, synthesizer: "Speaker", request: SpeechRequest, context: SpeechContext
) -> SpeechOutputs:
    """Speak the text or standard input, and write or play every chunk of audio as soon as it is made."""
    stream = (
        synthesizer.feed_of(arriving_text(), request, context)
        if args.follow
        else synthesizer.stream_of(request, context)
    )
    send_pieces(args, synthesizer, stream)
    yield stream, output_paths(args.output, 1)


def speak_typed(
    args: argparse.Namespace, synthesizer: "Speaker", request: SpeechRequest, context: SpeechContext
) -> SpeechOutputs:
    """Speak each line as soon as the user has typed it in the terminal. macOS's `say` does the same."""
    for line in sys.stdin:
        if has_words(line):
            yield from speak_pieces(args, synthesizer, replace(request, text=line), SpeechContext(context.progress))


def send_pieces(args: argparse.Namespace, synthesizer: "Speaker", stream: "SoundStream") -> None:
    """Write every chunk of audio to the file, play it, or both, as soon as it is made. Close the stream at the end.

    If playback fails, write the rest of the file before raising the error.
    """
    from ane.audio import writing
    from ane.audio.playback import PlayerError, playing

    failure: PlayerError | None = None
    with ExitStack() as stack:
        stack.enter_context(closing(stream))
        sinks = []
        if args.output:
            opened = writing(args.output, stream.sample_rate, samples=args.samples, encoding=args.encoding)
            sinks.append(stack.enter_context(opened))
        try:
            with ExitStack() as playback:
                if args.play or args.output is None:
                    expected = sum(map(len, stream.chunks)) / CHARACTERS_PER_SECOND
                    # with --follow, the first clause is played immediately, because the next clause may take long to
                    # arrive
                    blocked = getattr(synthesizer.backend, "blocks_python", False)
                    sinks.append(
                        playback.enter_context(
                            playing(
                                stream.sample_rate, expected, args.follow, args.audio_device, args.sound_device, blocked
                            )
                        )
                    )
                for piece in stream:
                    for sink in sinks:
                        sink(piece)
        except PlayerError as error:
            if args.output is None:
                raise
            failure = error
            for piece in stream:
                sinks[0](piece)
    if failure:
        raise failure


def speak_lines(
    args: argparse.Namespace, synthesizer: "Speaker", request: SpeechRequest, context: SpeechContext
) -> SpeechOutputs:
    """Speak every line separately, and write its sound file as soon as the line is complete."""
    from ane.audio import write

    lines = {number: line for number, line in enumerate(request.text.splitlines(), 1) if line.strip()}
    if not lines:
        raise UserError("nothing to say: there is no line with text")
    check_lines(request)
    check_kept(args, [*lines], cast_of(request.cast))
    outputs = numbered_paths(args.output, [*lines])
    times = numbered_paths(args.times_file, [*lines]) or [None] * len(lines)
    with closing(synthesizer.speeches_of([*lines.values()], request, context)) as spoken:  # type: ignore[type-var]
        for line, path, times_file in zip(spoken, outputs, times, strict=True):
            write(path, line.audio, line.sample_rate, args.samples)
            yield line, [path, *write_beside(line, subtitles_of(args, path), times_file)]
