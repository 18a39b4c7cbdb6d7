"""The Hydra door: python train.py model=yolo9s data=my.yaml 'device=[0,1]' batch=32. `python train.py --help` lists every key."""

import os
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from libreyolo import door


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float:
    """Train as composed; return the best metric to the sweeper."""
    job = HydraConfig.get()
    try:
        config = OmegaConf.to_container(cfg, resolve=True)
        return door.train_from_config(config, list(job.overrides.task), run_dir=Path(job.runtime.output_dir), cwd=Path(job.runtime.cwd))
    except Exception as error:
        told = door.sentence(error)
        if told is None or job.mode == RunMode.MULTIRUN:  # a sweep goes on with its other jobs
            raise
        sys.exit(told)


if __name__ == "__main__":
    os.environ["HYDRA_FULL_ERROR"] = "1"  # the chain of causes holds what our one sentence is made of
    try:
        door.register()
        sys.argv[1:] = door.arguments_for_rank(sys.argv[1:], os.environ)
        main()
    except Exception as error:
        told = door.sentence(error)
        if told is None:
            raise
        sys.exit(told)
