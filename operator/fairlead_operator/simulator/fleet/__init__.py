"""The modelled fleet: pods, their Deployment, the load balancer, and the agents that wait to come back."""
