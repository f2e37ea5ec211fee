"""Schedules: futures that are submitted again and again."""
