"""Ten faults, planted on one rank of a job in slow motion; what its dumps say about each."""
