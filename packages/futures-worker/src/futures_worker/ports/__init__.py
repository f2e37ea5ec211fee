"""Between processes: who may connect, the handshake and the sealed frames after it, the messages of a line."""
