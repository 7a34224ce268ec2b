"""Run functions over the devices of a mesh: compiled, with exact arguments and sufficient buffers."""
