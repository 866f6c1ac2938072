"""What a pass reports: `pass_report` collects and writes it, `status` derives it from a decision and an observation,
and `removal_report` says what prevents the next removal of a pod."""
