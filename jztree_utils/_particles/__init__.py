"""The particles of a snapshot on the devices at hand, and what the command line computes of them."""
