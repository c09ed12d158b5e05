"""Serve speech over HTTP, WebSocket and Wyoming: one process, whose models many programs share (`ane serve`)."""
