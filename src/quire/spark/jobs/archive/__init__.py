"""The result of the job `offload`: Parquet files, and the manifests that name them.

Start with `manifest`. `offload_plan` decides what is copied, `parquet_files` copies it, `tables`
adds the files to Delta and Iceberg, `store` is the directory, and `versions` keeps versions of a
table in one.
"""
