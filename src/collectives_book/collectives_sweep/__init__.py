"""The notebook collectives-sweep: every collective by every back end."""
