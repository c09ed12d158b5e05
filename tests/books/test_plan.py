"""Test the plan of a narration."""

import pytest

from ane.books.document import BookChapter, Document
from ane.books.plan import WITHIN_SENTENCE, BookPlan, Silences, SpeechIdentity, plan_book, seed_of
from ane.system.errors import UserError
from ane.text.blocks import HEADING, ITEM, PARAGRAPH, SCENE_BREAK, TextBlock
from ane.text.cast import Cast
from tests.books.stand_in import StandInSpeaker, book, plan_for

IDENTITY = SpeechIdentity("model", "voice", {"steps": 3}, 1)


def plan(*blocks: TextBlock, identity: SpeechIdentity = IDENTITY) -> BookPlan:
    return plan_book(Document([BookChapter("A", list(blocks))]), identity, Silences(), (60, 90))


def test_silences_follow_the_rank_of_the_break():
    two = "One sentence of a paragraph that is rather long. Another sentence of it, which is long too."
    planned = plan(
        TextBlock(HEADING, "Title", level=1),
        TextBlock(PARAGRAPH, two),
        TextBlock(ITEM, "An item."),
        TextBlock(SCENE_BREAK),
        TextBlock(PARAGRAPH, "After the scene break."),
        TextBlock(HEADING, "Section"),
        TextBlock(PARAGRAPH, "End."),
    )
    assert [chunk.silence for chunk in planned.chunks] == [1.2, 0.35, 0.75, 1.2, 1.2, 1.2, 2.0]


def test_a_sentence_that_had_to_be_divided_has_a_short_silence_in_it():
    planned = plan(TextBlock(PARAGRAPH, "word " * 40 + "end."))
    assert {chunk.silence for chunk in planned.chunks[:-1]} == {WITHIN_SENTENCE}


def test_a_pause_that_the_text_asks_for_is_silence_between_chunks():
    planned = plan(
        TextBlock(PARAGRAPH, "Wait [pause:1.5s] for it. [pause:3s]"),
        TextBlock(PARAGRAPH, "[[slnc 500]]"),
        TextBlock(PARAGRAPH, "[pause:1s] There [pause:1s] [pause:1s] it [pause] is."),
    )
    assert [(chunk.text, chunk.silence) for chunk in planned.chunks] == [
        ("Wait", 1.5),
        ("for it.", 0.75 + 3 + 0.5 + 1),
        ("There", 2),
        ("it [pause] is.", 2),
    ]


@pytest.mark.parametrize("blocks", [["Wait." + " [pause:60s]" * 340], ["Wait."] + ["[pause:60s]"] * 340])
def test_a_short_text_cannot_ask_for_hours_of_silence(blocks):
    with pytest.raises(UserError, match=r"after 'Wait\.' the text asks for 2040[0-9.]+ s of silence, but at most 600"):
        plan(*(TextBlock(PARAGRAPH, text) for text in blocks))


def test_equal_sentences_have_keys_and_seeds_of_their_own_which_inserted_text_does_not_change():
    before, after = (
        plan(*(TextBlock(PARAGRAPH, text) for text in texts)).chunks
        for texts in (["No.", "No."], ["No.", "New.", "No."])
    )
    first, second = before
    assert first.key != second.key
    assert len({seed_of(first.key, 0), seed_of(second.key, 0), seed_of(first.key, 1)}) == 3
    assert [chunk.text for chunk in after] == ["No.", "New.", "No."], "no chunk spans two blocks"
    assert {chunk.key for chunk in before} < {chunk.key for chunk in after}


def test_model_voice_settings_and_seed_change_every_key():
    identities = [
        SpeechIdentity(model, voice, {"steps": steps}, seed)
        for model, voice, steps, seed in (
            ("model", "voice", 3, 1),
            ("other", "voice", 3, 1),
            ("model", "other", 3, 1),
            ("model", "voice", 4, 1),
            ("model", "voice", 3, 2),
        )
    ]
    assert len({plan(TextBlock(PARAGRAPH, "One."), identity=one).chunks[0].key for one in identities}) == 5


CAST = Cast(speakers={"Anna": "a", "Tom": "t"}, quotations="q", aliases={"his wife": "Anna"})
VOICED = [  # number, first characters of the key in every version, voice, text, silence in seconds
    (1, "bc2017b9", "", "“A title,” said Anna", 2.5),
    (2, "6e5006ea", "Anna", "“Come in,”", 0.15),
    (3, "679af29e", "", "said Anna.", 1.0),
    (4, "7e313f08", "Tom", "“It is late,”", 0.15),
    (5, "b5c15756", "", "said Tom.", 0.35),
    (6, "d36f0ffa", "Tom", "“Who is there?”", 0.35),
    (7, "3535325d", "", "The door opened.", 0.75),
    (8, "1a7ea73c", "Tom", "It is I.", 0.35),
    (9, "5d6bd1a6", "", "“No,” said Anna.", 1.2),
    (10, "53c995d2", "Anna", "“Come in,”", 0.15),
    (11, "38866fb2", "", "said Anna. [pause]", 0.35),
    (12, "205d7c8f", "Anna", "“Well", 2.0),
    (13, "419aaa73", "Anna", "then,”", 0.15),
    (14, "66f2e6fd", "", "said his wife.", 3.75),
    (15, "4f946d94", "Anna", "“Come in,”", 0.15),
    (16, "506240c2", "", "said Anna.", 0.75),
    (17, "6c74972e", "quotation", "“Yes.”", 0.35),
    (18, "aa4590b8", "quotation", "“No.”", 0.75),
]


def test_a_voice_is_a_field_of_its_chunks_and_keys_are_those_of_jobs_of_earlier_versions():
    def spoken_as(marked: str, voice: str) -> str:
        respelled = marked.replace("late", "layt")
        return f"{respelled} digest-{voice}" if voice else respelled

    chapters = [
        [
            TextBlock(HEADING, "“A title,” said Anna", level=1),
            TextBlock(
                PARAGRAPH,
                "[pause:1s][pause:300ms] “Come in,” said Anna. [pause:1s] “It is late,” said Tom. "
                "“Who is there?” The door opened.",
            ),
            TextBlock(PARAGRAPH, "[voice:Tom]It is I.[voice] “No,” said Anna."),
            TextBlock(SCENE_BREAK),
            TextBlock(PARAGRAPH, "“Come in,” said Anna. [pause] “Well [pause:2s] then,” said his wife."),
            TextBlock(PARAGRAPH, "[pause:1s]…[pause:2s]"),
        ],
        [TextBlock(ITEM, "“Come in,” said Anna."), TextBlock(PARAGRAPH, "“Yes.” “No.”"), TextBlock(PARAGRAPH, "")],
    ]
    document = Document([BookChapter(title, blocks) for title, blocks in zip(("One", "Two"), chapters, strict=True)])
    planned = plan_book(document, SpeechIdentity("m", "v", {"steps": 3}, 1), Silences(), None, spoken_as, CAST)
    assert [(chunk.number, chunk.key[:8], chunk.voice, chunk.text, chunk.silence) for chunk in planned.chunks] == VOICED
    assert planned.digest.startswith("b1e830eb")


def test_a_document_without_letters_is_refused():
    with pytest.raises(UserError, match="nothing to say"):
        plan(TextBlock(PARAGRAPH, "…"))


def test_a_paragraph_without_an_end_is_divided_in_bounded_memory():
    planned = plan(TextBlock(PARAGRAPH, "word " * 20_000 + "x" * 20_000))
    assert sum(len(chunk.text.split()) for chunk in planned.chunks) in (20_001, 20_002)
    assert max(len(chunk.text) for chunk in planned.chunks) <= 20_000


def test_chapters_are_chosen_by_their_numbers_from_1():
    planned = plan_for(StandInSpeaker(), book(chapters=3))
    chosen = planned.chosen([1, 3]).chunks
    assert {chunk.chapter for chunk in chosen} == {0, 2}
    assert [chunk.number for chunk in chosen] == [*range(1, len(chosen) + 1)]
    for number in (0, 4):
        with pytest.raises(UserError, match=f"chapters must name chapters from 1 to 3, got {number}"):
            planned.chosen([1, number])


def test_without_lengths_a_paragraph_is_one_chunk():
    document = Document([BookChapter("", [TextBlock(PARAGRAPH, "One line.\nAnother line. " * 50)])], "The Book")
    planned = plan_book(document, IDENTITY, Silences(), None)
    assert [len(chunk.text.split()) for chunk in planned.chunks] == [200]
    assert planned.chapters == ("The Book",)


def test_a_chapter_without_a_title_is_called_by_its_first_heading():
    document = Document(
        [
            BookChapter("", [TextBlock(PARAGRAPH, "One.")]),
            BookChapter("", [TextBlock(PARAGRAPH, "Two."), TextBlock(HEADING, "A\nhead\x1b[31ming" * 100)]),
            BookChapter("", [TextBlock(PARAGRAPH, "Three.")]),
        ],
        "The Book",
    )
    titles = plan_book(document, IDENTITY, Silences(), (60, 90)).chapters
    assert (titles[0], titles[2]) == ("The Book", "Chapter 3")
    assert titles[1].startswith("A head[31ming")
    assert len(titles[1]) == 200
