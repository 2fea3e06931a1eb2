"""The compiled executor: a rank's program as arrays, and one loop over sockets that follows it."""
