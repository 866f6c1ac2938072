"""Quotas of tenants, and what each tenant uses, in Redis."""
