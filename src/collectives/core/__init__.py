"""The core: a schedule as a value, proved, interpreted, drawn as text, and counted. It needs NumPy alone.

Read `schedule` first, because it defines the words of the whole library; then `contracts`, which
say what each collective has to leave on each rank, and `verify`, which proves that a schedule does.
`interpret` runs a schedule on arrays in one process, `grid` writes it as text and reads it back,
`traffic` counts its bytes, `bounds` has the closed forms of its time, and `summation` the order in
which it adds.
"""
