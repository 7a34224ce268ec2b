"""Inject faults into programs of several processes, and judge how the processes end.

A case is a short script for 2 to 4 processes. At some moment one process (or every process) raises, exits, is killed or
suspended, makes a different call, or does something harmless. `kinds` lists the faults and the expected outcomes,
`case` generates scripts from a seed, and `runner` runs several cases at a time. Every case must end in time, and the
output must name the process at fault and the cause. The library must not disturb a healthy program.

    python tests/faults --cases 1000 --seed 7
"""
