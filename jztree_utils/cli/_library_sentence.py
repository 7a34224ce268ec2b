"""The sentence of the library in an error that passed through XLA, which keeps only the text."""

import re

_MARKER = "jztree: "
_PROGRAM = re.compile(r"\s*\[executable_name='[^']*'\]")  # XLA appends it on GPUs


def library_sentence(text: str) -> str | None:
    """Return the sentence after the marker of the library, without additions of XLA; None without a marker."""
    _, marker, sentence = text.partition(_MARKER)
    return _PROGRAM.sub("", sentence) if marker else None
