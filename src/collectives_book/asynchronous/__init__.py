"""The notebook asynchronous: training in step and out of step, with one slow worker, by a parameter server."""
