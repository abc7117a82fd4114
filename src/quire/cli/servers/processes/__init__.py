"""Several bookies of one machine as one service: `quire bookie start --processes N`.

Read `division` first: it divides the configuration of the service among its bookies. `reports` is
the side of a bookie, which answers its supervisor over its standard streams. `bookie_process` is
one such process as the supervisor sees it, and `supervisor` keeps all of them running. `page` is
the HTTP server of the service, for which `merged_metrics` joins the metrics of the bookies. The
files import `quire.bookie`, `quire.http` and `quire.cli.common`, and no command.
"""
