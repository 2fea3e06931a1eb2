"""The notebook calibration: a link measured between two ranks, as a machine file."""
