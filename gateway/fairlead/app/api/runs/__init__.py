"""The part of the API that is about runs: its operations, and the bodies of its requests and answers."""
