"""Settings of the kernels that execute the book's pages.

A kernel warns that its messages are not encrypted; here they do not leave the machine. What a cell
warns of still counts.
"""

c = get_config()  # noqa: F821, IPython defines it
c.IPKernelApp.log_level = "ERROR"
