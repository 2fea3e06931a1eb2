"""Programs and schedules in formats of others, read, proved and written; schedules that are searched for."""
