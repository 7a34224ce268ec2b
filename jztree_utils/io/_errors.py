"""What goes wrong with files, in one sentence each."""


class SnapshotError(ValueError):
    """A file that was to be read cannot be used. The message is one sentence: what was given and what to do."""

    def __init__(self, sentence: str) -> None:
        # Names in damaged files, and names of files, may hold anything: ends of lines, or what terminals obey.
        super().__init__("".join(char if char.isprintable() else ascii(char)[1:-1] for char in sentence))


class OutputError(OSError):
    """A file cannot be written. The message is one sentence: what was given and what to do.

    errno: the number of the system's error, None if it has none.
    """

    def __init__(self, sentence: str, number: int | None = None) -> None:
        super().__init__(sentence)
        self.errno = number
