"""Finding rendered manifests, and what a NetworkPolicy allows, for the tests of the chart."""
