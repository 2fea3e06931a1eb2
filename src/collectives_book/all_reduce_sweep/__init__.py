"""The notebook all-reduce-sweep: all-reduces of several sizes by our algorithms and the libraries."""
