"""What scripts need around `jztree`: test distributions, snapshots and catalogues on disk, pictures, a command line."""
