"""The errors that a user reads. Every other exception that escapes is a bug and keeps its traceback."""


class UserError(Exception):
    """Bad input, or a machine that cannot do what was asked.

    The message is one line that says what was wrong, where, and what to do about it; the command line prints
    it behind ``ane: error:`` and exits with status 1.
    """

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))


class ParameterError(UserError):
    """A value that a parameter cannot have. The message starts with the parameter's name: "lanes must be …".

    The command line puts its flag in place of the name.

    Attributes:
        parameter: the name in Python, such as "max_codes".
    """

    def __init__(self, parameter: str, message: str):
        super().__init__(message)
        self.parameter = parameter
