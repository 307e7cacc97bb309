"""The engine: blocks, free index, counters, heap.  Plain Python, no CuPy, no I/O."""
