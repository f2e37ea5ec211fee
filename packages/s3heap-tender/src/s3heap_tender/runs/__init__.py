"""What tenders and schedulers do with a task: own its partition, ring and hear bells, run what was triggered. Above `claims`."""
