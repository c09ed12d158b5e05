"""The settings of a request, apart from its text and voice: of each of the two kinds."""

from pydantic import Field

from ane.speech.settings import SpeechSettings, setting, split_setting
from ane.system.checked import checked


@checked
class KittenSettings(SpeechSettings):
    """Settings of a request.

    Attributes:
        speed: speed of speech, 1 as trained, 2 twice as fast; it is multiplied by the voice's own factor.
        published: exactly the words, the chunks and the cut of KittenTTS 0.8.1: each sentence on its own, without its
            mark, 5000 samples less. False: texts are read as by other models, sentences keep their marks, and silence
            at the end of a chunk is trimmed.
        split: desired and maximum characters of a chunk that is not published; None: the text is one chunk. A chunk of
            more phonemes than one pass takes is split further, or with None an error.

    Raises:
        UserError: the speed is out of range.
    """

    speed: float = Field(default=1.0, ge=0.1, le=10)
    published: bool = setting(False, "for KittenTTS models: preprocess, split and cut exactly as KittenTTS 0.8.1",
                              group="text")
    split: tuple[int, int] | None = split_setting(200, 400)


@checked
class KokoroSettings(SpeechSettings):
    """Settings of a request.

    Attributes:
        speed: speed of speech, 1 as trained, 2 twice as fast.
        split: desired and maximum characters of a chunk; None: the text is one chunk. A chunk of more phonemes than one
            pass takes is split further, or with None an error.

    Raises:
        UserError: a value is out of range.
    """

    speed: float = Field(default=1.0, ge=0.5, le=2)
    split: tuple[int, int] | None = split_setting(100, 250)
