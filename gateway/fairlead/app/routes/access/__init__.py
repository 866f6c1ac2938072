"""The handlers of who may come in and what they may do: tokens, enrolment, and the caller's own rights."""
