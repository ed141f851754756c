"""Is a resize due, the patch, the pod's resize state, the updater. May import api and recommend's result types."""
