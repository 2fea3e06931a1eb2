"""The engine: executes a schedule on the ranks of a torch process group.

`collective` runs a call: `prepared` compiles it once, and `buffers` holds its data. Ranks of one
host read each other's slots in shared memory (`slots`, `shm`). Otherwise they execute a program of
messages (`compile`, `program`): with `execute`, which runs the compiled loop (`tcp`) over a `mesh`
of connections to `peers`, or in batches over `nccl`.
"""
