"""A user's own Accel-Sim, driven: pre-flight, one process per kernel, its output read live, failures explained."""
