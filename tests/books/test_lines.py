"""Lines that are spoken each to a sound of its own survive an interruption."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from ane.books.lines import plan_lines, spoken_lines
from ane.books.plan import SpeechIdentity
from ane.books.store import JobStore
from ane.system.errors import UserError

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
