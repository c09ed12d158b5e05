"""The bodies of requests and responses, as the OpenAPI schema describes them, and the messages of the WebSocket."""

from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, field_validator

from ane.speech.request import SpeechRequest
from ane.system.sound_formats import SENT

MAX_SEED = 2**63 - 1


def lowered(value: Any) -> Any:
    """A word in lower case: programs write WAV, EN-us."""
    return value.lower() if isinstance(value, str) else value


SoundFormat = Annotated[Literal[SENT], BeforeValidator(lowered)]  # type: ignore[valid-type]
# English as Kokoro-FastAPI's clients name it; the voice decides whether it is American or British
EnglishCode = Annotated[Literal["a", "b", "en", "en-us", "en-gb"], BeforeValidator(lowered)]
FORMAT_HELP = "of the sound; pcm is 16 bits, little-endian, one channel, at 24 kHz"
Word = Annotated[str, Field(min_length=1, max_length=200)]


class StrictModel(BaseModel):
    """A body in which an unknown parameter is an error: it would have no effect."""

    model_config = ConfigDict(extra="forbid")


class VoiceId(StrictModel):
    id: str = Field(max_length=200)


class CastFields(StrictModel):
    """Who speaks with which voice: the fields of ``ane.text.cast.Cast`` that a client sets."""

    narrator: str = Field("", max_length=200)
    quotations: str = Field("", max_length=200, description="of quotations whose speaker is not known")
    speakers: dict[Word, Word] = Field({}, max_length=200, description="names, and their voices")
    aliases: dict[Word, Word] = Field({}, max_length=200, description="names in the text, and whom they mean")
    lines: dict[Word, Word] = Field({}, max_length=1000, description="beginnings of quotations, and their speakers")


def fields_of_request(**limits: dict[str, Any]) -> dict[str, Any]:
    """Return those fields of a ``SpeechRequest`` that have the same value in JSON, with further limits for clients."""
    made, hints = dict[str, Any](), get_type_hints(SpeechRequest)
    for name, further in limits.items():
        declared = SpeechRequest.__pydantic_fields__[name]  # type: ignore[attr-defined]
        optional = declared.default is None
        kind = Annotated[hints[name].__args__[0] if optional else hints[name], *declared.metadata, Field(**further)]  # type: ignore[valid-type]
        made[name] = (
            kind | None if optional else kind,
            Field(declared.default, description=declared.json_schema_extra["api"]),
        )
    return made


class OpenAIFields(StrictModel):
    model: str = Field(
        max_length=200,
        examples=["tts-1"],
        description="a name of /v1/models, or OpenAI's tts-1, tts-1-hd, gpt-4o-mini-tts",
    )
    voice: Annotated[str, Field(max_length=200)] | VoiceId | None = Field(
        None, description="a name of /v1/audio/voices, or one of OpenAI's that the server maps"
    )
    response_format: SoundFormat = Field("mp3", description=FORMAT_HELP)


SHARED = fields_of_request(
    speed={"ge": 0.25, "le": 4.0, "allow_inf_nan": False},
    seed={"le": MAX_SEED},
    preset={"max_length": 100},
    word_times={},
)


class SpeechFields(create_model("RequestFields", __base__=OpenAIFields, **SHARED)):
    """What a request for speech states beside its text: OpenAI's parameters, and our ``seed``, ``preset``, ``lexicon``,
    ``unreadable``, ``word_times`` and ``cast``.
    """

    lang_code: EnglishCode | None = Field(None, description="English, which every model here speaks")
    lexicon: Annotated[dict[Word, Word], Field(max_length=1000)] | None = Field(
        None, description="words and their respellings"
    )
    unreadable: Literal["nearest", "spell", "skip", "refuse"] = Field(
        "nearest",
        description="words in scripts other than Latin: read the nearest English letters, spell, skip or refuse them",
    )
    cast: CastFields | None = Field(
        None, description="voices of quotations and speakers; [voice:NAME] in the text changes the voice"
    )

    @field_validator("speed", mode="before")
    @classmethod
    def default_speed(cls, speed: Any) -> Any:
        """Take null as 1, as some clients of OpenAI send it."""
        return 1.0 if speed is None else speed

    @property
    def voice_name(self) -> str | None:
        narrator = self.cast.narrator or None if self.cast else None
        return self.voice.id if isinstance(self.voice, VoiceId) else narrator if self.voice is None else self.voice


class SpeechBody(SpeechFields):
    """The body of a request for speech."""

    input: str = Field(
        min_length=1, examples=["Hello there."], description="the text; it may have pauses, [pause:1.5s], or be SSML"
    )
    instructions: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="refused, or ignored where the server is set so: no model follows any"
    )
    stream_format: Literal["audio", "sse"] = Field(
        "audio", description="the sound alone, or events with it in base64, also of words and errors"
    )
    stream: bool | None = Field(None, description="false: the finished sound, whose file states its length")


class ModelCard(BaseModel):
    """A model. ``presets``: none where presets have no effect; the first is its default. ``random``: whether a seed has
    an effect. ``characters``: of a text, at most. ``voice``: the name of the voice that speaks when none is named.
    """

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "tortoise-ane"
    presets: list[str] = []
    random: bool = False
    characters: int = 0
    voice: str = ""


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class VoiceCard(BaseModel):
    id: str
    name: str
    object: Literal["audio.voice"] = "audio.voice"
    models: list[str]


class VoiceList(BaseModel):
    """``voices``: the same again, under the name by which Open WebUI looks for it."""

    object: Literal["list"] = "list"
    data: list[VoiceCard]
    voices: list[VoiceCard]


class AudioModel(BaseModel):
    id: str
    name: str


class AudioModelList(BaseModel):
    """Models that speak, as Open WebUI lists them."""

    models: list[AudioModel]


class NewVoice(BaseModel):
    id: str
    name: str
    object: Literal["audio.voice"] = "audio.voice"
    created_at: int
    notes: list[str] = Field([], description="warnings, such as that the model has only the voices it was trained on")


class Health(BaseModel):
    status: str
    version: str


class StreamStart(SpeechFields):
    """The first message of a WebSocket."""

    type: Literal["start"]
    response_format: SoundFormat = Field("pcm", description=FORMAT_HELP)


class StreamText(StrictModel):
    """A piece of text of a WebSocket; "end" says that there is no more."""

    type: Literal["text", "end"]
    text: str = ""
