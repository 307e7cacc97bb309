"""Where memory comes from: the protocol, CUDA through CuPy, and the simulated device."""
