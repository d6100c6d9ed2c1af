"""Clients that generators make of `/openapi.json`, each with a program that uses it."""
