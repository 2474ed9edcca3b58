"""Cycles of a kernel from its recorded SASS instructions: an event-driven model of what Accel-Sim simulates."""
