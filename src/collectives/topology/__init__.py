"""Topologies as links between ranks: what they allow at best, and schedules made for them."""
