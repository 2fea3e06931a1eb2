"""Where synthesis of schedules stops scaling: rings, tori, hypercubes and DGX-1, with a minute for each question."""
