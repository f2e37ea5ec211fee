"""Waiting for many futures, with the contracts of `concurrent.futures`: all block on one watch per client, however many they wait for."""
