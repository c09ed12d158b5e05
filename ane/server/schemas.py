"""Define the bodies of requests and responses, from which the OpenAPI schema is made, and the WebSocket's messages."""

from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, field_validator, model_validator

from ane.speech.request import SpeechRequest
from ane.system.sound_formats import SENT
from ane.text.unicode_to_ascii import Unreadable

MAX_SEED = 2**63 - 1


def lowered(value: Any) -> Any:
    """Turn a word to lower case, because some programs write WAV or EN-us."""
    return value.lower() if isinstance(value, str) else value


SoundFormat = Annotated[Literal[SENT], BeforeValidator(lowered)]  # type: ignore[valid-type]
# codes that clients of Kokoro-FastAPI use for English. The voice decides whether it is American or British
EnglishCode = Annotated[Literal["a", "b", "en", "en-us", "en-gb"], BeforeValidator(lowered)]
FORMAT_HELP = "format of the sound. pcm is 16 bits, little-endian, one channel, at 24 kHz"
Word = Annotated[str, Field(min_length=1, max_length=200)]


class StrictModel(BaseModel):
    """A request body in which an unknown parameter is an error, because ignoring it would hide a mistake."""

    model_config = ConfigDict(extra="forbid")


class VoiceId(StrictModel):
    id: str = Field(max_length=200)


class CastFields(StrictModel):
    """The voices of speakers: the fields of ``ane.text.cast.Cast`` that a client can set."""

    narrator: str = Field("", max_length=200, description="voice of the text outside quotations")
    quotations: str = Field("", max_length=200, description="voice of quotations whose speaker is not known")
    speakers: dict[Word, Word] = Field({}, max_length=200, description="voice of each speaker, by name")
    aliases: dict[Word, Word] = Field({}, max_length=200, description="speaker that a name in the text stands for")
    lines: dict[Word, Word] = Field({}, max_length=1000, description="speaker of a quotation, by its first words")


def fields_of_request(**limits: dict[str, Any]) -> dict[str, Any]:
    """Copy those fields of ``SpeechRequest`` that JSON can express, with tighter limits for clients."""
    fields, hints = dict[str, Any](), get_type_hints(SpeechRequest)
    for name, further in limits.items():
        declared = SpeechRequest.__pydantic_fields__[name]  # type: ignore[attr-defined]
        optional = declared.default is None
        kind = Annotated[hints[name].__args__[0] if optional else hints[name], *declared.metadata, Field(**further)]  # type: ignore[valid-type]
        fields[name] = (
            kind | None if optional else kind,
            Field(declared.default, description=declared.json_schema_extra["api"]),
        )
    return fields


class OpenAIFields(StrictModel):
    model: str = Field(
        max_length=200,
        examples=["tts-1"],
        description="name of a model in /v1/models, or OpenAI's tts-1, tts-1-hd or gpt-4o-mini-tts",
    )
    voice: Annotated[str, Field(max_length=200)] | VoiceId | None = Field(
        None, description="name of a voice in /v1/audio/voices, or a name of OpenAI that the server maps"
    )
    response_format: SoundFormat = Field("mp3", description=FORMAT_HELP)


SHARED = fields_of_request(
    speed={"ge": 0.25, "le": 4.0, "allow_inf_nan": False},
    seed={"le": MAX_SEED},
    preset={"max_length": 100},
    word_times={},
)


class SpeechFields(create_model("RequestFields", __base__=OpenAIFields, **SHARED)):
    """The fields of a request for speech, without its text.

    ``seed``, ``preset``, ``lexicon``, ``unreadable``, ``word_times`` and ``cast`` are our additions to OpenAI's fields.
    """

    lang_code: EnglishCode | None = Field(None, description="language of the text, which is always English here")
    lexicon: Annotated[dict[Word, Word], Field(max_length=1000)] | None = Field(
        None, description="respellings: an object that maps a word to its respelling"
    )
    unreadable: Unreadable = Field(
        "nearest",
        description="treatment of words in scripts other than Latin: read the nearest English letters, spell or skip "
        "them, or reject the text",
    )
    cast: CastFields | None = Field(
        None, description="voices of speakers and their quotations. [voice:NAME] in the text changes the voice"
    )

    @field_validator("speed", mode="before")
    @classmethod
    def default_speed(cls, speed: Any) -> Any:
        """Replace a speed of null by 1, because some of OpenAI's clients send null."""
        return 1.0 if speed is None else speed

    @property
    def voice_name(self) -> str | None:
        narrator = self.cast.narrator or None if self.cast else None
        return self.voice.id if isinstance(self.voice, VoiceId) else narrator if self.voice is None else self.voice


class SpeechBody(SpeechFields):
    """The body of a request for speech."""

    input: str = Field(
        min_length=1,
        examples=["Hello there."],
        description="text to speak. It may contain pauses, such as [pause:1.5s], or be SSML",
    )
    instructions: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="rejected, because no model here follows instructions. A server can be set to ignore it"
    )
    stream_format: Literal["audio", "sse"] = Field(
        "audio", description="audio: the sound alone. sse: server-sent events with sound in base64, words and errors"
    )
    stream: bool | None = Field(None, description="false: send the file once it is finished, with its length")


class ModelCard(BaseModel):
    """A model of this server.

    Attributes:
        presets: Names of the presets, beginning with the default preset. The list is empty if presets have no effect.
        random: Whether a seed changes the speech.
        characters: Maximum number of characters in a text.
        voice: Name of the voice that speaks if a request names no voice.
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
    """All voices. ``voices`` repeats ``data``, because Open WebUI reads the voices under this name."""

    object: Literal["list"] = "list"
    data: list[VoiceCard]
    voices: list[VoiceCard]


class AudioModel(BaseModel):
    id: str
    name: str


class AudioModelList(BaseModel):
    """The list of models that can speak, in the JSON format of Open WebUI."""

    models: list[AudioModel]


class NewVoice(BaseModel):
    id: str
    name: str
    object: Literal["audio.voice"] = "audio.voice"
    created_at: int
    notes: list[str] = Field([], description="warnings, for example that the model has only its trained voices")


class DeletedVoice(BaseModel):
    id: str
    object: Literal["audio.voice"] = "audio.voice"
    deleted: Literal[True] = True


class Health(BaseModel):
    status: str
    version: str


class StreamStart(SpeechFields):
    """The first message of a client on the WebSocket."""

    type: Literal["start"]
    response_format: SoundFormat = Field("pcm", description=FORMAT_HELP)


class StreamText(StrictModel):
    """A message on the WebSocket with a piece of text, or the message "end" after the last piece."""

    type: Literal["text", "end"]
    text: str = ""

    @model_validator(mode="after")
    def with_text(self) -> Self:
        """Refuse a message of the type "text" that lacks its text, because its client may have misnamed the field."""
        if self.type == "text" and "text" not in self.model_fields_set:
            raise ValueError('a message of the type "text" must have the field text')
        return self
