"""HTML tags are dropped; what only resembles a tag is read."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ane.text import normalise_english
from ane.text.lexicon import HTML_ELEMENTS


@pytest.mark.parametrize("tag", [
    "<b>", "</b>", "<br/>", "<br />", "<BR>", "<h1>", "</p >", "<p\nclass=a>", "<a href=x>", "<a href='x y' id=z>",
    '<a title="1 > 0" href="https://example.com">', "<input disabled>", "<video controls muted src=a>", "<img alt=''/>",
    '<div data-x="1" hidden>', "<!-- a\nb -->", "<!---->", "<!DOCTYPE html>", "<!doctype html>",
])
def test_html_tags_and_comments_are_dropped(tag):
    assert normalise_english(f"before {tag} after") == "before after"


@pytest.mark.parametrize("element", sorted(HTML_ELEMENTS))
def test_every_html_element_is_dropped_with_its_end_tag(element):
    assert normalise_english(f"<{element}>text</{element.upper()}>") == "text"


@pytest.mark.parametrize(("written", "spoken"), {
    "Press <Enter> now": "press enter now",
    "Dear <name>,": "dear name,",
    "<your name here>": "your name here",
    "<k> or <think>": "k or think",
    "vector<int> v": "vector int v",
    "a <b and c> d": "a is less than b and c is greater than d",
    "i<n and n>j": "i is less than n and n is greater than j",
    "if count<limit and limit>zero": "if count is less than limit and limit is greater than zero",
    "3 < 4 > 2": "three is less than four is greater than two",
    "<b": "b",
    "<a href": "a href",
}.items())
def test_what_is_no_html_tag_is_read(written, spoken):
    assert normalise_english(written) == spoken


WORDS = st.from_regex(r"[a-z]{3,12}", fullmatch=True).filter(lambda word: word not in HTML_ELEMENTS)


@settings(deadline=None, max_examples=200)
@given(st.lists(WORDS, min_size=1, max_size=5))
def test_no_word_in_angle_brackets_is_lost(words):
    spoken = normalise_english("before <" + " ".join(words) + "> after")
    assert spoken == normalise_english("before " + " ".join(words) + " after")
