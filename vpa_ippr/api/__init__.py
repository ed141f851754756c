"""The Kubernetes objects and values that every other room speaks in. Knows nothing of ours."""
