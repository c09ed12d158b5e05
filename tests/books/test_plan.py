"""The plan of a narration, and jobs of lines."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from ane.books.document import HEADING, ITEM, PARAGRAPH, SCENE_BREAK, BookChapter, Document, TextBlock
from ane.books.lines import plan_lines, spoken_lines
from ane.books.plan import WITHIN_SENTENCE, BookPlan, Silences, SpeechIdentity, plan_book, seed_of
from ane.books.store import JobStore
from ane.system.errors import UserError
from tests.books.stand_in import StandInSpeaker, book, plan_for

IDENTITY = SpeechIdentity("model", "voice", {"steps": 3}, 1)


def plan(*blocks: TextBlock, identity: SpeechIdentity = IDENTITY) -> BookPlan:
    return plan_book(Document([BookChapter("A", list(blocks))]), identity, Silences(), (60, 90))


def test_silences_follow_the_rank_of_the_break():
    two = "One sentence of a paragraph that is rather long. Another sentence of it, which is long too."
    planned = plan(TextBlock(HEADING, "Title", level=1), TextBlock(PARAGRAPH, two), TextBlock(ITEM, "An item."),
                   TextBlock(SCENE_BREAK), TextBlock(PARAGRAPH, "After the scene break."),
                   TextBlock(HEADING, "Section"), TextBlock(PARAGRAPH, "End."))
    assert [chunk.silence for chunk in planned.chunks] == [1.2, 0.35, 0.75, 1.2, 1.2, 1.2, 2.0]


def test_a_sentence_that_had_to_be_divided_has_a_short_silence_in_it():
    planned = plan(TextBlock(PARAGRAPH, "word " * 40 + "end."))
    assert {chunk.silence for chunk in planned.chunks[:-1]} == {WITHIN_SENTENCE}


def test_a_pause_that_the_text_asks_for_is_silence_between_chunks():
    planned = plan(TextBlock(PARAGRAPH, "Wait [pause:1.5s] for it. [pause:3s]"), TextBlock(PARAGRAPH, "[[slnc 500]]"),
                   TextBlock(PARAGRAPH, "[pause:1s] There [pause:1s] [pause:1s] it [pause] is."))
    assert [(chunk.text, chunk.silence) for chunk in planned.chunks] == [
        ("Wait", 1.5), ("for it.", 0.75 + 3 + 0.5 + 1), ("There", 2), ("it [pause] is.", 2)]


@pytest.mark.parametrize("blocks", [["Wait." + " [pause:60s]" * 340], ["Wait."] + ["[pause:60s]"] * 340])
def test_a_short_text_cannot_ask_for_hours_of_silence(blocks):
    with pytest.raises(UserError, match=r"after 'Wait\.' the text asks for 2040[0-9.]+ s of silence, at most 600 s"):
        plan(*(TextBlock(PARAGRAPH, text) for text in blocks))


def test_equal_sentences_have_keys_and_seeds_of_their_own():
    first, second = plan(TextBlock(PARAGRAPH, "No."), TextBlock(PARAGRAPH, "No.")).chunks
    assert first.key != second.key
    assert len({seed_of(first.key, 0), seed_of(second.key, 0), seed_of(first.key, 1)}) == 3


def test_inserted_text_changes_no_other_key_and_no_chunk_spans_two_blocks():
    before, after = (plan(*(TextBlock(PARAGRAPH, text) for text in texts)).chunks
                     for texts in (["One.", "No."], ["One.", "New.", "No."]))
    assert [chunk.text for chunk in after] == ["One.", "New.", "No."]
    assert {chunk.key for chunk in before} < {chunk.key for chunk in after}


@pytest.mark.parametrize("other", [
    SpeechIdentity("other", "voice", {"steps": 3}, 1), SpeechIdentity("model", "other", {"steps": 3}, 1),
    SpeechIdentity("model", "voice", {"steps": 4}, 1), SpeechIdentity("model", "voice", {"steps": 3}, 2)])
def test_model_voice_settings_and_seed_change_every_key(other):
    block = TextBlock(PARAGRAPH, "One.")
    assert plan(block).chunks[0].key != plan(block, identity=other).chunks[0].key


def test_a_document_without_letters_is_refused():
    with pytest.raises(UserError, match="nothing to say"):
        plan(TextBlock(PARAGRAPH, "…"))


def test_a_paragraph_without_an_end_is_divided_in_bounded_memory():
    planned = plan(TextBlock(PARAGRAPH, "word " * 60_000 + "x" * 60_000))
    assert sum(len(chunk.text.split()) for chunk in planned.chunks) in (60_001, 60_002)
    assert max(len(chunk.text) for chunk in planned.chunks) <= 60_000


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
    document = Document([BookChapter("", [TextBlock(PARAGRAPH, "One.")]),
                         BookChapter("", [TextBlock(PARAGRAPH, "Two."),
                                          TextBlock(HEADING, "A\nhead\x1b[31ming" * 100)]),
                         BookChapter("", [TextBlock(PARAGRAPH, "Three.")])], "The Book")
    titles = plan_book(document, IDENTITY, Silences(), (60, 90)).chapters
    assert (titles[0], titles[2]) == ("The Book", "Chapter 3")
    assert titles[1].startswith("A head[31ming")
    assert len(titles[1]) == 200


LINES = [f"Line {number}." for number in range(70)] + ["Line 3."]
RATE = 24000


def identity(voice="voice"):
    return SpeechIdentity("model", voice, {}, 7)


class LineStandIn:
    """A stand-in for ``speak_all``. ``fails_at``: the line that cannot be spoken."""

    def __init__(self, fails_at=None):
        self.spoken, self.fails_at = [], fails_at

    def __call__(self, lines):
        for line in lines:
            if line == self.fails_at:
                raise UserError("stopped")
            self.spoken.append(line)
            audio = np.full(100 + 7 * len(self.spoken), sum(map(ord, line)) / 2000, np.float32)
            yield SimpleNamespace(audio=audio, sample_rate=RATE, elapsed=0.1, notes=[], words=())


def speak(folder, speaker, lines=LINES, voice="voice"):
    store = JobStore(folder)
    try:
        return list(spoken_lines(store, plan_lines(lines, identity(voice)), speaker))
    finally:
        store.close()


def test_what_was_spoken_before_an_interruption_is_not_spoken_again(tmp_path):
    first, second = LineStandIn("Line 40."), LineStandIn()
    with pytest.raises(UserError, match=r"^'Line 40.': stopped$"):
        speak(tmp_path, first)
    lines = speak(tmp_path, second)
    assert first.spoken == [*LINES[:40], *LINES[41:64]], "the others of its group"
    assert second.spoken == ["Line 40.", *LINES[64:]]
    assert [line.speech is None for line in lines] == [True] * 40 + [False] + [True] * 23 + [False] * 7
    again = speak(tmp_path, LineStandIn())
    assert all(np.array_equal(one.audio, other.audio) for one, other in zip(lines, again, strict=True))


def test_a_line_whose_sound_is_not_finite_is_named_and_not_stored(tmp_path):
    class Overflowing(LineStandIn):
        def __call__(self, lines):
            for speech in super().__call__(lines):
                speech.audio[0] = np.nan if self.spoken[-1] == "Line 5." else 0
                yield speech

    with pytest.raises(UserError, match=r"^'Line 5.': its sound holds NaN"):
        speak(tmp_path, Overflowing())
    speaker = LineStandIn()
    speak(tmp_path, speaker)
    assert speaker.spoken == ["Line 5.", *LINES[32:]]


def test_work_ends_when_two_lines_of_a_group_cannot_be_spoken(tmp_path):
    class Refusing(LineStandIn):
        def __call__(self, lines):
            self.spoken += lines
            raise UserError("no network")
            yield

    speaker = Refusing()
    with pytest.raises(UserError, match=r"^'Line 0.': no network$"):
        speak(tmp_path, speaker)
    assert speaker.spoken == [*LINES[:32], *LINES[:2]]


def test_changed_lines_alone_are_spoken_again(tmp_path):
    speak(tmp_path, LineStandIn())
    speaker = LineStandIn()
    lines = speak(tmp_path, speaker, [*LINES[:5], "Changed.", *LINES[6:], "Added."])
    assert speaker.spoken == ["Changed.", "Added."]
    assert len(lines) == 72


def test_another_voice_speaks_all_again(tmp_path):
    speak(tmp_path, LineStandIn())
    speaker = LineStandIn()
    speak(tmp_path, speaker, voice="other")
    assert speaker.spoken == LINES


def test_two_that_share_a_job_speak_each_line_once(tmp_path):
    JobStore(tmp_path).close()
    speakers = [LineStandIn(), LineStandIn()]
    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(lambda speaker: speak(tmp_path, speaker), speakers))
    assert sorted(speakers[0].spoken + speakers[1].spoken) == sorted(LINES)
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one.audio, other.audio)
