"""Find who speaks each quotation of a text. The rules are data, and the first rule that matches decides.

If a rule only guesses the speaker, the quotation is marked as doubtful. The pattern of a rule is matched in the
narration next to the quotation. A pattern of the side "after" must match at the beginning of the narration after the
quotation. A pattern of the side "before" must match at the end of the narration before the quotation. In a pattern,
"{name}" stands for a name or for a description with an article, and "{verb}" for a word of ``VERBS``.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

VERBS = """said says asked asks answered answers replied replies cried cries exclaimed shouted called whispered murmured
muttered remarked observed added continued returned repeated inquired enquired demanded declared began
interrupted thought suggested agreed insisted protested growled sighed gasped laughed sobbed pleaded shrieked
screamed roared ejaculated retorted rejoined announced explained admitted objected grumbled hissed
snapped read sneered stammered warned wondered persisted responded urged squeaked panted
groaned moaned grunted grinned chuckled giggled croaked barked bellowed boomed breathed choked conceded
confessed confided corrected countered drawled echoed faltered gulped howled huffed implored interjected joked lamented
lied mocked mumbled mused noted offered ordered pressed proposed purred quavered queried
quipped rasped reasoned recited reflected reminded reported scoffed scolded sang snarled sniffed snorted spat
spluttered squealed stated stuttered swore taunted teased thundered ventured volunteered vowed wailed wheezed whimpered
whined yawned yelled yelped begged advised cautioned complained concluded cursed guessed hollered commanded"""
PHRASES = "went on", "put in", "broke in", "chimed in", "piped up", "pointed out", "cut in", "burst out", "spoke up"
TITLES = (
    "St|Ste|Saint|Prof|Rev|Hon|Fr|Gen|Col|Maj|Lt|Sgt|Capt|Cpl|Pvt|Cmdr|Adm|Gov|Sen|Pres|Supt|Insp|Mme|Mlle|"
    "Mr|Mrs|Miss|Ms|Dr|Doctor|Sir|Lady|Lord|Captain|Colonel|Professor|Inspector|King|Queen|Father|Aunt|Uncle"
)
PROPER = rf"(?:(?:{TITLES})\.?\s+|[A-Z]\.\s?){{0,3}}[A-Z][\w-]*(?:[’'][A-Z]\w+)?(?:\s+[A-Z][\w-]+){{0,2}}"
# A name: capitalised, but not a pronoun or a word that often begins a sentence.
NAME = (
    r"(?<!\w)(?P<name>(?!(?:He|She|It|They|We|You|"
    rf"I|This|That|There|Then|But|And|So|Now|What|Who|How|Here|If|When|As|At|In|"
    rf"For|On|Well|Yes|No|Oh|Both|All|Nobody)\b)(?:(?:[Tt]he|[Aa]n?)\s+(?:{PROPER}|[a-z]+(?:\s+[a-z]+)?)|{PROPER}))"
)
PRONOUN = r"(?P<pronoun>[Hh]e|[Ss]he|[Ii]t|[Tt]hey|[Hh]im|[Hh]er)"
ROLE = r"(?P<name>(?:[Hh]is|[Hh]er|[Mm]y|[Oo]ur|[Tt]heir)\s+\w+)"
TOLD = r"told (?:him|her|them|me|us|you|it|[Tt]he \w+|[A-Z]\w+)"
VERB = (rf"(?:{'|'.join([*VERBS.split(), *PHRASES, TOLD])})(?:\s+(?:out|aloud|again|back))?").replace(" ", r"\s+")
ADVERB = r"(?:(?:had|only|just|then|at\s+once|at\s+last|again|once\s+more|\w+ly)\s+){0,2}"
LEAD = r"[^.;!?“”\"‘]*[,:]\s*(?:—\s*)?\Z"  # text between the verb and the quotation
BESIDE = r"(?:,[^,.;:!?]{1,60},)?"  # "Anna, smiling, said"
END = r"(?![\w’'])"
NEAR = 300  # how many characters before and after a quotation the rules look at
OPENING = re.compile(r"“|(?<!\w)\"|(?<![\w’])‘")
CLOSING = {"“": re.compile("”|\\Z"), '"': re.compile(r"\"|\Z"), "‘": re.compile(r"(?P<speech>[,.?!…—])?’(?!\w)|\Z")}


@dataclass(frozen=True)
class AttributionRule:
    """A rule that finds the speaker of a quotation.

    Attributes:
        side: Position of the narration that names the speaker: "after" or "before" the quotation.
        doubtful: Whether the speaker that the rule finds is a guess.
    """

    name: str
    side: str
    pattern: str
    doubtful: bool = False


RULES = (
    AttributionRule("“…” said NAME", "after", rf"\s*[—-]*\s*{VERB}\s+{NAME}{END}"),
    AttributionRule("“…” I said", "after", rf"\s*[—-]*\s*(?:{VERB}\s+(?P<name>I)|(?P<first>I)\s+{ADVERB}{VERB}){END}"),
    AttributionRule("“…” NAME said", "after", rf"\s*[—-]*\s*{NAME}{BESIDE}\s+{ADVERB}{VERB}{END}"),
    AttributionRule("NAME said: “…”", "before", rf"{NAME}{BESIDE}\s+{ADVERB}{VERB}\b{LEAD}"),
    AttributionRule("said NAME: “…”", "before", rf"{VERB}\s+{NAME}{END}{LEAD}"),
    AttributionRule("I said: “…”", "before", rf"\b(?P<name>I)\s+{ADVERB}{VERB}\b{LEAD}"),
    AttributionRule("“…” she said", "after", rf"\s*[—-]*\s*(?:{VERB}\s+{PRONOUN}){END}", True),
    AttributionRule("“…” she said", "after", rf"\s*[—-]*\s*{PRONOUN}{BESIDE}\s+{ADVERB}{VERB}{END}", True),
    AttributionRule("she said: “…”", "before", rf"\b{PRONOUN}{BESIDE}\s+{ADVERB}{VERB}\b{LEAD}", True),
    AttributionRule("“…” said his wife", "after", rf"\s*[—-]*\s*{VERB}\s+{ROLE}{END}", True),
    AttributionRule("“…” his wife said", "after", rf"\s*[—-]*\s*{ROLE}\s+{ADVERB}{VERB}{END}", True),
    AttributionRule("NAME smiled. “…”", "before", rf"\A\s*{NAME}\s+\w+[^“”\"]*\Z", True),
)
OF_CAST, SAME, CONTINUED = "the cast's lines", "the same paragraph", "a quotation goes on"
ALTERNATING, UNKNOWN, NO_SPEECH = "alternating speakers", "no attribution", "quoted words, no speech"


@dataclass(frozen=True)
class QuotedLine:
    """A quotation, its position in a paragraph, its speaker ("" if unknown), and the rule that found the speaker."""

    paragraph: int
    start: int
    end: int
    text: str
    speaker: str = ""
    rule: str = UNKNOWN
    doubtful: bool = True


def attribute(
    paragraphs: Sequence[str], speaker_named: Callable[[str], str] = str, lines: Mapping[str, str] | None = None
) -> list[QuotedLine]:
    """Find all quotations in a text, in order, and who speaks them.

    Args:
        paragraphs: Paragraphs of the text.
        speaker_named: Function that turns a name in the text into a speaker.
        lines: Beginnings of quotations and their speakers, which override the rules.
    """
    attributed: list[QuotedLine] = []
    prepared = CastLines(lines or {})
    former: list[QuotedLine] = []  # last quotation of each of the two latest paragraphs with speech
    for number, text in enumerate(paragraphs):
        quotes = [QuotedLine(number, start, end, text[start:end]) for start, end in quotations(text)]
        stated = [stated_speaker(text, quotes, index, speaker_named, prepared) for index in range(len(quotes))]
        quotes = with_context(text, stated, former, speaker_named)
        former = [*former, *[line for line in quotes if line.rule != NO_SPEECH][-1:]][-2:]
        attributed += quotes
    return attributed


def quotations(text: str) -> Iterator[tuple[int, int]]:
    """Yield where each quotation begins and ends.

    ‘Words’ in single quotation marks are a quotation only if they end with a punctuation mark.
    """
    position, single = 0, None
    while opening := OPENING.search(text, position):
        position = opening.end()
        if opening[0] != "‘":
            closing = CLOSING[opening[0]].search(text, position)
        elif (
            single is None or single.start() < position
        ):  # several opening marks may share this closing mark; search once
            closing = single = CLOSING["‘"].search(text, position)
        else:
            closing = single
        if opening[0] != "‘" or (closing["speech"] and closing.start() > position):
            position = closing.end()
            yield opening.start(), position


class CastLines:
    """The ``lines`` of a cast (beginnings of quotations and their speakers), prepared for fast look-up.

    Attributes:
        speakers: For each beginning of a quotation, as ``comparable`` writes it: its number in the cast, and its
            speaker.
        lengths: The lengths that these beginnings have, ascending.
    """

    def __init__(self, lines: Mapping[str, str]):
        self.speakers: dict[str, tuple[int, str]] = {}
        for place, (beginning, speaker) in enumerate(lines.items()):
            self.speakers.setdefault(comparable(beginning), (place, speaker))
        self.lengths = sorted(set(map(len, self.speakers)))


def stated_speaker(
    text: str, quotes: Sequence[QuotedLine], index: int, speaker_named: Callable[[str], str], lines: "CastLines"
) -> QuotedLine:
    """Find the speaker of one quotation from the cast's lines, or from the narration next to the quotation."""
    line = quotes[index]
    words = comparable(line.text)
    if named := [lines.speakers[words[:length]] for length in lines.lengths if words[:length] in lines.speakers]:
        return replace(line, speaker=min(named)[1], rule=OF_CAST, doubtful=False)
    around = {
        "after": text[line.end : quotes[index + 1].start if index + 1 < len(quotes) else None][:NEAR],
        "before": text[quotes[index - 1].end if index else 0 : line.start][-NEAR:],
    }
    for rule in RULES:
        if match := (re.match if rule.side == "after" else re.search)(rule.pattern, around[rule.side]):
            groups = match.groupdict()
            name = groups.get("name") or groups.get("first") or ""
            speaker = speaker_named(name) if name else ""  # "" for a pronoun
            return replace(
                line,
                speaker=speaker,
                rule=rule.name,
                doubtful=rule.doubtful and (speaker == name or rule.side == "before"),
            )
    inside = line.text.strip('“”"‘’ ')
    if (
        around["before"].strip()
        and not re.search(r"[.,:;!?—…-]\Z", inside)
        and not re.search(r"[,:.!?—]\s*\Z", around["before"])
    ):
        return replace(line, rule=NO_SPEECH)
    return line


def with_context(
    text: str, quotes: Sequence[QuotedLine], former: Sequence[QuotedLine], speaker_named: Callable[[str], str]
) -> list[QuotedLine]:
    """Find the speakers that are still unknown, from other quotations of the paragraph and from earlier paragraphs.

    Args:
        text: The paragraph.
        quotes: Quotations of the paragraph.
        former: Last quotation of each of the two latest paragraphs with speech.
        speaker_named: Function that turns a name in the text into a speaker.
    """
    certain = [line for line in quotes if line.speaker and not line.doubtful]
    likely = certain or [line for line in quotes if line.speaker and line.rule != OF_CAST]
    speakers = {line.speaker for line in likely}
    starts = [line.start for line in likely]
    others: list[int] | None = None  # positions at which a sentence begins with the name of somebody else
    result = []
    for line in quotes:
        if line.speaker or line.rule == NO_SPEECH:
            result.append(line)
        elif speakers:
            after = bisect_left(starts, line.start)
            nearest = min(likely[max(0, after - 1) : after + 1], key=lambda other: abs(other.start - line.start))
            if others is None:
                others = [
                    match.start()
                    for match in re.finditer(rf"[.!?;]\s+{NAME}", text)
                    if speaker_named(match["name"]) not in speakers
                ]
            between = [
                bisect_left(others, position)
                for position in (min(line.end, nearest.end), max(line.start, nearest.start))
            ]
            doubtful = not certain or len(speakers) > 1 or between[0] < between[1]
            result.append(replace(line, speaker=nearest.speaker, rule=SAME, doubtful=doubtful))
        elif former and goes_on(former[-1]) and former[-1].paragraph == line.paragraph - 1:
            result.append(
                replace(
                    former[-1], paragraph=line.paragraph, start=line.start, end=line.end, text=line.text, rule=CONTINUED
                )
            )
        elif len(former) == 2 and line.paragraph - former[0].paragraph <= 4 and former[0].speaker:
            rule = ALTERNATING if line.rule == UNKNOWN else line.rule
            result.append(replace(line, speaker=former[0].speaker, rule=rule))
        else:
            result.append(line)
    return result


def goes_on(line: QuotedLine) -> bool:
    """Return whether a quotation has no closing mark, so that the next paragraph continues it."""
    return not line.text.endswith(("”", '"', "’")) or len(line.text) < 2


def comparable(text: str) -> str:
    """Return the words of a text in lower case, without punctuation. Quotations are compared in this form."""
    return " ".join(re.findall(r"\w+", text.casefold().replace("’", "").replace("'", "")))
