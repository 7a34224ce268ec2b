"""Convert library errors about arrays to errors about the snapshot and its flags.

Errors of running compiled code pass through XLA, which keeps only their text.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ... import io
from .._library_sentence import library_sentence

# Errors about a row of the input particles, on one device or on a rank.
_OF_A_ROW = re.compile(
    r"(?:on rank (\d+): )?row (\d+)(?: of attached\[(\d+)\])?( of the positions)? (.*?)\.?(?=\s*$|\.\s)", re.M
)
# Advice for scripts, and its replacement on the command line.
_ADVICE = (
    (r", set num to leave out rows at the end", ""),
    (r", or switch on jax_enable_x64(?! and)", ", or store the positions as float64"),
    (r"switch on jax_enable_x64( and give [a-z ]+ in float64)?", "set JAX_ENABLE_X64=1"),
)


class ParticlesError(ValueError):
    """The library cannot process these particles. All processes raise this error; the process ``told_by`` prints it."""

    told_by = 0


@contextmanager
def told_of_snapshot(snapshots: Sequence[io.Snapshot], ndev: int) -> Iterator[None]:
    """Raise errors of the library in the block as errors about the snapshot.

    Args:
        snapshots: One for each type, the grouped type first.
        ndev: Number of devices that hold the rows.
    """
    try:
        yield
    except Exception as error:
        sentence = library_sentence(str(error))
        if sentence is not None:
            raise _about_particles(sentence, snapshots, ndev) from error
        if isinstance(error, ValueError):  # raised before any computation
            raise ValueError(_with_flags(str(error))) from error
        raise


def _about_particles(sentence: str, snapshots: Sequence[io.Snapshot], ndev: int) -> ParticlesError:
    if result := _OF_A_ROW.match(sentence):
        snapshot = snapshots[0 if result[3] is None else int(result[3]) + 1]
        start, _ = io.share(snapshot.num, int(result[1] or 0), ndev)
        sentence = f"{snapshot.row_in_words(start + int(result[2]), result[4] or '')} {result[5]}."
    return ParticlesError(_with_flags(sentence[:1].upper() + sentence[1:]))


def _with_flags(sentence: str) -> str:
    sentence = " ".join(sentence.split())
    for advice, here in _ADVICE:
        sentence = re.sub(advice, here, sentence)
    return sentence
