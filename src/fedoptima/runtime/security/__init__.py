"""Certificates, TLS, and why a connection was refused."""
