"""Errors that passed through XLA, which keeps only their text: the sentence of the library, and lack of memory."""

import re

_MARKER = "jztree: "
_PROGRAM = re.compile(r"\s*\[executable_name='[^']*'\]")  # XLA appends it on GPUs


def library_sentence(text: str) -> str | None:
    """Return the sentence after the marker of the library, without additions of XLA; None without a marker."""
    _, marker, sentence = text.partition(_MARKER)
    return _PROGRAM.sub("", sentence) if marker else None


def is_memory_error(error: Exception) -> bool:
    """Return whether the host or a device lacks memory."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)
