"""What makes functions run over the devices of a mesh, compiled, with exact arguments and buffers that suffice."""
