"""What goes wrong with files, in one sentence each."""

OPTION = "<option>"  # stands for the way to give an option, in the sentence of a `SnapshotError`


class SnapshotError(ValueError):
    """A file that was to be read cannot be used. The message is one sentence: what was given and what to do.

    on_command_line: the message with flags, where it advises arguments of Python.
    """

    def __init__(self, sentence: str, option: str = "") -> None:
        """option: the field of `ReadOptions` that the sentence advises to give, if it does."""
        # Names in damaged files, and names of files, may hold anything: ends of lines, or what terminals obey.
        printable = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in sentence)
        super().__init__(printable.replace(OPTION, f"ReadOptions({option}=...)"))
        self.on_command_line = printable.replace(OPTION, f"--{option}")


class OutputError(OSError):
    """A file cannot be written. The message is one sentence: what was given and what to do.

    errno: the number of the system's error, None if it has none.
    """

    def __init__(self, sentence: str, number: int | None = None) -> None:
        super().__init__(sentence)
        self.errno = number
