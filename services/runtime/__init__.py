"""What services run on: the reactor's shape, the event log, artifacts, and the one-process shell."""
