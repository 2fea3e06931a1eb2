"""The engine: executes a schedule on the ranks of a torch process group.

`group` takes a call: `compiled_call` compiles it once, and `buffers` holds its data. Ranks of one
host read each other's slots in shared memory (`slots`, `shm`). Otherwise they execute a program of
messages (`program`, `compile`): in compiled code (`tcp`) over the connections of a `mesh`, or in
batches over `nccl`. `blame` says which rank made a call fail.
"""
