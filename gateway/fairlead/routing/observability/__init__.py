"""What is known about links and commands. `telemetry_recorder` writes metrics, spans and log lines; `gauges` are read
when they are scraped; `link_stats` describes one link, `link_query` asks another node for one, `worst_links` asks all
nodes."""
