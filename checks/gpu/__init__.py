"""What a GPU has to show: builds, tests, compares, sanitizes and times the library there. Run it with `make gpu-check`.

`check` is the command. It starts a process for everything that uses the GPU, so that memory is measured for each apart
and nothing that fails takes the rest along, and keeps what it learns in one file (`session`). The stages are in
`building`, `correctness` and `timing`; `cases` says what is timed, `libraries` by what calls. `answers` and `measure`
are the processes that use the GPU. `report` makes the tables.
"""
