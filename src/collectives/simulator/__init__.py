"""How long a schedule takes on a machine: one schedule, many cases, who wins where, and a trace to look at."""
