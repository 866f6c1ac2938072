"""The server below the applications: uvicorn with our own HTTP connection, WebSocket upgrade and admission in it."""
