"""vpa-ippr: a vertical autoscaler for Kubernetes that resizes pods in place and shrinks memory safely."""

__version__ = "0.1.0"
