"""Faults injected into programs of several processes, and judges of how the processes end.

A case is a short script that 2 to 4 processes run, one of which (or all) does something at some moment: raises, leaves,
is killed or suspended, calls something else, or nothing that should matter. `kinds` lists what may happen and what must
come of it, `case` makes scripts of it, by seed, and `runner` runs several at a time. Every case must end in time, and
what a process writes must name the process at fault and the cause; a program that goes well must be left alone.

    python tests/faults --cases 1000 --seed 7
"""
