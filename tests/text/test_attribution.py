"""Test who speaks a quotation: 200 lines of well-known dialogue, and each rule of attribution.

The lines in ``dialogues.txt`` are in the public domain. They were written down from memory and sometimes shortened, so
a word may differ from the printed books. The true speakers of a paragraph's quotations stand before the paragraph.
"""

from pathlib import Path

import pytest

from ane.text.attribution import ALTERNATING, CONTINUED, NO_SPEECH, OF_CAST, RULES, SAME, attribute
from ane.text.cast import Cast

ENOUGH = 0.95


def dialogues() -> list[tuple[list[str], list[list[str]]]]:
    """The scenes: paragraphs, and the speakers of the quotations of each."""
    scenes = []
    for scene in Path(__file__).with_name("dialogues.txt").read_text(encoding="utf-8").split("\n== ")[1:]:
        lines = scene.split("\n")[1:]
        told = [line.partition(" | ") for line in lines if line.strip()]
        scenes.append(
            ([text for _, _, text in told], [[name for name in who.split("; ") if name != "-"] for who, _, _ in told])
        )
    return scenes


def test_two_hundred_lines_are_attributed_rightly_or_marked_as_doubtful() -> None:
    right = doubtful = wrong = 0
    faults = []
    for paragraphs, speakers in dialogues():
        everybody = {name for who in speakers for name in who}
        found = attribute(paragraphs, Cast(speakers=dict.fromkeys(everybody, "a")).speaker_named)
        for number, wanted in enumerate(speakers):
            own = [line for line in found if line.paragraph == number]
            assert len(own) == len(wanted), paragraphs[number]
            for line, name in zip(own, wanted, strict=True):
                right += not line.doubtful and line.speaker == name
                doubtful += line.doubtful
                wrong += not line.doubtful and line.speaker != name
                if not line.doubtful and line.speaker != name:
                    faults.append((line.text, line.speaker, name, line.rule))
    assert right + doubtful + wrong >= 200
    assert (right + doubtful) / (right + doubtful + wrong) >= ENOUGH, faults
    assert right >= doubtful  # calling all of them doubtful would not be attribution


@pytest.mark.parametrize(
    ("paragraphs", "speaker", "rule", "doubtful"),
    [
        (["“No,” said Anna."], "Anna", RULES[0].name, False),
        (["“No,” said the White Rabbit, running."], "the White Rabbit", RULES[0].name, False),
        (["“No,” I answered."], "I", RULES[1].name, False),
        (["“No,” Mr. Holmes, smiling, replied."], "Mr. Holmes", RULES[2].name, False),
        (['Anna turned and said: "No."'], "Anna", RULES[11].name, True),
        (['Anna quietly said to Tom: "No."'], "Anna", RULES[3].name, False),
        (["“No,” she said."], "", RULES[7].name, True),
        (["“No,” replied his wife."], "his wife", RULES[9].name, True),
        (["“No,” said Anna. “Not now.”"], "Anna", SAME, False),
        (["“No,” said Anna. Tom frowned. “Why?”"], "Anna", SAME, True),
        (["“Yes,” said Anna.", "“No,” said Tom.", "“Why?”"], "Anna", ALTERNATING, True),
        (["“It was long ago,” said Anna. “I was young.", "“Then I left.”"], "Anna", CONTINUED, False),
        (["They call it the “Pond” here."], "", NO_SPEECH, True),
    ],
)
def test_each_rule_names_the_speaker_and_whether_it_is_a_guess(
    paragraphs: list[str], speaker: str, rule: str, doubtful: bool
) -> None:
    line = attribute(paragraphs)[-1]
    assert (line.speaker, line.rule, line.doubtful) == (speaker, rule, doubtful)


@pytest.mark.parametrize(
    "name",
    [
        "St. John",
        "Mr. St. John Rivers",
        "Ste. Marie",
        "J. K. Hale",
        "Sgt. Hale",
        "Dr. E. Stone",
        "St John",
        "Rev. Mr. Collins",
        "Mme. Defarge",
        "Lt. Hale",
    ],
)
@pytest.mark.parametrize("text", ["“Look,” said {}.", "“Look,” {} said.", "{} said: “Look.”", "“Look!” groaned {}."])
def test_an_abbreviated_title_is_a_part_of_the_name(name: str, text: str) -> None:
    [line] = attribute([text.format(name)])
    assert (line.speaker, line.doubtful) == (name, False)


@pytest.mark.parametrize(
    "verb",
    [
        "groaned",
        "moaned",
        "grunted",
        "croaked",
        "breathed",
        "drawled",
        "echoed",
        "mused",
        "yelled",
        "wailed",
        "snarled",
        "spluttered",
        "pointed out",
        "chimed in",
        "quipped",
        "rasped",
    ],
)
@pytest.mark.parametrize("text", ["“It is late. Will you come?” Anna {}.", "“Late?” {} Anna.", "Anna {}, “Why?”"])
def test_verbs_of_speech_name_who_speaks(verb: str, text: str) -> None:
    [line] = attribute([text.format(verb)])
    assert (line.speaker, line.doubtful) == ("Anna", False)


@pytest.mark.parametrize(
    "text", ["“No,” Ben told her.", "Ben told the frog, “No.”", "“It rains. Stay!” Ben told Anna."]
)
def test_who_tells_somebody_speaks(text: str) -> None:
    [line] = attribute([text])
    assert (line.speaker, line.doubtful) == ("Ben", False)


def test_a_cast_overrides_the_rules_and_knows_other_names() -> None:
    cast = Cast(
        speakers={"Anna": "a", "Mrs. Bennet": "b", "Mr. Bennet": "c", "Hatter": "d", "Sherlock Holmes": "e"},
        aliases={"his wife": "Mrs. Bennet"},
        lines={"Not so": "Anna"},
    )
    assert [
        (line.speaker, line.doubtful)
        for line in cast.quoted(
            [
                "“Not so fast!” said Mr. Bennet.",
                "“Oh!” replied his wife.",
                "“Tea,” said the Hatter.",
                "“Hm,” said Holmes.",
                "“Well,” said Mr. Bennet.",
            ]
        )
    ] == [("Anna", False), ("Mrs. Bennet", False), ("Hatter", False), ("Sherlock Holmes", False), ("Mr. Bennet", False)]
    assert [line.rule for line in cast.quoted(["“Not so fast!” said Tom."])] == [OF_CAST]
    paragraphs = ["“Oh!” said Anna.", "[voice:b]“Oh!”[voice] said Anna."]
    assert cast.quotations_of(paragraphs) == [[(0, 5, "Anna")], []]
    assert cast.quotations_in("\n \n".join(["One.", *paragraphs])) == [(7, 12, "Anna")]
