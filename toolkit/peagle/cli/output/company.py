"""What a company prescribes for its account, as ``peagle plan --verbose`` shows it."""

from __future__ import annotations

from peagle.planning.company import Company


def company_facts(company: Company) -> dict[str, str]:
    """Facts by name, without those that are not set."""
    network = [
        f"VPC: {', '.join(company.subnets)}; {', '.join(company.security_groups)}"
        if company.in_vpc
        else "",
        "isolated" if company.network_isolation else "",
    ]
    facts = {
        "network": ", ".join(filter(None, network)),
        "KMS key": company.kms_key or "",
        "tags": ", ".join(f"{key}={value}" for key, value in sorted(company.tags.items())),
        "boundary": company.permissions_boundary or "",
    }
    return {name: text for name, text in facts.items() if text}
