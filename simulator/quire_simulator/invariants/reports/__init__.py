"""Compare what Quire reports about itself with what the run knows.

`comparison` is how a report is compared. The other modules each compare the reports of one part:
`directories` those about data directories, `bookies` the metrics of bookies, `cluster` those
about ledgers and repairs, `listings` lists, and `places` the positions and numbers of a stream.
"""
