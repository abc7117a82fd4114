"""Where the cluster keeps its metadata: one interface (`base`), three drivers."""
