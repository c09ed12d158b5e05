"""SSML: what is spoken, and what is refused with its line."""

import pytest

from ane.system.errors import UserError
from ane.text import normalise_english, read_passages
from ane.text.passages import Passage


def passages(inside: str) -> list[Passage]:
    return read_passages(f"<speak>{inside}</speak>")


def test_breaks_and_prosody_divide_a_text():
    assert passages('A <break time="500ms"/>B<prosody rate="150%" volume="-6dB"> c</prosody>') == [
        Passage("A ", 0.5), Passage("B"), Passage(" c", speed=1.5, gain=0.501)]
    assert passages('<break strength="strong"/>A<break/><break time="1s"/>') == [Passage("", 0.8), Passage("A", 1.4)]


def test_nested_prosody_is_multiplied():
    assert passages('<prosody rate="slow">a<prosody rate="+25%" volume="soft">b</prosody></prosody>') == [
        Passage("a", speed=0.8), Passage("b", speed=1.0, gain=0.5)]


def test_sentences_and_paragraphs_end():
    [passage] = passages("<p>\n <s>One two</s>\n <s>Is it?</s>\n</p><p>Three</p>")
    assert [part.strip() for part in passage.text.split("\n\n")] == ["One two.", "Is it?", "Three.", ""]


@pytest.mark.parametrize(("element", "words"), [
    ('<sub alias="World Wide Web Consortium">W3C</sub>', "world wide web consortium"),
    ('<say-as interpret-as="characters">Ab-1</say-as>', "a, b, dash, one"),
    ('<say-as interpret-as="spell-out">é</say-as>', "e"),
    ('<say-as interpret-as="cardinal">1984</say-as>', "one thousand nine hundred eighty-four"),
    ('<say-as interpret-as="cardinal">-1,200.5</say-as>', "minus one thousand two hundred point five"),
    ('<say-as interpret-as="ordinal">21</say-as>', "twenty-first"),
    ('<say-as interpret-as="telephone">+1 (555) 12</say-as>', "plus one, five five five, one two"),
    ('<say-as interpret-as="date" format="dmy">03/04/2024</say-as>', "april third, twenty twenty-four"),
    ('<say-as interpret-as="date" format="md">Dec 24</say-as>', "december twenty-fourth"),
    ('<say-as interpret-as="date" format="y">1905</say-as>', "nineteen oh five"),
    ('<say-as interpret-as="date">2024-05-01</say-as>', "may first, twenty twenty-four"),
    ('<say-as interpret-as="time">2:30 pm</say-as>', "two thirty p m"),
    ('<say-as interpret-as="time" format="hms24">14:05</say-as>', "fourteen oh five"),
    ('Room<say-as interpret-as="cardinal">5</say-as>north, <sub alias="the W">W</sub>\'s', "room five north, the w's"),
    ("wo<!-- a comment -->rd", "word"),
    ("a &lt; b &amp; c", "a is less than b and c"),
])
def test_elements_are_read(element, words):
    assert normalise_english("".join(passage.text for passage in passages(element))) == words


FAULTS = [
    ("\n<voice>a</voice>", "line 2: <voice> has no name: add it"),
    ("<prosody pitch='high'>a</prosody>", "line 1: pitch of <prosody> is not supported.*rate and volume are"),
    ("\n\n<emphasis>a</emphasis>", "line 3: <emphasis> is not supported"),
    ("<phoneme alphabet='ipa' ph='x'>a</phoneme>", "<phoneme> is not supported"),
    ("<audio src='file:///etc/passwd'/>", "<audio> is not supported"),
    ("<prosody rate='300%'>a</prosody>", "rate of <prosody> is 3 times"),
    ("<prosody rate='warp'>a</prosody>", "rate of <prosody> is 'warp'"),
    ("<prosody volume='+20dB'>a</prosody>", "volume of <prosody> is 10 times"),
    ("<prosody>a</prosody>", "neither rate nor volume"),
    ("<break time='soon'/>", "line 1: break 'soon' is not a pause"),
    ("<break time='1s'>a</break>", "<break> holds text"),
    ("<break strength='huge'/>", "strength of <break> is 'huge'"),
    ("<sub>a</sub>", "<sub> has no alias"),
    ("<say-as interpret-as='date'>soon</say-as>", "'soon' is not a date"),
    ("<say-as interpret-as='date' format='mdy'>1/2</say-as>", "not a date of the format mdy"),
    ("<say-as interpret-as='cardinal'>many</say-as>", "'many' is not a number"),
    ("<say-as interpret-as='currency'>1</say-as>", "interpret-as 'currency' is not supported"),
    ("<say-as interpret-as='cardinal'><sub alias='x'>y</sub></say-as>", "<say-as> holds an element"),
    ("<p xml:lang='fr'>a</p>", "only English"),
    ("a < b", "not well-formed"),
    ("&nbsp;", "not well-formed"),
]


@pytest.mark.parametrize(("inside", "fault"), FAULTS)
def test_what_cannot_be_done_is_refused(inside, fault):
    with pytest.raises(UserError, match=fault):
        passages(inside)


@pytest.mark.parametrize("document", [
    '<!DOCTYPE speak [<!ENTITY a "aaaaaaaaaa">]><speak>&a;</speak>',
    '<!DOCTYPE speak SYSTEM "file:///etc/passwd"><speak>a</speak>',
    "<speak>" + "<p>" * 200 + "</p>" * 200 + "</speak>",
    "<speech>a</speech>",
])
def test_documents_that_attack_or_are_no_ssml_are_refused(document):
    with pytest.raises(UserError, match=r"SSML, line 1: (a document type|elements are nested|the document must be)"):
        read_passages(document, ssml=True)


def test_ssml_is_read_only_where_it_is_asked_for_or_begins_the_text():
    assert read_passages('<?xml version="1.0"?>\n<speak version="1.1">a</speak>') == [Passage("a")]
    assert read_passages("<speaker> says <break/>") == [Passage("<speaker> says <break/>")]
    assert read_passages("<speak>a</speak>", ssml=False) == [Passage("<speak>a</speak>")]
