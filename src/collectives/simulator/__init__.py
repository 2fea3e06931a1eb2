"""The simulator: how long a schedule takes on a machine.

Many cases, the fastest algorithm of each, and traces.
"""
