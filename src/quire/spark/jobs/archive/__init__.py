"""The results of the jobs `offload` and `compact`: Parquet files, and the manifests that name them.

Start with `manifest`. For `offload`, `offload_plan` decides what is copied, `parquet_files` copies
it, `merge` joins small files, `tables` adds the files to Delta and Iceberg, and `offload_results`
says what was done. `places` finds a place of the stream in the files. For `compact`, `versions`
keeps the versions of a table. `store` accesses the directory of either.
"""
