"""ZooKeeper alone."""
