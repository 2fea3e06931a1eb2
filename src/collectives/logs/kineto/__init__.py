"""Traces of torch.profiler (Kineto): read as a stream, measured, and what follows."""
