"""Records in JSON files: a wrong value is one line that names it."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import pytest
from pydantic import Field

from ane.system.errors import UserError
from ane.system.records import read_record


@dataclass(frozen=True)
class Wheel:
    spokes: Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class Cart:
    name: str
    colour: Literal["red", "blue"] = "red"
    wheels: dict[str, Wheel] = field(default_factory=dict)


def test_a_record_is_read_and_unknown_values_are_ignored():
    content = {"name": "hay", "wheels": {"left": {"spokes": 8}}, "later": 1}
    assert read_record(Cart, content, "cart.json") == Cart("hay", wheels={"left": Wheel(8)})


@pytest.mark.parametrize(("content", "message"), [
    ({}, "cart.json: name is missing; make it again"),
    ({"name": 5}, "cart.json: name must be a valid string, not 5; make it again"),
    ({"name": "hay", "colour": "green"}, "cart.json: colour must be 'red' or 'blue', not 'green'; make it again"),
    ({"name": "hay", "wheels": {"left": {}}}, "cart.json: wheels: left: spokes is missing; make it again"),
    ({"name": "hay", "wheels": {"left": {"spokes": "8"}}}, "wheels: left: spokes must be a valid integer, not '8'"),
    ({"name": "hay", "wheels": {"left": {"spokes": True}}}, "wheels: left: spokes must be a valid integer, not True"),
    ({"name": "hay", "wheels": {"left": {"spokes": 0}}}, "spokes must be greater than or equal to 1, not 0"),
    ({"name": "\ud800"}, "cart.json: invalid JSON"),
    ([], "cart.json: must be an object, not []"),
])
def test_a_wrong_value_is_one_line_that_names_it(content, message):
    with pytest.raises(UserError) as caught:
        read_record(Cart, content, "cart.json", "; make it again")
    assert message in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [
    ("two\nlines  of\ttext ", "two lines of text"), ("Zoë – «ok»", "Zoë – «ok»"),
    ("\x1b[31mred", "\\x1b[31mred"), ("a\udc80b", "a\\udc80b"), ("x\0y", "x\\x00y")])
def test_a_message_is_one_printable_line(text, message):
    assert str(UserError(text)) == message
    message.encode("utf-8")
