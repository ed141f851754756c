"""The node agent: cgroup files, pressure, the shrink machine, journal and loop. Imports api and cluster.rest; starts fast, stays small."""
