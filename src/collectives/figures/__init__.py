"""Pictures: schedules drawn and played, measured rows plotted, in one style; and sentences computed from rows."""
