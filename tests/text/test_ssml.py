"""Test how text is divided into passages, which are stretches between changes such as pauses, and SSML."""

import pytest

from ane.speech.chunks import Chunk, split_to_fit
from ane.system.errors import UserError
from ane.text import normalise_english, read_passages
from ane.text.passages import Passage
from ane.text.ssml import ssml_notes
from ane.text.tokenizer import NothingToSayError
from ane.text.user_lexicon import Lexicon, LexiconEntry
from tests.tables import rows

PAUSES = [
    ("Hello there.", [Passage("Hello there.")]),
    ("Wait [pause:1.5s] go", [Passage("Wait ", 1.5), Passage(" go")]),
    ("Wait [[slnc 500]] go", [Passage("Wait ", 0.5), Passage(" go")]),
    ("[pause:500ms][pause: 1 s]go", [Passage("", 0.5), Passage("", 1.0), Passage("go")]),
    ("go [pause:.25s]\n", [Passage("go ", 0.25)]),
    ("[1] a[b] [[Wiki page]] [paused] [x](http://y.z)", [Passage("[1] a[b] [[Wiki page]] [paused] [x](http://y.z)")]),
    ("", [Passage("")]),
]


@pytest.mark.parametrize(("text", "passages"), PAUSES)
def test_pauses_divide_a_text(text, passages):
    assert read_passages(text) == passages


@pytest.mark.parametrize(("text", "fault"), rows(__file__, "ssml.tsv", "faulty pauses"))
def test_markup_that_cannot_be_done_is_refused_with_its_line(text, fault):
    with pytest.raises(UserError, match=fault):
        read_passages(text)


def test_the_lexicon_is_applied_between_pauses():
    lexicon = Lexicon([LexiconEntry("pause", "paws")])
    assert read_passages("A pause [pause:1s] pause", lexicon) == [Passage("A paws ", 1.0), Passage(" paws")]


def test_every_silence_belongs_to_a_chunk():
    passages = [Passage("", 1), Passage("a b", 2, speed=1.5), Passage("--", 3), Passage("c", 0), Passage("", 4)]
    chunks = split_to_fit(passages, a_word, (1, 1), 9, "letters")
    assert [(chunk.text, chunk.speed, chunk.before, chunk.after, chunk.final) for chunk in chunks] == [
        ("a", 1.5, 1, 0, False),
        ("b", 1.5, 0, 5, False),
        ("c", 1.0, 0, 4, True),
    ]
    paused = split_to_fit(passages, a_word, (1, 1), 9, "letters", lambda text: 0.5)
    assert [chunk.after for chunk in paused] == [0.5, 5.5, 4], "the model's own pause lies between chunks alone"
    with pytest.raises(NothingToSayError):
        split_to_fit([Passage("", 1)], a_word, (1, 1), 9, "letters")


class Word(Chunk):
    length = 1


def a_word(piece: str, passage: Passage) -> Word | None:
    return Word(piece) if piece.isalpha() else None


def passages(inside: str) -> list[Passage]:
    return read_passages(f"<speak>{inside}</speak>")


def test_a_paragraph_ends_with_a_period_before_an_element_without_words():
    assert passages("<p>Go<emphasis> </emphasis></p><p>B</p>") == [Passage("Go.\n\n B.\n\n")]


def test_breaks_and_prosody_divide_a_text():
    assert passages('A <break time="500ms"/>B<prosody rate="150%" volume="-6dB"> c</prosody>') == [
        Passage("A ", 0.5),
        Passage("B"),
        Passage(" c", speed=1.5, gain=0.501),
    ]
    assert passages('<break strength="strong"/>A<break/><break time="1s"/>') == [Passage("", 0.8), Passage("A", 1.4)]
    assert passages('<prosody rate="slow">a<prosody rate="+25%" volume="soft">b</prosody></prosody>') == [
        Passage("a", speed=0.8),
        Passage("b", speed=1.0, gain=0.5),
    ]


def test_sentences_and_paragraphs_end():
    [passage] = passages("<p>\n <s>One two</s>\n <s>Is it?</s>\n</p><p>Three</p>")
    assert [part.strip() for part in passage.text.split("\n\n")] == ["One two.", "Is it?", "Three.", ""]


@pytest.mark.parametrize(("element", "words"), rows(__file__, "ssml.tsv", "elements"))
def test_elements_are_read(element, words):
    assert normalise_english("".join(passage.text for passage in passages(element))) == words


@pytest.mark.parametrize(("element", "words", "notes"), rows(__file__, "ssml.tsv", "documented"))
def test_tags_of_polly_and_google_are_read_with_a_note_on_each_that_has_no_effect(element, words, notes):
    document = element if element.startswith("<speak") else f"<speak>\n{element}</speak>"
    assert normalise_english("".join(passage.text for passage in read_passages(document))).strip() == words
    assert "; ".join(note.removeprefix("SSML, line 2: ") for note in ssml_notes(document)) == notes


@pytest.mark.parametrize(("inside", "fault"), rows(__file__, "ssml.tsv", "faults"))
def test_what_cannot_be_done_is_refused(inside, fault):
    with pytest.raises(UserError, match=fault):
        passages(inside)


@pytest.mark.parametrize(
    "document",
    [
        '<!DOCTYPE speak [<!ENTITY a "aaaaaaaaaa">]><speak>&a;</speak>',
        '<!DOCTYPE speak SYSTEM "file:///etc/passwd"><speak>a</speak>',
        "<speak>" + "<p>" * 200 + "</p>" * 200 + "</speak>",
        "<speech>a</speech>",
    ],
)
def test_documents_that_attack_or_are_no_ssml_are_refused(document):
    with pytest.raises(UserError, match=r"SSML, line 1: (a document type|elements are nested|the text is not within)"):
        read_passages(document, ssml=True)


def test_ssml_is_read_only_where_it_is_asked_for_or_begins_the_text():
    assert read_passages('<?xml version="1.0"?>\n<speak version="1.1">a</speak>') == [Passage("a")]
    assert read_passages("<speaker> says <break/>") == [Passage("<speaker> says <break/>")]
    assert read_passages("<speak>a</speak>", ssml=False) == [Passage("<speak>a</speak>")]
