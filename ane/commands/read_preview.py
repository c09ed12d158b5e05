"""Print the previews of `ane read`: chapters, omitted text, the text that would be spoken, and how it would be read."""

import argparse
import re
from collections import Counter
from typing import TYPE_CHECKING

from ane.bundles import open_model
from ane.commands.messages import LOGGER, output_console, print_table
from ane.commands.read_report import print_cast, print_contents, warn_of_unreadable, warn_of_unused_words
from ane.commands.speech_options import read_settings
from ane.system.errors import NoEffectError
from ane.text.cast import Cast
from ane.text.explanation import ReadingStep, explain_english, respelled
from ane.text.passages import without_commands
from ane.text.user_lexicon import Lexicon, chosen_lexicon

if TYPE_CHECKING:
    from ane.books.document import Document
    from ane.books.plan import BookPlan


def print_preview(args: argparse.Namespace, document: "Document", cast: Cast | None) -> None:
    """Print the output of --list, --cast-report, --text or --explain. With these flags, nothing is spoken or stored."""
    from ane.books.plan import cast_report

    console = output_console()
    if args.list or args.explain:
        print_contents(args, document)  # names the unreadable files too
    else:
        warn_of_unreadable(document)
    if args.cast_report or (cast and (args.list or args.explain) and not args.json):
        voice = args.voice or open_model(args.bundle).default_voice or "the default"
        print_cast(console, cast_report(document, cast), cast or Cast(), voice)
    if cast:
        try:
            read_settings(args, open_model(args.bundle))
        except NoEffectError as error:
            flag = f"--{error.parameter.replace('_', '-')}"
            LOGGER.warning("a narration with these options fails: %s", str(error).replace(error.parameter, flag, 1))
    if args.text or args.explain:
        settings = read_settings(args, open_model(args.bundle))
        plan = plan_to_print(args, document, cast, getattr(settings, "split", None))
        if args.text:
            print_text(plan)
        if args.explain:
            print_readings(args, plan, settings)


def plan_to_print(
    args: argparse.Namespace, document: "Document", cast: Cast | None, lengths: tuple[int, int] | None
) -> "BookPlan":
    """Divide the document, or the part that flags choose, into chunks for printing, without a voice or seed."""
    from ane.books.plan import Silences, SpeechIdentity, plan_book

    plan = plan_book(document, SpeechIdentity("", "", {}, 0), Silences(), lengths, cast=cast)
    return plan.chosen(args.chapters, args.preview) if args.chapters or args.preview else plan


def print_text(plan: "BookPlan") -> None:
    """Print each block of text as a paragraph, with empty lines between paragraphs. Mark changes of the voice."""
    from ane.books.speakers import without_faulty_commands

    firsts = {block.first for block in plan.blocks}
    paragraphs: list[str] = []
    for chunk in plan.chunks:
        marked = " ".join(without_faulty_commands(chunk.marked)[0].split())
        if chunk.number in firsts or not paragraphs:
            paragraphs.append(marked)
        else:
            paragraphs[-1] += f" {marked}"
    output_console().print("\n\n".join(paragraphs))


def print_readings(args: argparse.Namespace, plan: "BookPlan", settings: object) -> None:
    """Print every reading that the lexicon or a rule decides, in a table. Then list words that no dictionary has."""
    from ane.models.hibari.settings import HibariSettings
    from ane.text.phonemes import phonemise

    lexicon = chosen_lexicon(args.lexicon, args.unreadable)
    phonemes = not hasattr(settings, "normaliser")  # such models read phonemes, and need the text with its capitals
    if getattr(settings, "normaliser", "english") != "english":
        LOGGER.warning(
            "the rules below belong to the normaliser 'english', but the normaliser %r reads this book",
            getattr(settings, "normaliser", None),
        )
    times, guessed, chapters = Counter[ReadingStep](), Counter[str](), dict[object, int]()
    warn_of_unused_words(lexicon, (chunk.text for chunk in plan.chunks))
    own = {
        word for entry in (lexicon or Lexicon()).entries for word in re.findall(r"[\w'’]+", entry.respelling.lower())
    }
    for chunk in plan.chunks:
        text = without_commands(chunk.text)
        steps: list[ReadingStep] = respelled(text, lexicon) if lexicon else []
        read = lexicon(text) if lexicon else text
        steps += explain_english(read, isinstance(settings, HibariSettings))[1]
        words = [
            word.text
            for word in (phonemise(read) if phonemes else ())
            if word.guessed and not own.issuperset(re.findall(r"[\w'’]+", word.text.lower()))
        ]
        times.update(steps)
        guessed.update(words)
        for step in (*steps, *words):
            chapters.setdefault(step, chunk.chapter + 1)
    rows = [
        (step.text, step.spoken or "(not read)", step.rule, str(count), str(chapters[step]))
        for step, count in sorted(times.items(), key=lambda item: (item[0].rule, -item[1]))
    ]
    if rows:
        print_table(None, "text", "read as", "rule", "times", "first in chapter", numbers=(3, 4), rows=rows)
    else:
        output_console().print("no number, sign or abbreviation is read by a rule")
    if guessed:
        rows = [(word, str(count), str(chapters[word])) for word, count in guessed.most_common()]
        title = "words that no dictionary has, read by their letters"
        print_table(title, "word", "times", "first in chapter", numbers=(1, 2), rows=rows)
        output_console().print("Listen to them with --preview. If one sounds wrong, respell it with --lexicon.")
