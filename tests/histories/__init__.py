"""Serializability and real-time order, judged from what clients saw: `python -m histories --help` runs it at length.

Clients of many processes and threads append unique values to lists and keep registers, and note what they asked and got.
From that alone the checker infers which transaction must have come before which, as Elle does (Kingsbury and Alvaro, "Elle:
Inferring Isolation Anomalies from Experimental Observations", VLDB 2020): a cycle is an anomaly, whatever the engine thinks.
"""
