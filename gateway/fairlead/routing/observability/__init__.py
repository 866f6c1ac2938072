"""What is known of links and commands. `telemetry_recorder` writes metrics, spans and log lines; `link_stats` describes
one link, `link_query` asks another node for one, `worst_links` asks all nodes for their worst."""
