"""From usage to target and bounds, and the recommender service. May import api, usage and forecast."""
