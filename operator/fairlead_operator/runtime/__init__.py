"""The operator at work: informer, controller, reconciler, leader election, and health."""
