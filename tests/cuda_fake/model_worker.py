"""The process that holds models against each other on a GPU, on a fake driver, whose replays the emulator executes: few of them.
`python -P -m cuda_fake.model_worker ORDINAL`."""

from __future__ import annotations

from cuda_fake.fake_driver import FakeDriver

from tilewright.compiler.verification import gpu_model_worker, models_beside

if __name__ == "__main__":
    gpu_model_worker.TURN, gpu_model_worker.WARM, models_beside._TURNS = 1e-6, 0.0, 60.0
    FakeDriver().install()
    gpu_model_worker.main()
