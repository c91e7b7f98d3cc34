"""LoRA adapters on SmolLM2 through `glowplug serve`: two random ones with a visible effect."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import openai
import pytest
from lora import write_adapter
from serving import CAPITAL, MODEL, Serve, StartServe, deploy, eventually, wait_for_state

from glowplug.client import Client
from glowplug.stages import from_server_timing
from snapshot.manifest import read_manifest

pytestmark = pytest.mark.model


@pytest.fixture
def folders(data: Path, tmp_path: Path) -> dict[str, Path]:
    """PEFT folders of two adapters for SmolLM2."""
    [snapshot] = (data / "cache").glob("sha256-*")
    config = read_manifest(snapshot).config
    return {
        name: write_adapter(tmp_path / name, config, seed=seed, rank=16)
        for seed, name in enumerate(("pirate", "legal"))
    }


def say(client: openai.OpenAI, model: str, **params) -> str:
    answer = client.chat.completions.create(
        model=model, messages=CAPITAL, max_tokens=16, temperature=0, **params
    )
    assert answer.model == model
    return answer.choices[0].message.content or ""


def openai_client(endpoint: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{endpoint}/v1", api_key="none", max_retries=0)


def stage_ms(client: openai.OpenAI, model: str) -> dict[str, float]:
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=CAPITAL, max_tokens=2, temperature=0
    )
    return from_server_timing(raw.headers["server-timing"])


def test_many_adapters_on_one_model(start: StartServe, folders: dict[str, Path]) -> None:
    serve = start()
    with serve.client() as client:
        plain = deploy(client, "smol", idle_s=600)
        snapshots = {each.name for each in (serve.data / "cache").glob("sha256-*")}
        command = [sys.executable, "-m", "glowplug", "deploy", "smol", "--model", MODEL]
        for name, folder in folders.items():
            command += ["--adapter", f"{name}={folder}"]
        command += ["--endpoint", serve.endpoint, "--idle", "600"]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        function = client.function("smol")
    assert function["revision"] != plain["revision"]
    assert function["snapshot"] == plain["snapshot"]
    assert {each.name for each in (serve.data / "cache").glob("sha256-*")} == snapshots
    assert set(function["adapters"]) == set(folders)

    with openai_client(serve.endpoint) as client:
        ids = ["smol", "smol:pirate", "smol:legal"]
        assert [model.id for model in client.models.list()] == ids

        first = stage_ms(client, "smol:pirate")  # from zero: the model, then the adapter
        alone = {model: say(client, model) for model in ids}
        assert "Paris" in alone["smol"]
        assert len(set(alone.values())) == 3
        again = stage_ms(client, "smol:pirate")
        assert again["adapter"] < min(2.0, first["adapter"])
        print(f"adapter stage: {first['adapter']:.1f} ms when loaded, {again['adapter']:.2f} after")

        together: dict[int, tuple[str, str]] = {}

        def ask(n: int) -> None:
            together[n] = (ids[n % 3], say(client, ids[n % 3]))

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(together) == 9
        assert all(said == alone[model] for model, said in together.values())

        with pytest.raises(openai.NotFoundError, match="pirate") as caught:
            say(client, "smol:missing")
        assert caught.value.code == "model_not_found"
        with openai.OpenAI(base_url=f"{serve.endpoint}/f/smol/v1", api_key="none") as own:
            assert say(own, "smol:legal") == alone["smol:legal"]
            with pytest.raises(openai.NotFoundError, match="pirate, legal"):
                say(own, "smol:missing")


def test_changed_contents_under_the_same_name_are_taken_over(
    start: StartServe, folders: dict[str, Path]
) -> None:
    serve = start()

    def redeploy(client: Client, folder: Path) -> dict:
        return deploy(client, "smol", adapters={"mine": str(folder)}, idle_s=600)

    with serve.client() as client, openai_client(serve.endpoint) as caller:
        before = redeploy(client, folders["pirate"])
        said = say(caller, "smol:mine")
        assert redeploy(client, folders["pirate"])["revision"] == before["revision"]

        for file in folders["pirate"].iterdir():
            file.write_bytes((folders["legal"] / file.name).read_bytes())
        after = redeploy(client, folders["pirate"])
        assert after["adapters"] != before["adapters"]
        assert after["revision"] != before["revision"]
        eventually(lambda: say(caller, "smol:mine") != said, what="the new revision answers")

        # A damaged file harms the requests that name it and no others.
        deploy(client, "smol", adapters={"mine": str(folders["pirate"])}, idle_s=0.2)
        wait_for_state(client, "smol", "zero")
        path = serve.data / "cache" / "adapters" / f"{after['adapters']['mine']}.safetensors"
        content = bytearray(path.read_bytes())
        content[-5000] ^= 1
        path.write_bytes(content)
        with pytest.raises(openai.APIStatusError, match="its bytes changed") as caught:
            say(caller, "smol:mine")
        assert (caught.value.status_code, caught.value.code) == (503, "adapter_unavailable")
        assert "Paris" in say(caller, "smol")


def snapshots(serve: Serve, *arguments: str) -> str:
    """What `glowplug snapshots` says."""
    command = [sys.executable, "-m", "glowplug", "snapshots", *arguments]
    command += ["--data", str(serve.data)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr


def test_one_that_has_left_the_cache_is_sealed_again_for_its_caller(
    start: StartServe, folders: dict[str, Path]
) -> None:
    serve = start("--cache-limit", "50GiB")
    with serve.client() as client, openai_client(serve.endpoint) as caller:
        adapters = {"pirate": str(folders["pirate"])}
        digest = deploy(client, "smol", adapters=adapters, idle_s=5)["adapters"]["pirate"]
        said = say(caller, "smol:pirate")
        assert f"in use (by process {serve.replica().pid})" in snapshots(serve, "rm", digest)
        listed = json.loads(snapshots(serve, "ls", "--json"))
        assert [each["digest"] for each in listed if each["kind"] == "adapter"] == [digest]
        assert digest.removeprefix("sha256-")[:12] in snapshots(serve, "ls")
        assert f"{digest} is whole" in snapshots(serve, "verify", digest[:20])

        wait_for_state(client, "smol", "zero")
        eventually(
            lambda: f"{digest} removed" in snapshots(serve, "rm", digest), what="it is not in use"
        )
        raw = caller.chat.completions.with_raw_response.create(
            model="smol:pirate", messages=CAPITAL, max_tokens=16, temperature=0
        )
        assert raw.headers["x-start-kind"] == "cold"
        assert raw.parse().choices[0].message.content == said
        assert f"no adapter '{digest}'" in serve.log()


def test_an_adapter_that_does_not_fit_fails_the_deploy_by_name(
    start: StartServe, folders: dict[str, Path]
) -> None:
    serve = start()
    config = folders["legal"] / "adapter_config.json"
    config.write_text(config.read_text().replace('"bias": "none"', '"bias": "all"'))
    command = [sys.executable, "-m", "glowplug", "deploy", "smol", "--model", MODEL]
    command += ["--endpoint", serve.endpoint]
    for name, folder in folders.items():
        command += ["--adapter", f"{name}={folder}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "adapters.legal" in done.stderr
    assert "bias" in done.stderr
    assert "Traceback" not in done.stderr
