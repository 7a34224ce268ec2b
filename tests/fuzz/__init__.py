"""Random hostile input for the library, and oracles that owe nothing to it.

A part (`knn`, `fof`, `catalogue`, ...) has a function ``batch(random)`` that yields `case.Case`: calls of the library
written in Python, and a judge each. Cases of a batch have the same shapes, because JAX compiles for every shape. The
`runner` goes round the parts, takes rows away from a case that fails until no more can go, and prints what is left.

    python tests/fuzz --seconds 600 --seed 7 --parts knn,fof

Cases are drawn from a NumPy generator and not from hypothesis, whose shrinking changes what is drawn and so all
positions at once; here positions stay and rows go, which leaves a handful of numbers to be read and pasted.
"""
