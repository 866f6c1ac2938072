"""The handlers of events: streams of them, groups of readers, and sinks."""
