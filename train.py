"""The Hydra door: python train.py model=yolo9s data=my.yaml 'device=[0,1]' batch=32. `python train.py --help` lists every key."""

import hydra
from omegaconf import DictConfig

from libreyolo import door


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(cfg: DictConfig) -> float:
    """Train as composed; return the best metric, for sweepers."""
    return door.train_job(cfg)


if __name__ == "__main__":
    door.enter(main)
