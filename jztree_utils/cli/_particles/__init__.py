"""The particles of a snapshot on the available devices, and the computations of the command line."""
