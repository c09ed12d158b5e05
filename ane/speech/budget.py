"""What a request may cost, whoever makes it: a command, a book, a client of the server in any protocol."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import Field

from ane.system.checked import checked
from ane.system.errors import UserError
from ane.text.passages import Passage

FREE = 4096             # characters that a lexicon may add to any text


@checked
class Budget:
    """Limits of one request. Sound costs no memory in sum: it is made and sent in pieces of bounded length.

    Attributes:
        silence: seconds of all pauses of the text together.
        expansion: length of the text when its lexicon has respelled it, relative to what was sent.
    """

    silence: float = Field(default=600.0, gt=0)
    expansion: float = Field(default=4.0, ge=1)


@dataclass
class Spending:
    """What the texts of one request have cost so far."""

    budget: Budget = field(default_factory=Budget)
    silence: float = 0.0
    sent: int = 0
    spelled: int = 0

    def anew(self) -> "Spending":
        """That of another request with the same budget."""
        return Spending(self.budget)

    def add(self, sent: str, passages: Iterable[Passage]) -> None:
        """Count a text and its passages. Raises UserError when they are beyond the budget."""
        self.sent += len(sent)
        for passage in passages:
            self.silence += passage.silence
            self.spelled += len(passage.text)
        if self.silence > self.budget.silence:
            raise UserError(f"the text asks for {self.silence:g} s of silence, at most {self.budget.silence:g} s can "
                            "be made at a time: shorten its pauses, or speak it in parts")
        if self.spelled > self.budget.expansion * self.sent + FREE:
            raise UserError(f"the lexicon makes {self.spelled} characters of {self.sent}, at most "
                            f"{self.budget.expansion:g} times as many can be spoken: shorten its respellings")
