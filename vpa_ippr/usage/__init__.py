"""What is known of a container's use: histograms, peaks, checkpoints. May import api."""
