"""Stores what agents send. `recorder` stores the messages of one session (as `append_ops`), `bulk_recorder` those of
many, of commands of the lane `bulk`, and `receipts` does what follows once Redis has them."""
