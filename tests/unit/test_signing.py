"""Signed models: who passes a key loads what that key signed, as it was signed, and nothing else."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.compiler import ops
from tilewright.compiler.builder.local_builder import LocalBuilder
from tilewright.compiler.cli.main import main
from tilewright.runtime.errors import ArtifactError, OptionError, SignatureError
from tilewright.runtime.load.function import CompiledFunction
from tilewright.runtime.program.program import SCHEMA
from tilewright.runtime.target import Target
from tools.forge.forgery import Parts, mutants

X = np.ones((3, 8), np.float32)
Keys = tuple[Path, Path]
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def fn() -> CompiledFunction:
    graph = ops.Graph()
    graph.output(graph.input("x", ["M", 8]) + graph.input("b", [8]))
    options = tw.CompileOptions(builder=LocalBuilder(Target.parse("host")))
    return tw.compile(graph, {"M": (1, 4)}, constants={"b": np.arange(8, dtype=np.float32)}, options=options)


def keys(folder: Path, name: str) -> Keys:
    """A private and a public key."""
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519", reason="the extra `sign` is not installed")
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    private, found = ed25519.Ed25519PrivateKey.generate(), (folder / f"{name}.pem", folder / f"{name}.pub")
    found[0].write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    found[1].write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return found


@pytest.fixture
def ours(tmp_path: Path) -> Keys:
    return keys(tmp_path, "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Keys:
    return keys(tmp_path, "theirs")


@pytest.fixture
def signed(fn: CompiledFunction, tmp_path: Path, ours: Keys) -> Path:
    path = tmp_path / "signed.tw"
    fn.save(path, key=ours[0])
    return path


def right(fn: CompiledFunction) -> None:
    np.testing.assert_array_equal(fn(X), X + np.arange(8, dtype=np.float32))


def test_keys_come_as_files_texts_or_objects(signed: Path, ours: Keys, theirs: Keys) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    text = ours[1].read_bytes()
    for key in (ours[1], str(ours[1]), text, text.decode(), load_pem_public_key(text), [theirs[1], ours[1]]):
        right(tw.load(signed, key=key))
    right(tw.load(signed))


def test_what_is_not_signed_by_the_key_is_refused(fn: CompiledFunction, signed: Path, ours: Keys, theirs: Keys,
                                                  tmp_path: Path) -> None:
    fn.save(tmp_path / "plain.tw")
    with pytest.raises(SignatureError, match=r"plain\.tw is refused: it is not signed; sign it"):
        tw.load(tmp_path / "plain.tw", key=ours[1])
    with pytest.raises(SignatureError, match=r"signed\.tw is refused: it is signed by \w{16}, and trusted is \w{16}"):
        tw.load(signed, key=theirs[1])
    with pytest.raises(ArtifactError, match="is not signed"):  # one class holds all that is wrong with a file
        tw.load(tmp_path / "plain.tw", key=ours[1])


def test_a_forgery_with_right_hashes_is_refused(signed: Path, ours: Keys, tmp_path: Path) -> None:
    """Another constant, its hashes made right and the signature kept: without a key it runs, with one it does not."""
    data = signed.read_bytes()
    parts = Parts.of(data)
    kept = data[len(data) - parts.head[4] :]
    parts.manifest["label"] = "forged"
    made = parts.joined() + kept
    signed.write_bytes(made[:16] + len(made).to_bytes(8, "little") + len(kept).to_bytes(8, "little") + made[32:])
    right(tw.load(signed))
    with pytest.raises(SignatureError, match="is not of what it holds; it was altered after it was signed"):
        tw.load(signed, key=ours[1])
    assert main(["verify", str(signed)]) == 1


def test_altered_bytes_are_refused_or_of_no_effect(signed: Path, ours: Keys) -> None:
    data, refused = signed.read_bytes(), 0
    for one in mutants(data, 40, random.Random(0)):
        signed.write_bytes(one.data)
        try:
            right(tw.load(signed, key=ours[1]))
        except ArtifactError:
            refused += 1
    assert refused >= 15


def test_a_loaded_model_is_saved_without_its_signature(signed: Path, ours: Keys) -> None:
    """What signs it again has to say so."""
    tw.load(signed, key=ours[1]).save(signed)
    with pytest.raises(SignatureError, match="is not signed"):
        tw.load(signed, key=ours[1])


def test_the_command_line_signs_and_verifies(fn: CompiledFunction, ours: Keys, theirs: Keys, tmp_path: Path,
                                             capsys: Capture) -> None:
    path, other = tmp_path / "model.tw", tmp_path / "both.tw"
    fn.save(path)
    assert main(["verify", str(path), "--key", str(ours[1])]) == 1
    assert main(["sign", str(path), "--key", str(ours[0])]) == 0
    assert main(["sign", str(path), "--key", str(theirs[0]), "-o", str(other)]) == 0
    capsys.readouterr()
    for file, key, code in ((path, ours, 0), (path, theirs, 1), (other, ours, 0), (other, theirs, 0)):
        assert main(["verify", str(file), "--key", str(key[1])]) == code
        right(tw.load(file, key=ours[1]))
    capsys.readouterr()
    assert main(["verify", str(other), "--json"]) == 0
    event = json.loads(capsys.readouterr().out)
    assert len(event["signers"]) == 2 and event["trusted"] is None and event["format"] == SCHEMA


def test_a_damaged_model_is_not_signed(signed: Path, ours: Keys, capsys: Capture) -> None:
    data = bytearray(signed.read_bytes())
    parts = Parts.of(bytes(data))
    constant = next(v for k, v in parts.sections.items() if k.startswith("constant/"))
    data[bytes(data).index(constant)] ^= 1
    signed.write_bytes(data)
    assert main(["sign", str(signed), "--key", str(ours[0])]) == 1
    assert main(["verify", str(signed)]) == 1
    assert "does not match its hash" in capsys.readouterr().err
    assert signed.read_bytes() == data


def test_keys_that_are_none(fn: CompiledFunction, signed: Path, ours: Keys, tmp_path: Path) -> None:
    for key in (ours[0], tmp_path / "missing.pem", "-----BEGIN NONSENSE-----", b"\0", 5, []):
        with pytest.raises(OptionError, match=r"key: (wanted|cannot read)"):
            tw.load(signed, key=key)
    for key in (ours[1], tmp_path / "missing.pem"):
        with pytest.raises(OptionError, match=r"key: (wanted a private key|cannot read)"):
            fn.save(tmp_path / "new.tw", key=key)
    assert not (tmp_path / "new.tw").exists()


def test_without_the_package(fn: CompiledFunction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    for use in (lambda: fn.save(tmp_path / "model.tw", key="key.pem"), lambda: tw.load(tmp_path / "plain.tw", key="key.pub")):
        fn.save(tmp_path / "plain.tw")
        with pytest.raises(OptionError, match=r"need the package cryptography: pip install cryptography \(the extra `sign`\)"):
            use()
    assert main(["verify", str(tmp_path / "plain.tw")]) == 0
    assert "not signed" in capsys.readouterr().out
