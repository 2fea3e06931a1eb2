"""The notebook straggler: all-reduces while the link of one emulated host is slower."""
