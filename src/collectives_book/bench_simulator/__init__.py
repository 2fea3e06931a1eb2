"""The notebook bench-simulator: how fast the simulator is."""
