"""The verbs ``export`` and ``synthesize``, and the part of ``verify`` that takes files of others."""
