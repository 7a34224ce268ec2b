"""Random hostile input for the library, and independent oracles.

A part (`knn`, `fof`, `catalogue`, ...) has a function ``batch(random)`` that yields `case.Case`: library calls as
Python text, each with a judge. Cases of a batch have the same shapes, because JAX compiles for every shape. The
`runner` cycles through the parts, removes rows from a failing case as long as it still fails, and prints the remaining
case.

    python tests/fuzz --seconds 600 --seed 7 --parts knn,fof

Cases are drawn from a NumPy generator, not from hypothesis. The shrinking of hypothesis changes the random draws, and
so all positions at once. Here positions stay and rows are removed, which leaves a few numbers to read and paste.
"""
