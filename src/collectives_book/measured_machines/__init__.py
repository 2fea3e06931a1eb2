"""Other people's measurements of all-reduce on large machines, beside what this library's simulator predicts."""
