"""What the HTTP API promises: operations, schemas, identifiers, the OpenAPI document, request bodies and problems."""
