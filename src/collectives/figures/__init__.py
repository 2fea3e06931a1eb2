"""Pictures: schedules drawn, data for the player, measured rows plotted, in one style.

And sentences from rows.
"""
