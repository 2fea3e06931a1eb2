"""Results of benchmarks: tables of time by size, what their curves show, and how tables of one collective compare."""
