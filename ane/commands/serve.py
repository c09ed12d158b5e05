"""`ane serve`: a server that speaks for many programs: OpenAI's API, a WebSocket, Wyoming."""

import argparse
import os
import sys
from dataclasses import fields
from typing import TYPE_CHECKING

from ane.bundles.opening import DEFAULT_BUNDLE
from ane.commands.arguments import FullHelpAction, comma_separated, gigabytes, natural, positive, rare_group, seconds
from ane.system.errors import UserError

if TYPE_CHECKING:
    from ane.server.settings import ServerSettings

TOKEN_VARIABLE = "ANE_TOKEN"
MEBIBYTE = 1 << 20
# Compiled kernels that oneDNN keeps (ane.cli): texts of all lengths come in turn. With 64 a FastSpeech request took 1.5
# times as long, because most kernels were compiled again; 1024 took no less time than 256.
KERNELS = 256
EXAMPLES = """
examples:
  ane serve                                    speak with the embedded voice, on this machine only
  ane serve --models demo-fast,demo --preload demo-fast
  ane serve --models demo --map-voice alloy=rms --wyoming-port 10200
  ANE_TOKEN=secret ane serve --host 0.0.0.0    for other machines
"""
INSTALL = "ane serve needs more packages: pip install 'tortoise-ane[server]'"


def register(commands: argparse._SubParsersAction) -> None:
    from ane.backends import NAMES

    parser = commands.add_parser(
        "serve", help="speak for other programs, as OpenAI's API does", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Start a server with OpenAI's speech API, a WebSocket for text that is being written, and the "
                    "Wyoming protocol. It ends on Ctrl-C or SIGTERM, when the requests that run have ended.")
    parser.add_argument("--host", default="127.0.0.1", metavar="H",
                        help="address to listen on (default: 127.0.0.1, this machine only)")
    parser.add_argument("--port", type=natural, default=8880, metavar="N", help="0: any free one (default: 8880)")
    parser.add_argument("--wyoming-port", type=natural, metavar="N", help="also serve Wyoming, for Home Assistant")
    parser.add_argument("--wyoming-host", default="", metavar="H",
                        help="address for Wyoming, which has no token (default: that of --host)")
    parser.add_argument("--models", type=comma_separated, default=[DEFAULT_BUNDLE], metavar="A,B",
                        help="bundles to speak with; the first is the one for OpenAI's model names (default: "
                             f"{DEFAULT_BUNDLE})")
    parser.add_argument("--transcriber", default="", metavar="NAME", help="Whisper bundle for transcriptions")
    parser.add_argument("--map-voice", action="append", default=[], type=voice_mapping, metavar="NAME=VOICE",
                        help="what a client's voice name means, such as alloy=rms; may be repeated")
    parser.add_argument("--token", default=os.environ.get(TOKEN_VARIABLE, ""), metavar="T",
                        help=f"what clients must send as bearer token (default: ${TOKEN_VARIABLE}, which other users "
                             "of the machine do not see)")
    parser.add_argument("--preload", type=comma_separated, default=[], metavar="A,B",
                        help="models to load at the start")
    add = rare_group(parser, "what clients may do").add_argument
    add("--add-voices", action="store_true", help="let clients make voices of clips")
    add("--ignore-instructions", action="store_true", help="ignore instructions; without it they are refused")
    add("--cors", type=comma_separated, default=[], metavar="URL,URL",
        help="origins of web pages that may use the server, such as http://localhost:3000 (default: none)")
    add("--log-texts", action="store_true", help="write the texts to the log")
    add = rare_group(parser, "models").add_argument
    add("--backend", default="auto", metavar="NAME", help=f"{', '.join(NAMES)} (default: auto)")
    add("--precision", default="auto", metavar="P", help="of the backend, as of `ane say` (default: auto)")
    add("--threads", type=positive, metavar="N", help="CPU threads (default: the backend's choice)")
    add("--calls", type=positive, metavar="N", help="network calls at a time on the CPU, which share its threads "
                                                    "(default: 2)")
    add("--lanes", type=positive, default=16, metavar="N", help="candidates sampled at a time, over all requests "
                                                                "(default: 16)")
    add("--memory", type=gigabytes, metavar="GB",
        help="size of loaded bundles at most; the least recently used is released (default: no limit)")
    add("--idle-release", type=seconds, metavar="S", help="release a model that was not used for S seconds")
    add_limits(parser)
    parser.add_argument("--help-all", action=FullHelpAction, help="show all options, by group, and exit")
    parser.set_defaults(handler=serve, kernels=KERNELS)


def add_limits(parser: argparse.ArgumentParser) -> None:
    add = rare_group(parser, "limits").add_argument
    add("--characters", type=positive, metavar="N", help="maximum characters of a text (default: 4096)")
    add("--stream-characters", type=positive, metavar="N",
        help="maximum characters of a text that arrives in pieces (default: 100000)")
    add("--silence", type=seconds, metavar="S", help="maximum pauses of a text together (default: 600)")
    add("--body", type=positive, metavar="MB", help="maximum size of a request (default: 1)")
    add("--upload", type=positive, metavar="MB", help="maximum size of a request with files (default: 25)")
    add("--files", type=positive, metavar="MB",
        help="maximum size of all requests with files at a time (default: 256)")
    add("--clip-seconds", type=seconds, metavar="S", help="maximum length of a recording to transcribe (default: 1800)")
    add("--uploads", type=positive, metavar="N",
        help="maximum files that wait to be worked on; further ones get status 429 (default: 8)")
    add("--requests", type=positive, metavar="N",
        help="maximum requests at a time; further ones get status 429 (default: 256)")
    add("--connections", type=positive, metavar="N", help="maximum open connections (default: 1024)")
    add("--sound-ahead", type=seconds, metavar="S", help="seconds of sound that wait for a slow client (default: 10)")
    add("--seconds", type=seconds, metavar="S", help="maximum time of a request (default: 600)")
    add("--idle", type=seconds, metavar="S",
        help="how long a client may be silent in the middle of a request, or not read (default: 30)")
    add("--drain", type=seconds, metavar="S", help="how long requests may go on after SIGTERM (default: 30)")


def voice_mapping(text: str) -> tuple[str, str]:
    name, sign, voice = text.partition("=")
    if not (name and sign and voice):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VOICE")
    return name, voice


def serve(args: argparse.Namespace) -> int:
    try:
        from ane.server.lifecycle import run_server
        from ane.server.served_models import check_models
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("ane"):
            raise
        raise UserError(INSTALL) from missing
    settings = read_server_settings(args)
    check_models(settings)
    run_server(settings, lambda address: announce(address, settings))
    return 0


def read_server_settings(args: argparse.Namespace) -> "ServerSettings":
    """Raises UserError for a value out of range, or a server that anybody could use."""
    from ane.server.guard import is_loopback
    from ane.server.settings import Limits, ServerSettings

    if not is_loopback(args.host) and not args.token:
        raise UserError(f"other machines reach {args.host}: add --token, or set {TOKEN_VARIABLE}")
    given = {field.name: value for field in fields(Limits) if (value := getattr(args, field.name, None)) is not None}
    limits = Limits(**{name: value * MEBIBYTE if name in ("body", "upload", "files") else value
                       for name, value in given.items()})
    return ServerSettings(
        models=tuple(args.models), transcriber=args.transcriber, host=args.host, port=args.port,
        wyoming_port=args.wyoming_port, wyoming_host=args.wyoming_host, backend=args.backend,
        precision=args.precision, threads=args.threads, calls=args.calls, lanes=args.lanes, preload=tuple(args.preload),
        memory=None if args.memory is None else round(args.memory * 1e9), idle_release=args.idle_release,
        voices=dict(args.map_voice), ignore_instructions=args.ignore_instructions, token=args.token,
        origins=tuple(args.cors), add_voices=args.add_voices, log_texts=args.log_texts, limits=limits)


def announce(address: str, settings: "ServerSettings") -> None:
    models = ", ".join(settings.models)
    sys.stdout.write(f"listening on {address} (models: {models}); a page to try it: {address}/, "
                     f"the API: {address}/docs\n")
    sys.stdout.flush()
