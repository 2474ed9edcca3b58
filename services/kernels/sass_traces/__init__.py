"""Files of SASS traces as the Accel-Sim tracer writes them: lists, headers, containers. Their instructions are a
simulator's business.
"""
