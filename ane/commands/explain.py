"""`ane say --explain`: how each word of a text will be read, and which rules decide it. No speech is made."""

import argparse
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from ane.bundles import Model
from ane.commands.messages import output_console
from ane.commands.tables import plain_table
from ane.system.errors import UserError
from ane.text.explanation import Reading, TracedText, explain_english
from ane.text.passages import read_passages
from ane.text.user_lexicon import Lexicon


@dataclass(frozen=True)
class ExplainedChunk:
    """A chunk: what the model is given, how its words are read, and the silence around it in seconds."""

    text: str
    normalised: str
    tokens: list[int]
    speed: float
    gain: float
    silence_before: float
    silence_after: float
    words: list[Reading]


def print_explanation(args: argparse.Namespace, model: Model, settings: Any, text: str,
                      lexicon: Lexicon | None) -> int:
    """Print a table for each chunk, or with --json one object."""
    chunks = explained_chunks(model, settings, text, lexicon, args)
    if args.json:
        print(json.dumps({"chunks": [asdict(chunk) for chunk in chunks]}, ensure_ascii=False))
        return 0
    for number, chunk in enumerate(chunks, 1):
        print_silence(chunk.silence_before)
        changes = [f"{name} {value:g}" for name, value in (("speed", chunk.speed), ("gain", chunk.gain)) if value != 1]
        title = ", ".join([f"chunk {number} of {len(chunks)}", f"{len(chunk.tokens)} tokens", *changes])
        table = plain_table(title, "text", "read as", "rules")
        for word in chunk.words:
            table.add_row(word.text, word.spoken or "(not read)", ", ".join(word.rules))
        output_console().print(table)
        print_silence(chunk.silence_after)
    return 0


def print_silence(seconds: float) -> None:
    if seconds:
        output_console().print(f"{seconds:g} s of silence")


def explained_chunks(model: Model, settings: Any, text: str, lexicon: Lexicon | None,
                     args: argparse.Namespace) -> list[ExplainedChunk]:
    """The chunks of the text, explained.

    Raises:
        UserError: the model does not read text with the English normaliser, or what ``speak`` raises for the text.
    """
    from ane.models.tortoise.chunks import split_into_chunks

    normaliser = getattr(settings, "normaliser", None)
    if normaliser != "english":
        reader = f"the normaliser {normaliser!r}" if normaliser else f"the normaliser of {model.family.title} models"
        raise UserError(f"--explain shows the rules of the normaliser 'english', and this text is read by {reader}")
    passages = read_passages(text, ssml=args.ssml or None, speed=1.0 if args.speed is None else args.speed)
    traces = [TracedText.of(passage.text) for passage in passages]
    for trace in traces if lexicon else ():
        trace.respell(lexicon)
    respelled = [replace(passage, text=trace.text) for passage, trace in zip(passages, traces, strict=True)]
    chunks = split_into_chunks(respelled, model, settings)
    parts = TracedText.joined(traces).pieces([chunk.text for chunk in chunks])
    explained = []
    for chunk, part in zip(chunks, parts, strict=True):
        words = explain_english(part)
        delivery = chunk.delivery
        explained.append(ExplainedChunk(chunk.text, part.text, chunk.tokens[:-1], delivery.speed, delivery.gain,
                                        delivery.before, delivery.after, words))
    return explained
