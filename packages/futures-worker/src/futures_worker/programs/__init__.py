"""Programs: functions that survive the processes they run in."""
