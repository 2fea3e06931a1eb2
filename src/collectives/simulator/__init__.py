"""The simulator: how long a schedule takes on a machine; many cases, the fastest algorithm of each, and traces."""
