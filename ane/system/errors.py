"""The exception whose message is written for the user. Every other exception that escapes is a bug."""


class UserError(Exception):
    """Bad input, or a machine that cannot do what was asked.

    The message is one line that says what was wrong, where, and what to do about it. The command line prints it behind
    ``ane: error:`` and exits with status 1. Characters that cannot be printed are escaped.
    """

    def __init__(self, message: str):
        line = " ".join(message.split())
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))
