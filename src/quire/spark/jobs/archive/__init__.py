"""What the job `offload` leaves: Parquet files, and the manifests that count them.

Start with `manifest`. `offload_plan` decides what is copied, `parquet_files` copies it, `tables`
adds the files to Delta and Iceberg, `store` is the directory, and `versions` a table in one.
"""
