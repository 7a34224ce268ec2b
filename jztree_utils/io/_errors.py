"""Errors for files, each with a one-sentence message."""

from .._file_messages import printable

OPTION = "<option>"  # placeholder for an option of Python or of the command line, in the sentence of a `SnapshotError`


class SnapshotError(ValueError):
    """An input file is unusable. The message is one sentence with the input and a remedy.

    Attributes:
        on_command_line: The message with flags instead of Python arguments.
    """

    def __init__(self, sentence: str, option: str = "") -> None:
        """Set the message; ``option`` is the field of `ReadOptions` that the sentence recommends, if any."""
        message = printable(sentence)  # it may have names from damaged files
        super().__init__(message.replace(OPTION, f"ReadOptions({option}=...)"))
        self.on_command_line = message.replace(OPTION, f"--{option}")


class OutputError(OSError):
    """A file cannot be written. The message is one sentence with the input and a remedy.

    Attributes:
        errno: The number of the system error, None for other errors.
    """

    def __init__(self, sentence: str, number: int | None = None) -> None:
        super().__init__(sentence)
        self.errno = number
