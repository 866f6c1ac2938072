"""Stores what agents send. `recorder` stores the messages of one session (as `append_ops`), `result_recorder` those
that are results of one command, `bulk_recorder` those of many sessions, of commands of the lane `bulk`, and `receipts`
does what follows once Redis has them."""
