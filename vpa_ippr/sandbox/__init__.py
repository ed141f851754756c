"""An embedded cluster: API server, kubelet, kernel memory model, workloads, metrics. May import api."""
