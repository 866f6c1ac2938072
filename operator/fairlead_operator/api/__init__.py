"""The custom resources. Pure.

`gateway_spec` (with `pod_spec`, `moves_spec`, `network_spec`, `scaling_signals` and `field_types`) and `gateway_status`
make up LinkGateway, and `link_operation` is LinkOperation. `structural_schema` turns them into the schemas of the CRDs.
`validation` checks a spec, `policy` what its author may ask for, and `conditions` collects conditions.
"""
