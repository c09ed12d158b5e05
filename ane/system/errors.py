"""The exception whose message is written for the user. Every other exception that escapes is a bug."""


class UserError(Exception):
    """Bad input, or a machine that cannot do what was asked.

    The message is one line that says what was wrong, where, and what to do about it. The command line prints it behind
    ``ane: error:`` and exits with status 1. Characters that cannot be printed are escaped.

    Attributes:
        parameter: the parameter that is wrong, if one is; the message begins with its name, which a command replaces
            by that of its flag.
    """

    def __init__(self, message: str, parameter: str = ""):
        line = " ".join(message.split())
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))
        self.parameter = parameter
