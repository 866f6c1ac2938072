"""Decides who may do what: roles and their bindings from a file, service tokens from Redis, and the labels of agents.

`policy` decides and is pure; the other modules bring it what it decides on. `app` asks for every request of the API.
"""
