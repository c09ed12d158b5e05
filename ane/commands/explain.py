"""Run `ane say --explain`: show how a text will be read, and which rule decides each reading, without speaking."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from ane.bundles import Bundle
from ane.bundles.opening import DEMO
from ane.commands.messages import LOGGER, output_console, print_table
from ane.speech.request import SpeechContext, SpeechRequest
from ane.speech.text_notes import notes_on_text
from ane.system.errors import UserError
from ane.text.cast import cast_of
from ane.text.english import normalise_english
from ane.text.explanation import explain_english, respelled


def print_explanation(args: argparse.Namespace, model: Bundle, request: SpeechRequest) -> int:
    """Print every chunk as it will be read, followed by a table of its readings.

    With --json, print a JSON object instead.
    """
    facts = explanation(model, request)
    if args.json:
        print(json.dumps(facts, ensure_ascii=False))
        return 0
    for note in facts["notes"]:
        LOGGER.warning("%s", note)
    print_steps("respelled", facts["respelled"])
    for number, chunk in enumerate(facts["chunks"], 1):
        changes = [f"{name} {chunk[name]:g}" for name in ("speed", "gain") if chunk[name] != 1]
        changes += [
            f"{chunk[f'silence_{where}']:g} s of silence {where} it"
            for where in ("before", "after")
            if chunk[f"silence_{where}"]
        ]
        output_console().print(f"{chunk['normalised']}\n")
        print_steps(
            ", ".join([f"chunk {number} of {len(facts['chunks'])}", f"{len(chunk['tokens'])} tokens", *changes]),
            chunk["steps"],
        )
    return 0


def print_steps(title: str, steps: list[dict[str, str]]) -> None:
    if steps:
        rows = [(step["text"], step["spoken"] or "(not read)", step["rule"]) for step in steps]
        print_table(title, "text", "read as", "rule", rows=rows)
    elif title != "respelled":
        output_console().print(title)


def explanation(model: Bundle, request: SpeechRequest) -> dict[str, Any]:
    """Return the lexicon's respellings, for every chunk the model's input and the readings behind it, and the notes.

    Raises:
        UserError: The model does not use the English normaliser, or ``speak`` would reject the text.
    """
    from ane.models.hibari.settings import HibariSettings
    from ane.models.hibari.synthesizer import MOST_IDS
    from ane.models.phoneme_chunks import split_into_phonemes
    from ane.models.tortoise.chunks import split_into_chunks

    settings, lexicon = request.settings, request.lexicon
    normaliser, cased = getattr(settings, "normaliser", None), isinstance(settings, HibariSettings)
    if normaliser != "english" and not cased:
        reader = f"the normaliser {normaliser!r}" if normaliser else f"the normaliser of {model.family.title} models"
        raise UserError(
            f"--explain shows the rules of the normaliser 'english', but {reader} reads this text: "
            f"add --bundle {DEMO} to see them"
        )
    request = request.changed(cast=cast_of(request.cast, request.quote_voice))
    steps = (
        [
            step
            for passage in SpeechContext().passages(request.changed(lexicon=None))
            for step in respelled(passage.text, lexicon)
        ]
        if lexicon
        else []
    )
    chunks, passages = [], SpeechContext().passages(request)
    parts = (
        split_into_phonemes(passages, settings.split, MOST_IDS)
        if cased
        else split_into_chunks(passages, model, settings)
    )
    for chunk in parts:
        normalised, chunk_steps = explain_english(chunk.text, cased)
        tokens = chunk.ids.tolist() if cased else chunk.tokens[:-1]
        chunks.append(
            {
                "text": chunk.text,
                "normalised": normalised,
                "tokens": tokens,
                "speed": chunk.speed * request.speed,
                "gain": chunk.gain,
                "silence_before": chunk.before,
                "silence_after": chunk.after,
                "steps": [asdict(step) for step in chunk_steps],
            }
        )
    notes = notes_on_text(request, normalise_english, parts)
    return {"respelled": [asdict(step) for step in steps], "chunks": chunks, "notes": notes}
