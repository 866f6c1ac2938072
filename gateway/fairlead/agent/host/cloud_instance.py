"""Which cloud the host runs in, and as which instance, as the firmware tells it.

`facts` reads it. The files are those of the system's DMI table, so nothing is asked over the network, and no metadata
service gives this agent credentials. Only what every user of the host may read is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

LENGTH: Final = 128
"""Characters of what the firmware says: it is whatever the machine's maker has written."""
AZURE_TAG: Final = "7783-7084-3265-9085-8269-3286-77"
"""The asset tag of the chassis of every virtual machine of Azure; others of that vendor run Hyper-V elsewhere."""
VENDORS: Final = {
    "Amazon EC2": "aws", "Google": "gcp", "DigitalOcean": "digitalocean", "Hetzner": "hetzner",
    "Alibaba Cloud": "alibaba", "OpenStack Foundation": "openstack", "Vultr": "vultr", "Scaleway": "scaleway",
}  # fmt: skip


def cloud_facts(dmi: Path = Path("/sys/class/dmi/id")) -> dict[str, str]:
    """`cloud.provider`, and where they are told `cloud.instance` and `cloud.type`; nothing outside a known cloud."""
    vendor = _read(dmi / "sys_vendor")
    provider = VENDORS.get(vendor, "")
    if vendor == "Microsoft Corporation" and _read(dmi / "chassis_asset_tag") == AZURE_TAG:
        provider = "azure"
    if not provider:
        return {}
    found = {"cloud.provider": provider}
    if provider == "aws":
        instance = _read(dmi / "board_asset_tag")  # Nitro writes the id of the instance there, Xen nothing
        found["cloud.instance"] = instance if instance.startswith("i-") else ""
        found["cloud.type"] = _read(dmi / "product_name")
    return {name: value for name, value in found.items() if value}


def _read(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(LENGTH).strip()
    except OSError:
        return ""
    return text if text.isprintable() else ""
