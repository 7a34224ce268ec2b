"""GPU checks: build, test, compare, sanitize and time the library on a GPU. Run them with `make gpu-check`.

`check` is the command. It starts a separate process for every task on the GPU, so that memory is measured separately
and a failure does not affect other tasks. It stores its findings in one file (`session`). The stages are in `building`,
`comparison`, `correctness` and `timing`, and `experiments` has the measurements that decide the next changes. `inputs`
lists the compared inputs and `cases` the timed `calls` on `samples`; `libraries` has the libraries with these calls.
`kernel_calls`, `answers`, `measure` and `trials` are the processes that use the GPU. `report` makes the tables.
"""
