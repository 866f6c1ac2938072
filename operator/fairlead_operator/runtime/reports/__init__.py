"""What a pass reports: `pass_report` collects it and writes it, `status` makes it of a decision and an observation, and
`removal_report` says what keeps the next pod from being removed."""
