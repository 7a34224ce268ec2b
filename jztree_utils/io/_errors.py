"""Errors for files, each with a one-sentence message."""

OPTION = "<option>"  # placeholder for an option of Python or of the command line, in the sentence of a `SnapshotError`


class SnapshotError(ValueError):
    """An input file is unusable. The message is one sentence with the input and a remedy.

    Attributes:
        on_command_line: The message with flags instead of Python arguments.
    """

    def __init__(self, sentence: str, option: str = "") -> None:
        """Set the message; ``option`` is the field of `ReadOptions` that the sentence recommends, if any."""
        # Names in damaged files, and file names, may contain line breaks or terminal control characters.
        printable = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in sentence)
        super().__init__(printable.replace(OPTION, f"ReadOptions({option}=...)"))
        self.on_command_line = printable.replace(OPTION, f"--{option}")


class OutputError(OSError):
    """A file cannot be written. The message is one sentence with the input and a remedy.

    Attributes:
        errno: The number of the system error, None for other errors.
    """

    def __init__(self, sentence: str, number: int | None = None) -> None:
        super().__init__(sentence)
        self.errno = number
