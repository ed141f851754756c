"""Where usage comes from: Prometheus and trace files. May import api."""
