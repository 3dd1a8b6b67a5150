"""`orchestrate build`: the one image that every host runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from orchestrate.errors import Refused


@click.command(
    epilog="""\b
Examples:
  orchestrate build                                  # CUDA, muster:cuda
  orchestrate build --variant cpu --tag muster:cpu
  orchestrate build --base my.registry/cuda:13 --ca-file company.pem
  orchestrate build --pin                            # keep the base's digest in requirements/base-images.json, then build
""",
)
@click.option(
    "--variant", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True, help="what it computes on"
)
@click.option("--base", metavar="REF", help="base image  [default: the pinned one, or its version tag]")
@click.option("--tag", metavar="REF", help="name of the result  [default: muster:VARIANT]")
@click.option(
    "--ca-file",
    type=click.Path(path_type=Path),
    envvar=["MUSTER_CA_FILE", "PIP_CERT"],
    show_envvar=True,
    metavar="PEM",
    help="certificates to trust while packages are fetched; never in a layer",
)
@click.option(
    "--wheels",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="folder of wheels to take before an index's  [env: a folder in PIP_FIND_LINKS]",
)
@click.option(
    "--pip-conf",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="pip's configuration for the build: which index to use; never in a layer",
)
@click.option("--pin", is_flag=True, help="ask the registry for the digest of the variant's base and keep it")
@click.option(
    "--check-reproducible", is_flag=True, help="build again without a cache: the same image id, or exit code 1"
)
@click.option("--json", "as_json", is_flag=True, help="the result as JSON on standard output")
def build(
    variant: str,
    base: str | None,
    tag: str | None,
    ca_file: Path | None,
    wheels: Path | None,
    pip_conf: Path | None,
    pin: bool,
    check_reproducible: bool,
    as_json: bool,
) -> None:
    """Build the image: pinned base, hashed dependencies, the trainer, and labels that say what is inside."""
    from orchestrate import build as building
    from orchestrate import engine
    from orchestrate.report.build import built

    root = building.checkout()
    here = engine.local()
    if pin:
        building.pin(root, variant, here.registry_digest(building.BASES[variant]))
    recipe = building.Recipe(
        root=root,
        variant=variant,
        base=base or building.base_of(root, variant),
        tag=tag or f"muster:{variant}",
        ca_file=ca_file,
        wheels=wheels or _find_links(),
        pip_conf=pip_conf,
    )
    building.build(recipe)
    image_id = here.image_id(recipe.tag) or ""
    if check_reproducible:
        again = replace(recipe, tag=f"{recipe.tag}-again")
        building.build(again, cache=False)
        other = here.image_id(again.tag)
        here.untag_image(again.tag)
        if other != image_id:
            raise Refused(f"two builds differ: {image_id} and {other}", where=recipe.tag)
    built(recipe.tag, image_id, here.image_bytes(recipe.tag), here.image_labels(recipe.tag), as_json=as_json)
    here.close()


def _find_links() -> Path | None:
    """Return the folder of wheels that pip itself would look into, so that the image takes the same."""
    import os

    places = (Path(word) for word in os.environ.get("PIP_FIND_LINKS", "").split())
    return next((p for p in places if p.is_absolute() and p.is_dir()), None)
