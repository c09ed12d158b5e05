"""`ane say --explain`: how a text will be read, and which rules decide it. No speech is made."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from ane.bundles import Bundle
from ane.bundles.opening import DEMO
from ane.commands.messages import output_console, plain_table
from ane.system.errors import UserError
from ane.text import read_passages
from ane.text.explanation import ReadingStep, explain_english, respelled
from ane.text.user_lexicon import Lexicon


def print_explanation(args: argparse.Namespace, model: Bundle, settings: Any, text: str,
                      lexicon: Lexicon | None) -> int:
    """Print what is read and a table of steps for each chunk; with --json one object."""
    found = explanation(model, settings, text, lexicon, args)
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
        return 0
    print_steps("respelled", found["respelled"])
    for number, chunk in enumerate(found["chunks"], 1):
        changes = [f"{name} {chunk[name]:g}" for name in ("speed", "gain") if chunk[name] != 1]
        changes += [f"{chunk[f'silence_{where}']:g} s of silence {where} it" for where in ("before", "after")
                    if chunk[f"silence_{where}"]]
        output_console().print(f"{chunk['normalised']}\n")
        print_steps(", ".join([f"chunk {number} of {len(found['chunks'])}", f"{len(chunk['tokens'])} tokens",
                               *changes]), chunk["steps"])
    return 0


def print_steps(title: str, steps: list[dict[str, str]]) -> None:
    if steps:
        table = plain_table(title, "text", "read as", "rule")
        for step in steps:
            table.add_row(step["text"], step["spoken"] or "(not read)", step["rule"])
        output_console().print(table)
    elif title != "respelled":
        output_console().print(title)


def explanation(model: Bundle, settings: Any, text: str, lexicon: Lexicon | None,
                args: argparse.Namespace) -> dict[str, Any]:
    """What the lexicon respells, and the chunks: what the model is given, and the steps to it.

    Raises:
        UserError: the model does not read text with the English normaliser, or what ``speak`` raises for the text.
    """
    from ane.models.hibari.settings import HibariSettings
    from ane.models.hibari.synthesizer import MOST_IDS
    from ane.models.phoneme_chunks import split_into_phonemes
    from ane.models.tortoise.chunks import split_into_chunks

    normaliser, cased = getattr(settings, "normaliser", None), isinstance(settings, HibariSettings)
    if normaliser != "english" and not cased:
        reader = f"the normaliser {normaliser!r}" if normaliser else f"the normaliser of {model.family.title} models"
        raise UserError(f"--explain shows the rules of the normaliser 'english', and this text is read by {reader}; "
                        f"--bundle {DEMO} has it")
    markdown = args.markdown
    ssml, speed = args.ssml, 1.0 if args.speed is None else args.speed
    steps: list[ReadingStep] = []
    if lexicon:
        steps = [step for passage in read_passages(text, None, ssml, markdown)
                 for step in respelled(passage.text, lexicon)]
    chunks, passages = [], read_passages(text, lexicon, ssml, markdown)
    for chunk in (split_into_phonemes(passages, settings.split, MOST_IDS) if cased
                  else split_into_chunks(passages, model, settings)):
        normalised, own = explain_english(chunk.text, cased)
        tokens = chunk.ids.tolist() if cased else chunk.tokens[:-1]
        chunks.append({"text": chunk.text, "normalised": normalised, "tokens": tokens,
                       "speed": chunk.speed * speed, "gain": chunk.gain, "silence_before": chunk.before,
                       "silence_after": chunk.after, "steps": [asdict(step) for step in own]})
    return {"respelled": [asdict(step) for step in steps], "chunks": chunks}
