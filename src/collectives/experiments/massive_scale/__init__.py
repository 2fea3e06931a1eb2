"""The notebooks massive-scale and bench-simulator: simulated times, beside those that were published."""
