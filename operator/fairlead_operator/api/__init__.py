"""The custom resources: specs and statuses as Structs, their validation, and what authors may ask for. Pure."""
