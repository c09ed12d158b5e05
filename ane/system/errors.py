"""The one exception that is the user's to read: everything else that escapes is a bug and keeps its traceback."""


class UserError(Exception):
    """Bad input or a machine that cannot do what was asked.

    The message is one line that says what was wrong, where, and what to do about it; the command line prints
    it behind ``ane: error:`` and exits with status 1.
    """

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))
