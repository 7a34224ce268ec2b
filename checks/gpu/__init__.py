"""What a GPU has to show: builds, tests, compares, sanitizes and times the library there. Run it with `make gpu-check`.

`check` is the command. It starts a process for everything that uses the GPU (`child`), so that memory is measured for
each apart and nothing that fails takes the rest along, and keeps what it learns in one file (`record`). `stages` says
what is done; `cases` what is timed, `libraries` by what calls; `report` makes the tables.
"""
