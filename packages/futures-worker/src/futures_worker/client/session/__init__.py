"""One client's session with the database and the workers: batches of submits, its mailbox, its lines. Above `basis`; knows no handle."""
